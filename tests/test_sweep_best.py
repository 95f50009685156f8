"""The best job of a sweep so far, and what it alone gets in the end: plots and a stored model."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from runner import learner, saving
from runner.known import Known
from runner.plan import Goal
from runner.run_folder import is_free
from runner.saving import FINAL
from runner.sweep import best as bests
from runner.sweep.best import Best
from runner.tracking.spool import DRIVER, Address, Spool
from tests.fakes import make_experiment
from tests.sweeps import prepared_of

URI = "sqlite:///store"


@pytest.mark.parametrize(
    ("maximise", "offers", "numbers"),
    [
        (False, [3.0, 5.0, 2.0, None, 2.0], [0, 0, 2, 2, 2]),  # of equal ones the first
        (True, [3.0, 5.0, 2.0, 7.0], [0, 1, 1, 3]),
        (False, [None, float("nan"), 4.0, float("nan")], [None, None, 2, 2]),
        (False, [float("inf"), 1.0, float("-inf")], [0, 1, 2]),
    ],
)
def test_the_best_of_what_is_offered(maximise, offers, numbers):
    best, found = Best(Goal(maximise=maximise)), []
    for number, offer in enumerate(offers):
        best.offer(number, offer)
        found.append(best.number)
        assert best.value == (None if best.number is None else offers[best.number])
    assert found == numbers


def test_many_threads_offer_and_none_is_lost():
    best = Best(Goal(maximise=True))

    def offers(first):
        for value in range(first, 800, 8):
            best.offer(value, float(value))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(offers, range(8)))
    assert (best.number, best.value) == (799, 799.0)


@pytest.fixture
def delivered(monkeypatch):
    """Folders whose spool was delivered, and the entries that were in it."""
    found = []

    def deliver_left(folder):
        found.append([line.entry for line in Spool(folder, DRIVER).pending()])

    monkeypatch.setattr(bests.left_over, "deliver_left", deliver_left)
    return found


def draws(name, drawn, folder):
    def draw():
        drawn.append(name)
        assert not is_free(folder)  # nobody else goes on with this run meanwhile

    return draw


def never():
    raise AssertionError("no model is to be stored")


PLOTS = {"kind": "artifact", "path": "plots"}


def test_only_the_best_job_s_plots_are_drawn_and_recorded(tmp_path, delivered):
    best, drawn = Best(Goal()), []
    for number, value in ((0, 3.0), (4, 2.0), (5, 2.5)):
        best.offer(number, value)
        best.keep(number, draws(f"job {number}", drawn, tmp_path))
    best.complete(tmp_path, "run 4", URI, never, Known())
    assert (drawn, delivered) == (["job 4"], [[PLOTS]])
    assert Address.read(tmp_path) == Address(URI, "run 4")
    assert is_free(tmp_path)


def test_a_job_that_was_beaten_before_it_told_its_plots_does_not_displace_others(tmp_path, delivered):
    best, drawn = Best(Goal()), []
    best.offer(0, 3.0)
    best.offer(1, 2.0)
    best.keep(1, draws("job 1", drawn, tmp_path))
    best.keep(0, draws("job 0", drawn, tmp_path))
    best.complete(tmp_path, None, URI, never, Known())
    assert (drawn, delivered) == (["job 1"], [[PLOTS]])


def test_where_a_run_of_an_earlier_command_is_the_best_nothing_is_drawn(tmp_path, delivered):
    best, drawn = Best(Goal()), []
    best.offer(0, 3.0)
    best.keep(0, draws("job 0", drawn, tmp_path))
    best.offer(1, 1.0)
    best.complete(tmp_path / "earlier", "earlier", URI, never, Known())
    assert (drawn, delivered) == ([], [])
    assert not (tmp_path / "earlier").exists()


def test_without_a_store_there_are_plots_alone(tmp_path, delivered):
    best, drawn = Best(Goal()), []
    best.offer(0, 3.0)
    best.keep(0, draws("job 0", drawn, tmp_path))
    (tmp_path / FINAL).touch()
    best.complete(tmp_path, None, None, never, Known())
    assert drawn == ["job 0"]
    assert not (tmp_path / "tracking").exists()


def test_the_best_model_is_stored_with_its_final_weights(tmp_path, delivered, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "runner.tracking.mlflow.save_model", lambda model, example, path: saved.append((model, example, path))
    )
    experiment = make_experiment({"scaling.num_workers": 1})
    prepared, known = prepared_of(experiment), Known()
    trained = learner.construct(experiment, prepared.plan, prepared.data.facts)
    torch.nn.init.constant_(trained.layers[1].weight, 0.125)
    saving.write_final(trained, tmp_path)
    best = Best(Goal())
    best.offer(2, 1.0)
    best.complete(tmp_path, "run 2", URI, lambda: prepared, known)
    ((model, example, path),) = saved
    assert {key: value.tolist() for key, value in model.state_dict().items()} == {
        key: value.tolist() for key, value in trained.state_dict().items()
    }
    row, _ = prepared.data.splits["val"].read(0, 1)
    assert example.tolist() == [row[0].tolist(), row[0].tolist()]
    (((model_entry,)),) = delivered
    assert model_entry == {"kind": "model", "path": f"tracking/{path.name}", "mark": path.name}
    assert path.parent == tmp_path / "tracking"
    assert not (tmp_path / FINAL).exists()
