"""A sweep's job before it runs: what it is, what earlier runs mean for it, what it tells its search in the end."""

import dataclasses
import json
import math
from dataclasses import replace

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import setup_globals
from hydra.types import RunMode

from runner import run_folder
from runner.errors import ConfigError, RunnerError, TrainingError
from runner.known import Known
from runner.recording import DRIVER_LOST
from runner.run_folder import locked
from runner.sweep import job as jobs
from runner.sweep.compose import Composer
from runner.sweep.job import CACHED, IDENTITY, Action, aside, compared, status_of
from runner.sweep.source import Trial
from tests.composed import CONF
from tests.sweeps import begun, found, job_of

SMALL = ["dataset=synthetic", "dataset.rows=100", "model=linear"]
ROOTS = (str(CONF.parent),)


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (found(status="FINISHED"), "FINISHED"),
        (found(status="PRUNED"), "PRUNED"),  # of which MLflow says KILLED
        (found(status="FAILED"), "FAILED"),
        (found(status="KILLED"), "KILLED"),
        (found(status="RUNNING"), "KILLED"),  # its driver was killed, or lives
        (found(status="FAILED", tags={"runner.error": "rank 0: ValueError"}), "FAILED"),
        (found(status="FAILED", tags={"runner.error": DRIVER_LOST}), "KILLED"),
        (found(status="RUNNING", tags={"runner.error": DRIVER_LOST}), "KILLED"),
        (dataclasses.replace(found(status="FINISHED"), tags={}), "FINISHED"),  # of MLflow alone
        (dataclasses.replace(found(status="RUNNING"), tags={}), "KILLED"),
    ],
)
def test_how_a_run_ended(run, status):
    assert status_of(run) == status


RUNS = {
    "nothing": ([], False, Action.RUN, None),
    "finished": ([found("a")], False, Action.CACHED, "a"),
    "finished, of another sweep": ([found("other")], False, Action.CACHED, "other"),
    "failed": ([found("a", "FAILED")], False, Action.LEAVE, "a"),
    "failed, to be tried again": ([found("a", "FAILED")], True, Action.RUN, None),
    "killed": ([found("a", "KILLED")], False, Action.RUN, None),
    "its driver was killed": ([found("a", "RUNNING")], False, Action.RUN, None),
    "pruned": ([found("a", "PRUNED")], False, Action.RUN, None),
    "finished before it failed": ([found("b", "FAILED"), found("a")], False, Action.CACHED, "a"),
    "the newest of two": ([found("b"), found("a")], False, Action.CACHED, "b"),
    "killed, then failed": ([found("b", "FAILED"), found("a", "KILLED")], False, Action.LEAVE, "b"),
    "failed, then killed": ([found("b", "KILLED"), found("a", "FAILED")], False, Action.LEAVE, "a"),
    "of another config": ([found("a", tags={IDENTITY: "other"})], False, Action.RUN, None),
    "that stands for another": ([found("a", tags={CACHED: "z"})], False, Action.RUN, None),
    "the first of those": ([found("b", tags={CACHED: "a"}), found("a")], False, Action.CACHED, "a"),
}


@pytest.mark.parametrize(("runs", "retries", "action", "earlier"), RUNS.values(), ids=RUNS)
def test_what_earlier_runs_mean(tmp_path, runs, retries, action, earlier):
    job = compared(job_of(tmp_path), runs, ["a", "b"], retries)
    assert (job.action, job.earlier and job.earlier.run_id) == (action, earlier)
    assert job.request == job_of(tmp_path).request


INTERRUPTED = [("KILLED", {}), ("RUNNING", {}), ("FAILED", {"runner.error": DRIVER_LOST})]


@pytest.mark.parametrize(("status", "tags"), INTERRUPTED)
def test_an_interrupted_job_of_this_sweep_goes_on_in_its_folder(tmp_path, status, tags):
    run_dir = tmp_path / "earlier/0"
    file = begun(run_dir)
    run = found("a", status, tags={"runner.run_dir": str(run_dir), **tags})
    job = compared(job_of(tmp_path / "now"), [run], ["a"], retry_failed=False)
    assert (job.action, job.earlier) == (Action.RESUME, run)
    assert (job.request.run_dir, job.request.resumes) == (run_dir, file)
    other = compared(job_of(tmp_path / "now"), [run], ["another"], retry_failed=False)
    assert (other.action, other.request.resumes) == (Action.RUN, None)  # of another sweep: begun anew
    assert other.request.run_dir == tmp_path / "now/0"


