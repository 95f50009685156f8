"""One rank as a sweep needs it: a training that is ended early and may go on, and one whose plots and model nobody wants."""

import dataclasses

import pytest
from safetensors.torch import load_file

from runner import checkpoint, worker
from runner.communicator import SingleProcess
from runner.saving import FINAL
from runner.schema import Mode
from runner.tracking import NullTracker
from tests.fakes import without_times
from tests.lockstep import in_lockstep
from tests.test_worker import job_of, memory, names, names_of, torch_settings  # noqa: F401 (a fixture)

STEPS = 3  # an epoch


def trained(job, is_pruned=lambda metrics: False, **more):
    """(all metrics that were reported, the report that ends the training)."""
    reports = []
    worker.train(job, memory(), {}, SingleProcess(), reports.append, is_pruned=is_pruned, **more)
    return [metrics for report in reports for metrics in report.get("history", [])], reports[-2]


def same(found, expected):
    return [without_times(each) for each in found] == [without_times(each) for each in expected]


SETTINGS = {
    "an epoch": {},
    "within an epoch": {"trainer.validate_every_steps": 2},
    "no due checkpoint": {"checkpoint.every_epochs": 3, "checkpoint.mode": Mode.max, "checkpoint.keep": 9},
    "moving averages": {"trainer.ema_decay": 0.9, "trainer.validate_every_steps": 2},
}


@pytest.mark.parametrize("ended_at", [0, 1, 2])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_training_ends_where_it_is_told_and_goes_on_to_the_same_bits(tmp_path, settings, ended_at):
    whole, last = trained(job_of(tmp_path / "whole", settings))
    asked = []

    def is_pruned(metrics):
        asked.append(metrics)
        return len(asked) == ended_at + 1

    job = job_of(tmp_path, settings)
    found, ended = trained(job, is_pruned)
    assert len(asked) == ended_at + 1
    assert same(found, whole[: len(found)])
    assert same(asked, [metrics for metrics in found if "val/loss" in metrics])
    assert found[-1] == asked[-1]
    assert ended["pruned"] is True
    step = round(found[-1]["epoch"] * STEPS)
    assert names(job)[-1] == names_of(step)
    _, state = checkpoint.load(job.run_dir / "checkpoints" / names_of(step))
    assert ended["weights_sha256"] == checkpoint.weights_sha256(state["weights"])

    again, final = trained(dataclasses.replace(job, resumes=True))
    assert same(again, whole)
    assert (final["pruned"], final["weights_sha256"]) == (False, last["weights_sha256"])
    assert without_times(final["best"]) == without_times(last["best"])


def test_without_checkpoints_it_ends_all_the_same(tmp_path):
    job = job_of(tmp_path, {"checkpoint.enabled": False})
    found, ended = trained(job, lambda metrics: metrics["epoch"] == 2)
    assert (len(found), ended["pruned"], names(job)) == (2, True, [])


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [({}, [1, 2, 3]), ({"trainer.patience": 1, "checkpoint.mode": Mode.max}, [1])],  # the loss falls
)
def test_a_training_that_is_over_is_not_asked_about(tmp_path, settings, epochs):
    """It would be PRUNED though it has done all it was to do."""
    asked = []
    _, ended = trained(job_of(tmp_path, settings), lambda metrics: asked.append(metrics["epoch"]))
    assert asked == epochs
    assert ended["pruned"] is False


def test_all_ranks_ask_at_the_same_moments_and_end_together(tmp_path):
    settings = {"scaling.num_workers": 2, "trainer.batch_size": 4, "tracking.plots": False}
    asked, reports = ([], []), ([], [])

    def rank(communicator):
        def is_pruned(metrics):
            asked[communicator.rank].append(metrics["epoch"])
            mine = metrics["epoch"] == 2 if communicator.rank == 0 else None  # as a session asks the driver
            return bool(communicator.broadcast(mine))

        job = job_of(tmp_path, settings)
        worker.train(job, memory(), {}, communicator, reports[communicator.rank].append, is_pruned=is_pruned)

    in_lockstep(2, rank)
    assert asked == ([1, 2], [1, 2])
    assert [[report.get("pruned") for report in each] for each in reports] == [[True, None]] * 2
    assert reports[0][0]["weights_sha256"] == reports[1][0]["weights_sha256"]


