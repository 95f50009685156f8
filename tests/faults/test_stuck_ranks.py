"""Ranks that stand still or are slow."""

from __future__ import annotations

import pytest

WATCHDOG = 4  # s; a rank that starts on a busy machine may take two


@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("sleeps", 1),
        *(
            pytest.param(kind, rank, marks=pytest.mark.faults)
            for kind in ("sleeps", "spins", "holds_gil")
            for rank in (0, 1)
            if (kind, rank) != ("sleeps", 1)
        ),
    ],
)
def test_a_rank_that_stands_still_is_named(here, measure, kind, rank):
    measured = measure(7, f"{kind}, rank {rank} of 2, trainer.watchdog_seconds={WATCHDOG}")
    outcome = here(
        f"{kind}-{rank}",
        f"model.kind={kind}",
        f"model.rank={rank}",
        "model.at=10",
        f"trainer.watchdog_seconds={WATCHDOG}",
        "trainer.max_failures=0",
    )
    measured.seconds("end of the command", outcome.ended_after(), WATCHDOG + 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    stacks = "outputs/runs/faults/" + f"{kind}-{rank}/logs/stacks.txt"
    assert outcome.error.startswith(f"rank {rank} made no progress for ")
    assert " at step 10 of 28, epoch 2 (in " in outcome.error
    assert "faulty.py:" in outcome.error
    assert outcome.error.endswith(f"; stacks of all ranks: {stacks}")
    text = (outcome.run_dir / "logs" / "stacks.txt").read_text()
    assert [line for line in text.splitlines() if line.startswith("===")] == ["=== rank 0", "=== rank 1"]
    assert f" in {kind}" in text
    measured.holds("stacks of both")


@pytest.mark.faults
def test_without_a_watchdog_horovods_stall_inspector_ends_it(here, measure):
    measured = measure(7, "sleeps, rank 1 of 2, no watchdog, horovod.stall_shutdown_s=3")
    outcome = here(
        "stalled",
        "model.kind=sleeps",
        "model.rank=1",
        "model.at=10",
        "trainer.watchdog_seconds=null",
        "horovod.stall_warning_s=1",
        "horovod.stall_shutdown_s=3",
        "trainer.max_failures=0",
    )
    measured.seconds("end of the command", outcome.ended_after(), 3 + 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    assert outcome.error.startswith("rank 1 ended without a Python error (")
    assert " or stopped answering (log in outputs/runs/faults/stalled/logs/rank-1.log" in outcome.error
    assert "Missing ranks:" in (outcome.run_dir / "logs" / "rank-0.log").read_text()


@pytest.mark.faults
def test_a_rank_that_stood_still_is_replaced(here, uninterrupted, measure):
    measured = measure(7, f"sleeps, restarted, trainer.watchdog_seconds={WATCHDOG}")
    outcome = here(
        "sleeps", "model.kind=sleeps", "model.rank=1", "model.at=10", f"trainer.watchdog_seconds={WATCHDOG}"
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen("restart 1 of 3: rank 1 made no progress for "), WATCHDOG + 5)
    outcome.assert_equals(uninterrupted(2))
    measured.holds("hash and metrics equal")


def test_a_straggler_is_seen_and_changes_nothing(here, uninterrupted, measure):
    measured = measure(10, "rank 1 sleeps 0.05 s in each step")
    outcome = here("slow", "model.kind=slow", "model.rank=1", "model.seconds=0.05")
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    metrics = outcome.metrics()
    steps = [
        [values[0] for (key, _), values in metrics.items() if key == f"step_seconds/rank-{rank}"]
        for rank in (0, 1)
    ]
    assert [len(each) for each in steps] == [4, 4]
    seconds = [min(each) for each in steps]  # of four epochs: the machine may be busy in one
    assert seconds[1] >= 0.05 > seconds[0]
    outcome.assert_equals(uninterrupted(2))
    measured.holds(f"{seconds[0]:.3f} and {seconds[1]:.3f} s a step; hash and metrics equal")
