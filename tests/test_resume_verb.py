"""`runner resume` and resume=auto up to the launch: which run goes on, with what, and what is refused."""

import functools
import io
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from runner import checkpoint, config, run_folder
from runner.errors import ConfigError
from runner.identity import fingerprint
from runner.ingest import arrays
from runner.prepare import prepare
from runner.report.console import Screen
from runner.request import Request
from runner.run_folder import RunFile, locked, write_result
from runner.schema import Tracking
from runner.tracking import open_record
from runner.verbs import train
from runner.verbs.resume import USAGE, continued, find, request_of, resume
from tests.composed import compose

PROJECT = Path(__file__).resolve().parents[1]
SMALL = ("dataset=synthetic", "dataset.rows=1000", "model=linear", "tracking=none", "trainer.epochs=2")
HOLDER = """
import sys, time
from pathlib import Path
from runner.run_folder import locked
with locked(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    """A folder to be in; what `resume` changes in the process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def screen():
    return Screen(Console(file=io.StringIO(), soft_wrap=True))


def printed(screen):
    return screen.console.file.getvalue()


def run_file(run_dir, overrides=SMALL, **changes):
    """A run's folder as its launch leaves it."""
    composed = compose(overrides)
    values = {
        "run_id": None,
        "tracking_uri": None,
        "fingerprint": fingerprint(config.to_container(composed)),
        "config": config.to_yaml(composed),
        "overrides": list(overrides),
        "working_dir": str(Path.cwd()),
        "import_roots": [str(PROJECT)],
        "created": run_folder.now(),
    }
    stored = RunFile(**{**values, **changes})
    stored.write(run_dir)
    return stored


def refusal(*arguments):
    with pytest.raises(ConfigError) as refused:
        resume(list(arguments), (), screen())
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "arguments", [(), ("trainer.epochs=3",), ("run_id=1", "run_dir=x"), ("run_id=1", "run_id=2")]
)
def test_without_one_run_it_says_how_to_name_it(arguments):
    assert refusal(*arguments) == f"resume: which run? {USAGE}"


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert refusal(f"run_dir={tmp_path}") == f"{tmp_path}: not the folder of a run: it has no run.json"
    assert (
        refusal("run_dir=nowhere") == f"{tmp_path / 'nowhere'}: not the folder of a run: it has no run.json"
    )
    (tmp_path / "run.json").write_text('{"run_id": ')
    assert refusal(f"run_dir={tmp_path}").startswith(f"{tmp_path / 'run.json'}: not a whole run.json (")


def test_a_run_id_without_a_store_is_refused(tmp_path):
    uri = f"sqlite:///{tmp_path}/outputs/mlflow.db"
    assert refusal("run_id=0123") == (
        f"run_id=0123: there is no store {uri}; type tracking.uri=… of the store that has it"
    )
    assert not list(tmp_path.rglob("*.db"))  # looking made none