# What nobody wants


class Recorder(NullTracker):
    def __init__(self):
        self.calls = []

    def log_model(self, model, example):
        self.calls.append(("model", tuple(example.shape)))

    def close(self):
        self.calls.append("close")

    def leave(self):
        self.calls.append("leave")


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()
    monkeypatch.setattr(worker, "open_tracker", lambda *arguments: found)
    return found


def reached(tmp_path):
    """The best loss of the training, which falls."""
    return trained(job_of(tmp_path / "first"))[1]["best"]["val/loss"]


@pytest.mark.parametrize(
    ("better_by", "mode", "shown"),
    [(None, Mode.min, True), (0.01, Mode.min, True), (0.0, Mode.min, False), (-0.01, Mode.min, False)],
)
def test_only_what_beats_the_others_is_examined_and_kept(tmp_path, recorder, better_by, mode, shown):
    to_beat = None if better_by is None else reached(tmp_path) + better_by
    recorder.calls.clear()
    job = dataclasses.replace(job_of(tmp_path, {"tracking.log_model": True}), best_only=True, to_beat=to_beat)
    _, ended = trained(job)
    assert ("examined" in ended) is shown
    assert (job.run_dir / FINAL).exists() is shown
    assert recorder.calls == ["close"]  # the driver stores the model of the one that stays the best
    if shown:
        _, state = checkpoint.load(checkpoint.committed(job.run_dir / "checkpoints")[-1])
        assert checkpoint.weights_sha256(load_file(job.run_dir / FINAL)) == ended["weights_sha256"]
        assert checkpoint.weights_sha256(state["weights"]) == ended["weights_sha256"]


def test_with_a_higher_goal_a_lower_value_beats_nothing(tmp_path, recorder):
    job = job_of(tmp_path, {"tracking.log_model": True, "checkpoint.mode": Mode.max})
    _, ended = trained(dataclasses.replace(job, best_only=True, to_beat=1e9))
    assert "examined" not in ended
    assert not (job.run_dir / FINAL).exists()


@pytest.mark.parametrize(
    "settings", [{"tracking.log_model": False, "tracking.plots": False}, {"tracking.log_model": True}]
)
def test_what_is_switched_off_stays_off_for_the_best_too(tmp_path, recorder, settings):
    job = dataclasses.replace(job_of(tmp_path, settings), best_only=True)
    _, ended = trained(job)
    assert ("examined" in ended) is ("tracking.plots" not in settings)
    assert (job.run_dir / FINAL).exists() is settings["tracking.log_model"]


def test_a_training_of_its_own_stores_its_model_itself(tmp_path, recorder):
    job = job_of(tmp_path, {"tracking.log_model": True})
    _, ended = trained(job)
    assert "examined" in ended
    assert recorder.calls == [("model", (2, 3)), "close"]
    assert not (job.run_dir / FINAL).exists()


@pytest.mark.parametrize(("delivers", "call"), [(True, "close"), (False, "leave")])
def test_who_delivers_what_is_recorded(tmp_path, recorder, delivers, call):
    trained(job_of(tmp_path, {"tracking.log_model": False}), delivers=delivers)
    assert recorder.calls == [call]
    recorder.calls.clear()

    def fails(metrics):
        raise ValueError("the sky fell")

    with pytest.raises(ValueError, match="the sky fell"):
        trained(job_of(tmp_path / "b", {"tracking.log_model": False}), fails, delivers=delivers)
    assert recorder.calls == [call]
