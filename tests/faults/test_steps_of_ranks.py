"""Every rank takes the same steps, or none: rows that do not divide, and a sampler whose ranks disagree."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("num_workers", "steps"),
    [(2, 28), *(pytest.param(*each, marks=pytest.mark.faults) for each in [(1, 52), (3, 20), (4, 16)])],
)
def test_203_rows_are_the_same_steps_on_all_ranks(uninterrupted, measure, num_workers, steps):
    measured = measure(8, f"203 rows, {num_workers} workers of 16")
    outcome = uninterrupted(num_workers)
    assert outcome.forwards == {rank: [steps] for rank in range(num_workers)}
    assert {step for key, step in outcome.metrics() if key != "lr"} == {
        steps * epoch // 4 for epoch in range(1, 5)
    }
    measured.holds(f"{steps} steps on each")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.faults), 1])
def test_a_sampler_that_is_shorter_on_a_rank_is_an_error_before_the_epoch(home, here, measure, rank):
    measured = measure(9, f"a row fewer on rank {rank} in epoch 2")
    fault = home / "outputs" / "runs" / "faults" / f"sampler-{rank}" / "fault"
    outcome = here(f"sampler-{rank}", f"dataset.short_rank={rank}", f"dataset.folder={fault}")
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    measured.seconds("end of the command", outcome.ended_after(), 5)
    who, _, said = outcome.error.partition(": ")
    assert who in ("rank 0", "rank 1", "all ranks")
    assert said.startswith(
        "epoch 1: the ranks' rows differ; dataset: its sampler must give all ranks the same rows ("
    )
    assert outcome.forwards == {0: [7], 1: [7]}
    measured.holds("7 steps on each, all of epoch 1")