def test_a_failed_job_that_is_tried_again_goes_on_where_it_stood(tmp_path):
    begun(tmp_path / "0")
    run = found("a", "FAILED", tags={"runner.run_dir": str(tmp_path / "0")})
    job = compared(job_of(tmp_path), [run], ["a"], retry_failed=True)
    assert (job.action, job.request.run_dir) == (Action.RESUME, tmp_path / "0")


def test_a_run_that_somebody_is_at_or_that_has_no_folder_is_begun_anew(tmp_path):
    run = found("a", "RUNNING", tags={"runner.run_dir": str(tmp_path / "0")})
    assert compared(job_of(tmp_path), [run], ["a"], False).action is Action.RUN
    begun(tmp_path / "0")
    with locked(tmp_path / "0"):
        job = compared(job_of(tmp_path), [run], ["a"], False)
    assert job.action is Action.RUN
    assert job.request.run_dir == tmp_path / "0-1"
    with locked(tmp_path / "0", run_folder.RANK_0_LOCK):
        assert compared(job_of(tmp_path), [run], ["a"], False).action is Action.RUN
    assert compared(job_of(tmp_path), [run], ["a"], False).action is Action.RESUME


def test_a_job_gets_a_folder_that_holds_no_other_run(tmp_path):
    job = job_of(tmp_path, 7)
    assert aside(job) == job
    begun(tmp_path / "7")
    begun(tmp_path / "7-1")
    assert aside(job).request.run_dir == tmp_path / "7-2"
    assert aside(aside(job)).request.run_dir == tmp_path / "7-2"


def test_a_trial_is_told_its_end(tmp_path):
    job = job_of(tmp_path, 3, ("a=1",))
    history = [
        {"epoch": 0.5, "val/loss": 2.0},
        {"epoch": 1.0, "train/loss": 9.0},
        {"epoch": 2.0, "val/loss": 1.0},
    ]
    result = {"status": "PRUNED", "best": {"val/loss": 1.0, "epoch": 2.0}, "history": history}
    assert job.told(result) == Trial(3, ("a=1",), "PRUNED", 1.0, {0.5: 2.0, 2.0: 1.0})
    assert job.told({"status": "FAILED", "best": {}}) == Trial(3, ("a=1",), "FAILED", None, {})
    assert job.told({"status": "CACHED", "best": None}) == Trial(3, ("a=1",), "CACHED", None, {})
    diverged = job.told(
        {"status": "FAILED", "error": "rank 0: step 3: the loss of rank 0 is not finite; type"}
    )
    assert math.isnan(diverged.value)


# Composed


@pytest.fixture(scope="module")
def compose():
    GlobalHydra.instance().clear()
    setup_globals()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        yield Composer(loader, loader.load_configuration("config", [], RunMode.MULTIRUN))


