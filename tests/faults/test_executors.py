"""One experiment by every executor: what it comes to, how it goes on, what a lost or failing rank does. Prints a table."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cells import (
    EXECUTORS,
    IN_EVERY_TEST,
    LAUNCHERS,
    OPTIONS,
    OWN_PROCESS,
    RESTARTING,
    WORKERS,
    filled,
)
from tests.faults.command import Command
from tests.faults.outcome import Outcome
from tests.faults.processes import gone

Run = Callable[..., Outcome]


def each(*executors: str, always: tuple[str, ...] = IN_EVERY_TEST) -> list[object]:
    return [pytest.param(name, marks=() if name in always else pytest.mark.faults) for name in executors]


@pytest.fixture
def by(here: Run, home: Path, command: Callable[..., Command]) -> Run:
    """by(executor, name, *overrides, verb=None) → the outcome of a run by it."""

    def run(executor: str, name: str, *overrides: str, verb: str | None = None) -> Outcome:
        if executor in LAUNCHERS:
            run_dir = home / "outputs" / "runs" / "faults" / f"{executor}-{name}"
            folder = () if verb else (f"hydra.run.dir={run_dir}",)
            launched = command(home, run_dir, *folder, *overrides, verb=verb, launcher=LAUNCHERS[executor])
            outcome = launched.wait()
            gone(set(launched.family()))
            return outcome
        chosen = (f"executor={executor}", f"scaling.num_workers={WORKERS.get(executor, 2)}")
        chosen += ("model.alone=true",) if executor == "local" else ()
        chosen += OPTIONS.get(executor, ())
        if executor in OWN_PROCESS:
            run_dir = home / "outputs" / "runs" / "faults" / f"{executor}-{name}"
            begin = () if verb else (f"hydra.run.dir={run_dir}", *chosen)
            return command(home, run_dir, *begin, *overrides, verb=verb).wait()
        return here(f"{executor}-{name}", *(() if verb else chosen), *overrides, verb=verb)

    return run


@pytest.mark.parametrize("executor", each(*EXECUTORS, always=(*IN_EVERY_TEST, "elastic")))
def test_it_trains_to_the_same_weights(by, uninterrupted, executor):
    outcome = by(executor, "whole")
    outcome.assert_equals(uninterrupted(WORKERS.get(executor, 2)))
    filled[executor, "train"] = f"{outcome.result['seconds']['total']:.1f} s"
    if executor not in WORKERS:
        filled[executor, "hash at 2 workers"] = outcome.result["weights_sha256"][:12]


@pytest.mark.parametrize("executor", each(*EXECUTORS))
def test_an_exception_is_told_and_the_run_goes_on_from_its_checkpoint(by, uninterrupted, executor):
    rank = WORKERS.get(executor, 2) - 1
    failed = by(executor, "raises", "model.kind=raises", f"model.rank={rank}", "model.at=9")
    assert failed.end == (1, "FAILED", "FAILED"), failed.text
    assert f"rank {rank}: ValueError: the sky fell" in failed.text
    filled[executor, "exception"] = f"rank {rank}, {failed.result['error'].partition(' (')[0]!r}"
    resumed = by(executor, "raises", verb="resume")
    resumed.assert_equals(uninterrupted(WORKERS.get(executor, 2)))
    (line,) = [line for _, line in resumed.lines if line.startswith("goes on from step-")]
    filled[executor, "resume"] = f"{line}, hash equal"


@pytest.mark.parametrize("executor", each(*RESTARTING))
def test_a_killed_rank_costs_a_restart_and_no_bit(by, uninterrupted, executor):
    killed = ("model.kind=sigkill", "model.rank=1", "model.at=9", "model.after=step-00000006")
    outcome = by(executor, "sigkill", *killed)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    outcome.assert_equals(uninterrupted(2))
    if executor == "elastic":  # the other rank lives on
        assert (outcome.result["restarts"], len(outcome.result["changes_of_workers"])) == (0, 1)
        assert "goes on from step 8 with 2 workers: global batch 32" in outcome.text
    else:
        assert outcome.result["restarts"] == 1
    told = "rank 1 " if executor == "elastic" else "restart 1 of 3: rank 1 "
    filled[executor, "SIGKILL"] = f"seen {outcome.seen(told):.1f} s, hash equal"


@pytest.mark.faults
def test_a_killed_rank_of_horovodrun_ends_the_launch_and_the_next_one_goes_on(by, uninterrupted):
    faults = ("model.kind=sigkill", "model.rank=1", "model.at=9", "model.after=step-00000006")
    killed = by("horovodrun", "sigkill", *faults)
    assert killed.end == (1, "FAILED", "FAILED"), killed.text
    assert killed.error.startswith("rank 1 ended without a Python error"), killed.text
    resumed = by("horovodrun", "sigkill", verb="resume")
    assert resumed.end == (0, "FINISHED", "FINISHED"), resumed.text
    resumed.assert_equals(uninterrupted(2))
    seen = killed.seen("error: rank 1 ")
    filled["horovodrun", "SIGKILL"] = f"seen {seen:.1f} s, ends the launch; horovodrun … resume: hash equal"


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_horovodrun_that_stands_still_is_told_of(by, rank):
    faults = (f"model.rank={rank}", "model.kind=sleeps", "model.at=9", "trainer.watchdog_seconds=3")
    outcome = by("horovodrun", f"sleeps-{rank}", *faults)
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert outcome.error.startswith(f"rank {rank} made no progress for 3 s at step 9 of 28, epoch 2 (in ")


@pytest.mark.faults
def test_horovodrun_that_is_terminated_leaves_a_run_that_says_so(home, command):
    run_dir = home / "outputs" / "runs" / "faults" / "horovodrun-terminated"
    slow = (f"hydra.run.dir={run_dir}", "model.kind=slow", "model.seconds=0.2")
    driver = command(home, run_dir, *slow, launcher=LAUNCHERS["horovodrun"])
    driver.until(lambda: driver.says("epoch 1/4"))
    driver.send(signal.SIGTERM)
    outcome = driver.wait()
    gone(set(driver.family()))
    # Its own exit code says less: when it ends the ranks itself it may take theirs for 0.
    assert outcome.end[1:] == ("KILLED", "KILLED"), outcome.text
    assert outcome.error == "terminated by SIGTERM"
