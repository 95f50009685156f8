"""A training that goes on from another one's checkpoint: what becomes the other's, and what stays its own."""

import dataclasses
import json

import pytest
import torch

from runner import checkpoint, worker
from runner.checkpoint import SEAL, CheckpointError
from runner.communicator import SingleProcess
from runner.errors import ConfigError
from runner.learner import build_learner
from runner.options import with_its_rate, with_options
from runner.take_over import REFERENCE, Reference, take_over
from runner.worker import Stage
from tests.fakes import without_times
from tests.test_worker import job_of, memory

EVERY = 2  # epochs
KEPT = {"checkpoint.keep": 9}


def member(tmp_path, name, **options):
    """A job of 4 epochs."""
    job = dataclasses.replace(job_of(tmp_path, KEPT), run_dir=tmp_path / name)
    return given(
        job, {"optimizer.momentum": 0.5, **{f"optimizer.{key}": value for key, value in options.items()}}
    )


def given(job, options):
    experiment = with_options(job.experiment, options)
    plan = with_its_rate(job.plan, experiment)
    return dataclasses.replace(job, experiment=experiment, plan=plan, searched=tuple(options))


def train(job, until=None, goes_on=False, pinned=None):
    """(what train returns, all that it reported)."""
    reports = []
    found = worker.train(
        job, memory(), {}, SingleProcess(), reports.append, goes_on, stage=until and Stage(until, pinned)
    )
    return found, reports


def newest(job):
    return checkpoint.committed(job.run_dir / "checkpoints")[-1]


def weights_of(path):
    return checkpoint.read_manifest(path)["files"][checkpoint.WEIGHTS]["sha256"]


def measured(state):
    lines = state["history"].numpy().tobytes().split(b"\n")
    return [json.loads(line) for line in lines if line]


@pytest.fixture
def two(tmp_path):
    """Two members after 2 of 4 epochs."""
    good, bad = member(tmp_path, "good", lr=0.1), member(tmp_path, "bad", lr=1e-6)
    for job in (good, bad):
        train(job, until=EVERY)
    return good, bad


def test_a_pause_returns_its_metrics_and_changes_nothing(tmp_path):
    job, whole = member(tmp_path, "paused"), member(tmp_path, "whole")
    metrics, reports = train(job, until=EVERY)
    assert metrics["epoch"] == EVERY
    assert sorted(reports[-1]) == ["best", "history", "started"]
    assert newest(job).name == "step-00000006"
    last, later = train(job, until=9, goes_on=True)
    none, all_at_once = train(whole)
    assert last is none is None
    assert later[-2]["weights_sha256"] == all_at_once[-2]["weights_sha256"]


