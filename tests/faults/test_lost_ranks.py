"""A rank is killed, once or again and again, or stops or ends by itself: the training goes on, or says why not."""

from __future__ import annotations

import pytest

STEPS = 7  # an epoch's, with 2 workers
EVERY = 3  # checkpoint.every_steps
GLOO_TIMEOUT = 3  # s
GONE = "ended without a Python error (killed, out of memory or os._exit) or stopped answering"


def sigkill(rank, at):
    """The overrides for it, in step `at`, once the checkpoint that was due before is written."""
    after = f"step-{(at - 1) // EVERY * EVERY:08d}"
    return ["model.kind=sigkill", f"model.rank={rank}", f"model.at={at}", f"model.after={after}"]


def test_a_killed_rank_costs_a_restart_and_no_bit(here, uninterrupted, measure):
    measured = measure(1, "rank 1 of 2 in epoch 3")
    outcome = here("sigkill", *sigkill(1, 2 * STEPS + 3))
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen("restart 1 of 3: rank 1 "), 5)
    assert f"restart 1 of 3: rank 1 {GONE}" in outcome.text
    outcome.assert_equals(uninterrupted(2))
    measured.holds("hash and metrics equal")
    assert "goes on from step-00000015" in outcome.text
    assert outcome.forwards[1] == [17, 13]
    assert outcome.result["restarts"] == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("num_workers", "at"),
    [(2, 5), (2, 17), (3, 5), (3, 12), (4, 4), (4, 10)],  # in the first and the third epoch
)
@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_may_be_killed_in_any_epoch(here, uninterrupted, measure, rank, num_workers, at):
    measured = measure(1, f"rank {rank} of {num_workers}, step {at}")
    outcome = here(
        f"sigkill-{rank}-{num_workers}-{at}",
        f"scaling.num_workers={num_workers}",
        *sigkill(rank, at),
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen(f"restart 1 of 3: rank {rank} "), 5)
    outcome.assert_equals(uninterrupted(num_workers))
    measured.holds("hash and metrics equal")
    killed, resumed = outcome.forwards[rank]
    assert killed == at
    assert killed + resumed - uninterrupted(num_workers).forwards[rank][0] <= EVERY


@pytest.mark.faults
@pytest.mark.parametrize(
    "ingest",
    [
        ["dataset.ingest=dataloader"],
        ["dataset.ingest=dataloader", "dataset.loader_workers=1"],
        ["dataset.ingest=ray_data", "dataset.shuffle_rows=32", "scaling.resources_per_worker.CPU=0.5"],
    ],
    ids=["dataloader", "dataloader-processes", "ray_data"],
)
def test_each_ingest_goes_on_within_an_epoch(here, measure, request, ingest):
    name = request.node.callspec.id
    measured = measure(1, f"rank 1 of 2 in epoch 3, {name}")
    whole = here(f"uninterrupted-{name}", *ingest)
    assert whole.end == (0, "FINISHED", "FINISHED"), whole.text
    outcome = here(f"sigkill-{name}", *ingest, *sigkill(1, 17))
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen("restart 1 of 3: rank 1 "), 5)
    assert "goes on from step-00000015" in outcome.text
    outcome.assert_equals(whole)
    measured.holds("hash and metrics equal")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.faults), 1])
def test_before_the_first_checkpoint_it_starts_again(here, uninterrupted, measure, rank):
    measured = measure(2, f"rank {rank} of 2 in step 2")
    outcome = here(f"sigkill-early-{rank}", "model.kind=sigkill", f"model.rank={rank}", "model.at=2")
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen(f"restart 1 of 3: rank {rank} {GONE}"), 5)
    assert "starts again: there was no checkpoint yet" in outcome.text
    assert outcome.forwards[rank] == [2, 28]
    outcome.assert_equals(uninterrupted(2))
    measured.holds("hash and metrics equal")


def test_a_fault_that_repeats_ends_the_training(here, measure):
    measured, ends = measure(3, "os._exit in rank 1, each time"), measure(5, "os._exit(0)")
    outcome = here(
        "os-exit",
        "model.kind=os_exit",
        "model.rank=1",
        "model.at=5",
        "model.once=false",
        "trainer.max_failures=1",
    )
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert len(outcome.moments) == 2
    ends.seconds("seen", outcome.seen("restart 1 of 1: rank 1 "), 5)
    ends.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.error.startswith("rank 1 ended with")
    assert outcome.error.endswith("; 1 restart did not help (trainer.max_failures=1)")
    measured.holds("ended after 1 restart of 1, and says so")


@pytest.mark.faults
def test_sys_exit_is_an_error(here, measure):
    measured = measure(5, "sys.exit(0)")
    outcome = here("sys-exit", "model.kind=sys_exit", "model.rank=1", "model.at=5")
    measured.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    assert outcome.error.startswith("rank 1: sys.exit(0) was called (")
    assert outcome.result["restarts"] == 0


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.faults), 1])
def test_a_stopped_rank_is_given_up(here, measure, rank):
    measured = measure(6, f"rank {rank} of 2, horovod.gloo_timeout_s={GLOO_TIMEOUT}")
    outcome = here(
        f"sigstop-{rank}",
        "model.kind=sigstop",
        f"model.rank={rank}",
        "model.at=5",
        f"horovod.gloo_timeout_s={GLOO_TIMEOUT}",
        "trainer.max_failures=0",
    )
    measured.seconds("end of the command", outcome.ended_after(), GLOO_TIMEOUT + 5)
    assert outcome.end == (1, "FAILED", "FAILED")
    assert outcome.error.startswith(f"rank {rank} {GONE}")


@pytest.mark.faults
def test_a_stopped_rank_is_replaced(here, uninterrupted, measure):
    measured = measure(6, f"rank 1 of 2, restarted, horovod.gloo_timeout_s={GLOO_TIMEOUT}")
    outcome = here(
        "sigstop",
        "model.kind=sigstop",
        "model.rank=1",
        "model.at=5",
        f"horovod.gloo_timeout_s={GLOO_TIMEOUT}",
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    measured.seconds("seen", outcome.seen("restart 1 of 3: rank 1 "), GLOO_TIMEOUT + 5)
    outcome.assert_equals(uninterrupted(2))
    measured.holds("hash and metrics equal")