@pytest.fixture
def loaded(compose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = Known()

    def load(*overrides, number=0, known=known, roots=ROOTS):
        trial = Trial(number, (*SMALL, *overrides))
        request = jobs.request_of(compose, trial, roots, tmp_path / "multiruns/a/b")
        return jobs.identified(trial, request, known)

    return load


def test_a_job_is_its_overrides_in_its_own_folder_with_its_tags(loaded, tmp_path):
    job = loaded("optimizer.lr=0.5", number=4)
    overrides = (*SMALL, "optimizer.lr=0.5")
    assert job.experiment.optimizer.lr == 0.5
    assert job.trial == Trial(4, overrides)
    assert (job.request.run_dir, job.request.overrides) == (tmp_path / "multiruns/a/b/4", overrides)
    assert dict(job.request.tags) == {
        "runner.job": "4",
        "runner.overrides": json.dumps(overrides),
        "runner.identity": job.identity,
        "runner.basis": job.basis,
    }
    assert (job.action, job.earlier, job.prepared) == (Action.RUN, None, None)
    assert "hydra" not in job.request.values
    assert job.monitor == "val/loss"


@pytest.mark.parametrize(
    ("overrides", "same_identity", "same_basis"),
    [
        (["optimizer.lr=0.5"], False, True),
        (["seed=1"], False, False),  # the split is another one
        (["dataset.rows=101"], False, False),
        (["model=mlp"], False, False),  # other code
        (["trainer.epochs=7"], False, True),
        (["tracking.run_name=x", "sweep.cache=false", "search=tpe", "trainer.max_failures=1"], True, True),
        (["optimizer.lr=0.1"], True, True),  # as it is
    ],
)
def test_what_a_job_is_the_same_for(loaded, overrides, same_identity, same_basis):
    first, other = loaded(), loaded(*overrides)
    assert (other.identity == first.identity) is same_identity
    assert (other.basis == first.basis) is same_basis


def test_a_secret_is_in_no_tag(loaded):
    job = loaded("tracking.uri=postgresql://me:verysecretword@host/db")
    assert "verysecretword" not in json.dumps(dict(job.request.tags))
    assert job.experiment.tracking.uri == "postgresql://me:verysecretword@host/db"


def test_a_refused_job_says_which_it_is(loaded):
    with pytest.raises(ConfigError) as refused:
        loaded("optimizer.lr=-1", number=2)
    assert str(refused.value).startswith(
        f"job 2 ({' '.join(SMALL)} optimizer.lr=-1): optimizer.lr=-1.0: must be a finite number above 0"
    )
    with pytest.raises(ConfigError) as refused:
        loaded("checkpoint.monitor=val/mea")
    assert str(refused.value).startswith(f"job 0 ({' '.join(SMALL)} checkpoint.monitor=val/mea): checkpoint.")


def test_what_is_known_is_not_looked_at_again(loaded, monkeypatch):
    known = Known()
    first = loaded(known=known)
    monkeypatch.setattr("runner.ingest.content.content", lambda *_: pytest.fail("read again"))
    assert loaded("optimizer.lr=0.3", known=known).basis == first.basis


def test_a_check_names_its_job_keeps_no_data_and_says_what_is_to_be_done(loaded, monkeypatch, tmp_path):
    job = loaded("tracking=none", "scaling.num_workers=1", number=1)
    checked = jobs.check(job, Known())
    assert checked.prepared.data is None
    assert checked.prepared.plan.num_workers == 1
    said = jobs.line(checked)
    assert said.startswith(f"job 1  {' '.join(job.request.overrides)}  run  ")
    assert said.endswith("; ".join(checked.prepared.plan.lines()))
    again = dataclasses.replace(checked, action=Action.CACHED, earlier=found("0123"))
    assert "  cached (run 0123)  " in jobs.line(again)
    begun(job.request.run_dir)
    assert jobs.check(job, Known()).request == job.request  # refused for no run that lies there

    def fails(*_, **__):
        raise TrainingError("no")

    monkeypatch.setattr("runner.prepare.prepare", fails)
    with pytest.raises(TrainingError, match=r"job 1 \(.*\): no"):
        jobs.check(job, Known())


def test_the_basis_is_of_the_user_s_own_code_too(loaded, monkeypatch, tmp_path):
    (tmp_path / "my_model.py").write_text("from models.linear import Linear\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = ["model._target_=my_model.Linear", "allowed_targets=[my_model]"]
    assert loaded(*overrides, roots=(*ROOTS, str(tmp_path))).basis != loaded(*overrides).basis


def test_two_jobs_in_one_folder_are_refused(tmp_path):
    three = [
        replace(job_of(tmp_path, number).request, tags={"runner.job": str(number)}) for number in range(3)
    ]
    jobs.check_folders(three)
    twin = replace(three[2], run_dir=three[0].run_dir)
    with pytest.raises(
        ConfigError, match=r"^hydra.sweep.subdir=0: jobs 0 and 2 would have the same folder; type "
    ):
        jobs.check_folders([*three[:2], twin])


def test_a_job_that_is_another_again_is_left_out(tmp_path):
    said = []
    one, same = job_of(tmp_path, 0), job_of(tmp_path, 1)
    other = replace(job_of(tmp_path, 2), identity="another")
    done = replace(job_of(tmp_path, 3), action=Action.CACHED)
    assert jobs.once([one, same, other, done], said.append) == [one, other, done]
    assert said == ["job 1 is job 0 again, and left out; sweep.cache=false trains both"]


def test_a_trial_that_is_no_job_keeps_its_reason(loaded, tmp_path):
    like = job_of(tmp_path).request
    with pytest.raises(RunnerError) as raised, jobs._named(Trial(7, ("model.dropout=2",))):
        raise ConfigError("model.dropout=2: too much")
    job = jobs.refused(Trial(7, ("model.dropout=2",)), like, tmp_path, raised.value)
    assert (job.action, job.reason, job.prepared) == (Action.REFUSED, "model.dropout=2: too much", None)
    assert (job.request.overrides, job.request.run_dir) == (("model.dropout=2",), tmp_path / "7")