def test_weights_optimizer_and_best_are_the_other_s_and_what_was_measured_stays_its_own(two):
    good, bad = two
    own = checkpoint.load(newest(bad))[1]
    taken = take_over(Reference.to(newest(good), 0, EVERY), bad.run_dir / "checkpoints", {"run_id": "mine"})
    assert taken == newest(bad)
    assert weights_of(taken) == weights_of(newest(good))
    manifest, state = checkpoint.load(taken)
    theirs, source = checkpoint.load(newest(good))
    assert {**manifest, "run_id": None, "files": None, SEAL: None} == {**theirs, "files": None, SEAL: None}
    assert manifest["run_id"] == "mine"
    assert measured(state) == measured(own) != measured(source)
    momentum = state["optimizer"]["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, source["optimizer"]["state"][0]["momentum_buffer"])
    assert (state["best"], state["train_state"]) == (source["best"], source["train_state"])


def test_with_the_same_options_it_goes_on_exactly_as_the_other(two):
    good, bad = two
    take_over(Reference.to(newest(good), 0, EVERY), bad.run_dir / "checkpoints", {})
    as_good = given(bad, {"optimizer.lr": 0.1, "optimizer.momentum": 0.5})
    ends = [train(job, goes_on=True)[1] for job in (good, as_good)]
    assert ends[0][-2]["weights_sha256"] == ends[1][-2]["weights_sha256"]
    histories = [
        [without_times(each) for report in end for each in report.get("history", [])] for end in ends
    ]
    assert histories[0][-2:] == histories[1][-2:]
    assert histories[0][:2] != histories[1][:2]  # its own
    assert [each["epoch"] for each in histories[1]] == [1, 2, 3, 4]


def test_other_options_than_the_checkpoint_s_hold_from_the_next_step_on(two):
    good, bad = two
    take_over(Reference.to(newest(good), 0, EVERY), bad.run_dir / "checkpoints", {})
    _, reports = train(given(bad, {"optimizer.lr": 0.05, "optimizer.momentum": 0.8}), goes_on=True)
    assert [each["lr"] for report in reports for each in report.get("history", [])] == [
        1e-6,
        1e-6,
        0.05,
        0.05,
    ]
    group = checkpoint.load(newest(bad))[1]["optimizer"]["param_groups"][0]
    assert (group["lr"], group["momentum"]) == (0.05, 0.8)


def test_own_checkpoints_and_measurements_of_later_steps_are_gone(two):
    good, bad = two
    source = Reference.to(newest(good), 0, EVERY)
    train(bad, goes_on=True)  # to its end
    taken = take_over(source, bad.run_dir / "checkpoints", {})
    assert newest(bad) == taken
    assert [each["step"] for each in measured(checkpoint.load(taken)[1])] == [1, 3, 6]  # and the first LR


def test_what_others_may_take_over_is_kept_until_the_next_comparison(tmp_path):
    job = job_of(tmp_path, {"checkpoint.keep": 2, "trainer.epochs": 7})
    train(job, until=EVERY)
    train(job, until=6, goes_on=True, pinned="step-00000006")
    there = [path.name for path in checkpoint.committed(job.run_dir / "checkpoints")]
    assert there == ["step-00000006", "step-00000015", "step-00000018"]
    train(job, until=9, goes_on=True, pinned="step-00000018")
    there = [path.name for path in checkpoint.committed(job.run_dir / "checkpoints")]
    assert there == ["step-00000018", "step-00000021"]


def test_one_that_has_no_checkpoint_yet_can_take_over(two, tmp_path):
    taken = take_over(Reference.to(newest(two[0]), 0, EVERY), tmp_path / "new" / "checkpoints", {})
    assert weights_of(taken) == weights_of(newest(two[0]))
    assert measured(checkpoint.load(taken)[1]) == []


# The reference


def test_a_reference_is_one_small_file(two, tmp_path):
    reference = Reference.to(newest(two[0]), 3, EVERY)
    reference.write(tmp_path / "ray")
    assert Reference.read(tmp_path / "ray") == reference
    (file,) = (tmp_path / "ray").iterdir()
    assert file.name == REFERENCE
    assert json.loads(file.read_text()) == {
        "job": 3,
        "epoch": 2,
        "path": str(newest(two[0])),
        "sha256": checkpoint.read_manifest(newest(two[0]))[SEAL],
    }
    with pytest.raises(CheckpointError, match=r"reference\.json: not a reference"):
        Reference.read(tmp_path)
    file.write_text('{"job": 3}')
    with pytest.raises(CheckpointError, match=r"reference\.json: not a reference"):
        Reference.read(tmp_path / "ray")


def test_another_or_a_damaged_checkpoint_is_not_taken(two):
    good, bad = two
    path, before = newest(good), weights_of(newest(bad))
    reference = Reference.to(path, 0, EVERY)
    with pytest.raises(CheckpointError, match="another checkpoint than was meant"):
        take_over(dataclasses.replace(reference, sha256="0" * 64), bad.run_dir / "checkpoints", {})
    with pytest.raises(CheckpointError, match="job 0 has no checkpoint of epoch 2: it had diverged"):
        take_over(Reference(0, EVERY), bad.run_dir / "checkpoints", {})
    content = bytearray((path / checkpoint.WEIGHTS).read_bytes())
    content[-1] ^= 1
    (path / checkpoint.WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match="not what was written, its sha256 is another"):
        take_over(reference, bad.run_dir / "checkpoints", {})
    assert weights_of(newest(bad)) == before


def test_an_option_that_the_optimizer_does_not_keep_is_refused(tmp_path):
    job = job_of(tmp_path)
    built = build_learner(job.experiment, job.plan, job.data, SingleProcess(), torch.device("cpu"))
    assert built.owning(["momentum"]).own_options == ("momentum",)
    with pytest.raises(
        ConfigError, match=r"optimizer\.beta=…: the optimizer does not keep it, so it cannot change"
    ):
        built.owning(["beta"])