def test_an_override_that_makes_another_run_is_refused_before_the_run_is_looked_for():
    line = refusal("run_id=0123", "trainer.epochs=5", "optimizer.lr=0.5")
    assert line.startswith(
        "optimizer.lr=0.5: a run that goes on keeps its model, data, optimizer, seed and batch; "
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """(store's URI, run id): a run that has uploaded its config and a checkpoint. A real store, which takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    record = open_record(Tracking(uri=f"sqlite:///{folder / 'mlflow.db'}"), folder, folder / "run", "a run")
    record.log_text(config.to_yaml(compose(SMALL)), "config.yaml")
    record.log_text("trainer.epochs=2\ntracking.run_name='a b'\n", "overrides.txt")
    record.set_tags(
        {
            "runner.run_dir": str(folder / "gone"),
            "runner.fingerprint": "abc",
            "runner.checkpoint.last": "step-00000004",
        }
    )
    record.close()
    path = checkpoint.commit(folder, "step-00000004", {}, {}, {"step": 4})
    MlflowClient(record.uri).log_artifacts(record.run_id, str(path), "checkpoints/last")
    return record.uri, record.run_id, folder


def test_a_run_id_that_the_store_does_not_have_is_refused(stored):
    uri, _, _ = stored
    line = refusal("run_id=0123", f"tracking.uri={uri}")
    assert line == f"run_id=0123: the store {uri} does not have it (Run with id=0123 not found)"


def test_a_run_s_folder_is_found_by_its_id_and_made_anew_where_it_is_gone(stored, tmp_path):
    uri, run_id, folder = stored
    there = [f"tracking.uri={uri}"]
    found = find(run_id, there)
    assert found == tmp_path / "outputs/runs/fetched" / run_id
    written = RunFile.read(found)
    assert (written.run_id, written.tracking_uri, written.fingerprint) == (run_id, uri, "abc")
    assert written.config == config.to_yaml(compose(SMALL))
    assert [path.name for path in checkpoint.committed(found / "checkpoints")] == ["step-00000004"]
    assert find(run_id, there) == found  # the second time nothing is fetched
    run_file(folder / "gone")
    try:
        assert find(run_id, there) == folder / "gone"
    finally:
        (folder / "gone/run.json").unlink()


# With what


def test_the_stored_run_goes_on_with_what_is_typed(tmp_path):
    run_dir, root = tmp_path / "outputs/runs/a/b", tmp_path / "project"
    (tmp_path / "started").mkdir()
    stored = run_file(
        run_dir,
        working_dir=str(tmp_path / "started"),
        import_roots=[str(root)],
        tracking_uri="sqlite:///there.db",
        run_id="0123",
    )
    request = request_of(run_dir, ["trainer.epochs=5", "scaling.num_workers=3"], ("/mine",))
    assert Path.cwd() == tmp_path / "started"
    assert request.import_roots == ("/mine", str(root))
    assert sys.path[:2] == ["/mine", str(root)]
    assert (request.experiment.trainer.epochs, request.experiment.scaling.num_workers) == (5, 3)
    assert request.experiment.model == config.load(compose(SMALL)).model
    assert (
        request.experiment.tracking.uri == "sqlite:///there.db"
    )  # where the run is, whatever is the default today
    assert request.overrides == (*SMALL, "trainer.epochs=5", "scaling.num_workers=3")
    assert (request.run_dir, request.resumes) == (run_dir, stored)
    assert request.outputs == tmp_path / "started/outputs"
    assert request.fingerprint != stored.fingerprint  # of what it is now
    assert request_of(run_dir, [], ()).fingerprint == stored.fingerprint


# What is refused


@pytest.mark.parametrize("name", [run_folder.DRIVER_LOCK, run_folder.RANK_0_LOCK])
def test_a_run_that_is_still_being_trained_is_refused_within_the_wait(tmp_path, monkeypatch, name):
    run_dir, seconds = tmp_path / "run", 0.5
    run_file(run_dir)
    monkeypatch.setattr(train, "take", functools.partial(run_folder.take, seconds=seconds))
    command = [sys.executable, "-c", HOLDER, str(run_dir), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            began = time.monotonic()
            line = refusal(f"run_dir={run_dir}")
            assert seconds <= time.monotonic() - began < seconds + 5
        finally:
            holder.kill()
    assert re.fullmatch(
        rf"run {re.escape(str(run_dir))} is still being trained by process {holder.pid} on \S+; wait, or end that process",
        line,
    )


def finished(run_dir, **changes):
    """A run of 2 epochs of 13 steps, as its end leaves it."""
    run_file(run_dir)
    where = {"epoch": 2, "step": 26, "rows": 0, "stale": 0, "num_workers": 2, "global_batch_size": 64}
    data = arrays.load(config.load(compose(SMALL)).dataset, 0).facts.identity()
    facts = {**where, "data": {**data, **changes}}
    checkpoint.commit(run_dir / "checkpoints", "step-00000026", {}, {}, facts)
    write_result(run_dir, {"status": "FINISHED"})


def test_a_finished_run_is_refused_with_what_makes_it_longer(tmp_path):
    finished(tmp_path / "run")
    assert refusal(f"run_dir={tmp_path / 'run'}", "scaling.resources_per_worker.CPU=0.5") == (
        "trainer.epochs=2: the run has taken its 26 steps, 2 epochs; type trainer.epochs=3"
    )


def test_a_run_whose_data_changed_is_refused(tmp_path):
    finished(tmp_path / "run", train_rows=799)
    line = refusal(f"run_dir={tmp_path / 'run'}", "trainer.epochs=3", "scaling.resources_per_worker.CPU=0.5")
    assert line.startswith("dataset: the data changed since step 26: {'train_rows': 799, ")


def new_request(tmp_path, *overrides):
    composed = compose([*SMALL, *overrides])
    values = config.to_container(composed)
    run_dir = tmp_path / "outputs/runs/2026/new"
    (run_dir / ".hydra").mkdir(parents=True)
    return Request(
        config.load(composed),
        "",
        values,
        overrides,
        run_dir,
        tmp_path / "outputs",
        (),
        fingerprint=fingerprint(values),
    )


def test_auto_goes_on_with_the_newest_unfinished_run_of_the_same_config(tmp_path):
    runs = tmp_path / "outputs/runs/2025"
    for name, created in (("old", "2025-01-01"), ("newest", "2025-03-01"), ("newer", "2025-02-01")):
        run_file(runs / name, created=created, tracking_uri="sqlite:///there.db")
    run_file(runs / "another", overrides=(*SMALL, "seed=5"), created="2025-09-01")
    write_result(runs / "old", {"status": "FAILED"})
    write_result(runs / "newest", {"status": "FINISHED"})
    request, shown = new_request(tmp_path, "resume=auto"), screen()
    found = continued(request, shown)
    assert found.run_dir == runs / "newer"
    assert found.resumes == RunFile.read(runs / "newer")
    assert found.experiment.tracking.uri == "sqlite:///there.db"
    assert printed(shown) == "resume=auto: goes on with the unfinished run in outputs/runs/2025/newer\n"
    assert not request.run_dir.exists()  # Hydra made it for a new run
    with locked(runs / "newer"):  # somebody is at it
        assert continued(new_request(tmp_path, "resume=auto"), screen()).run_dir == runs / "old"


def test_auto_begins_a_run_where_there_is_none_to_go_on_with(tmp_path):
    request, shown = new_request(tmp_path, "resume=auto"), screen()
    assert continued(request, shown) is request
    assert printed(shown) == ""
    assert request.run_dir.exists()


def test_without_auto_an_unfinished_run_is_pointed_out(tmp_path):
    run_file(tmp_path / "outputs/runs/2025/old", run_id="0123")
    request, shown = new_request(tmp_path), screen()
    assert continued(request, shown) is request
    assert printed(shown) == (
        "this is a new run; there is an unfinished one of this config, go on with: python -m runner resume run_id=0123 "
        "(or type resume=auto)\n"
    )


def test_auto_leaves_a_folder_alone_that_holds_another_run(tmp_path):
    request = new_request(tmp_path, "resume=auto")
    run_file(request.run_dir, (*SMALL, "optimizer.lr=0.5"))
    assert continued(request, screen()) is request
    with pytest.raises(ConfigError, match="holds a run already; type another folder"):
        prepare(request)


def test_auto_goes_on_in_the_folder_it_was_given_until_that_run_is_finished(tmp_path):
    request = new_request(tmp_path, "resume=auto")
    run_file(request.run_dir)
    assert continued(request, screen()).resumes == RunFile.read(request.run_dir)
    write_result(request.run_dir, {"status": "FINISHED"})
    assert continued(request, screen()) is request
