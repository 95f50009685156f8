"""What a rank raises, or computes that is no number: final, told once, and the last checkpoint stays sound."""

from __future__ import annotations

import pytest

from runner import checkpoint
from tests.faults.conftest import PROJECT

NOT_FINITE = (
    "is not finite; type a lower optimizer.lr, trainer.clip_norm=1, or trainer.on_nonfinite=skip to leave such "
    "steps out"
)


def line_of(code):
    """Path and line of the faulty project's `code`."""
    lines = (PROJECT / "faulty.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip() == code]
    return f"{PROJECT / 'faulty.py'}:{number}"


@pytest.mark.parametrize(
    ("rank", "who"),
    [
        *(pytest.param(rank, f"rank {rank}", marks=pytest.mark.faults) for rank in "01"),
        ("null", "all ranks"),
    ],
)
def test_an_exception_is_told_once_with_the_user_s_line(here, measure, rank, who):
    measured = measure(4, who)
    outcome = here(
        f"raises-{rank}", "model.kind=raises", f"model.rank={rank}", "model.at=5", "model.once=false"
    )
    measured.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    (line,) = outcome.error.splitlines()
    log = f"outputs/runs/faults/raises-{rank}/logs/rank-{'0' if rank == 'null' else rank}.log"
    said = line_of('raise ValueError("the sky fell")')
    if rank == "null":  # whichever was first
        assert line.startswith(f"{who}: ValueError: the sky fell ({said}; full trace in ")
    else:
        assert line == f"{who}: ValueError: the sky fell ({said}; full trace in {log})"
    assert outcome.tags["runner.error"] == line[:500]
    assert outcome.result["restarts"] == 0


@pytest.mark.faults
@pytest.mark.parametrize("at", [1, 28], ids=["first-step", "last-step"])
@pytest.mark.parametrize("num_workers", [1, 3, 4])
def test_an_exception_of_rank_0_in_any_step(here, measure, num_workers, at):
    measured = measure(4, f"rank 0 of {num_workers}, step {at}")
    outcome = here(
        f"raises-{num_workers}-{at}",
        f"scaling.num_workers={num_workers}",
        "trainer.epochs=10",
        "model.kind=raises",
        "model.rank=0",
        f"model.at={at}",
    )
    measured.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    assert outcome.error.startswith("rank 0: ValueError: the sky fell (")


@pytest.mark.parametrize(
    ("kind", "rank", "cause"),
    [
        ("nan_loss", 1, "the loss of rank 1"),
        pytest.param("nan_loss", 0, "the loss of rank 0", marks=pytest.mark.faults),
        pytest.param("inf_gradient", 1, "the gradient", marks=pytest.mark.faults),
    ],
)
def test_what_is_not_finite_stops_the_training_at_its_step(here, measure, kind, rank, cause):
    measured = measure(11, f"{kind} of rank {rank}")
    after = "model.after=step-00000009"
    outcome = here(f"{kind}-{rank}", f"model.kind={kind}", f"model.rank={rank}", "model.at=10", after)
    measured.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    assert outcome.error.startswith(f"all ranks: step 10: {cause} {NOT_FINITE} (")
    newest = checkpoint.latest(outcome.run_dir / "checkpoints")
    assert newest is not None
    assert newest.name == "step-00000009"
    weights = checkpoint.load(newest)[1]["weights"]
    assert all(tensor.isfinite().all() for tensor in weights.values())
    measured.holds("step 9 is sound")


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["nan_loss", "inf_gradient"])
def test_a_step_that_is_not_finite_is_left_out(here, measure, kind):
    measured = measure(11, f"{kind}, trainer.on_nonfinite=skip")
    outcome = here(
        f"{kind}-skip", f"model.kind={kind}", "model.rank=1", "model.at=10", "trainer.on_nonfinite=skip"
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    skipped = {key[1]: values for key, values in outcome.metrics().items() if key[0] == "skipped_steps"}
    assert skipped == {14: [1.0]}
    measured.holds("1 step left out, in epoch 2")
