"""One experiment by every executor: what it comes to, how it goes on, what a lost or failing rank does. Prints a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cells import EXECUTORS, IN_EVERY_TEST, NO_CELL, OWN_PROCESS, WORKERS, filled
from tests.faults.command import Command
from tests.faults.outcome import Outcome

Run = Callable[..., Outcome]


def each(*executors: str) -> list[object]:
    return [
        pytest.param(name, marks=() if name in IN_EVERY_TEST else pytest.mark.faults) for name in executors
    ]


@pytest.fixture
def by(here: Run, home: Path, command: Callable[..., Command]) -> Run:
    """by(executor, name, *overrides, verb=None) → the outcome of a run by it."""

    def run(executor: str, name: str, *overrides: str, verb: str | None = None) -> Outcome:
        chosen = (f"executor={executor}", f"scaling.num_workers={WORKERS.get(executor, 2)}")
        chosen += ("model.alone=true",) if executor == "local" else ()
        if executor in OWN_PROCESS:
            run_dir = home / "outputs" / "runs" / "faults" / f"{executor}-{name}"
            begin = () if verb else (f"hydra.run.dir={run_dir}", *chosen)
            return command(home, run_dir, *begin, *overrides, verb=verb).wait()
        return here(f"{executor}-{name}", *(() if verb else chosen), *overrides, verb=verb)

    return run


@pytest.mark.parametrize("executor", each(*EXECUTORS))
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


@pytest.mark.parametrize("executor", each(*(name for name in EXECUTORS if (name, "SIGKILL") not in NO_CELL)))
def test_a_killed_rank_costs_a_restart_and_no_bit(by, uninterrupted, executor):
    killed = ("model.kind=sigkill", "model.rank=1", "model.at=9", "model.after=step-00000006")
    outcome = by(executor, "sigkill", *killed)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    outcome.assert_equals(uninterrupted(2))
    assert outcome.result["restarts"] == 1
    filled[executor, "SIGKILL"] = f"seen {outcome.seen('restart 1 of 3: rank 1 '):.1f} s, hash equal"
