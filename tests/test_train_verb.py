"""What a run came to, as its record has it."""

import pytest

from runner.verbs.train import describe_result
from tests.fakes import plan_of
from tests.sweeps import Record

SIZES = {
    "scaling.num_workers": 1,
    "trainer.batch_size": 10,
    "trainer.epochs": 4,
}  # of 1000 rows: 100 steps each


class Stepped(Record):
    """With the step of the metrics."""

    step = -1

    def log_metrics(self, metrics, step=0):
        super().log_metrics(metrics, step)
        self.step = step


def described(result, **settings):
    record = Stepped()
    whole = {
        "status": "FINISHED",
        "weights_sha256": None,
        "best": {},
        "metrics": {},
        "seconds": {"total": 9.5},
        "step": 350,
    }
    describe_result(record, {**whole, **result}, plan_of({**SIZES, **settings}))
    return record


@pytest.mark.parametrize("monitor", ["val/loss", "train/loss"])
def test_the_best_epoch_s_validation_and_what_is_monitored_are_recorded(monitor):
    best = {"epoch": 2.0, "val/loss": 0.5, "train/loss": 0.25, "val/mae": 0.75, "lr": 0.1}
    record = described(
        {"best": best, "metrics": {"epoch": 3.5}, "weights_sha256": "abc"}, **{"checkpoint.monitor": monitor}
    )
    training = {"best/train/loss": 0.25} if monitor == "train/loss" else {}
    assert record.metrics == {"best/val/loss": 0.5, "best/val/mae": 0.75, **training, "seconds/total": 9.5}
    assert record.step == 350
    assert record.tags == {"runner.status": "FINISHED", "runner.weights_sha256": "abc"}


def test_a_run_that_failed_has_not_come_to_anything_yet():
    """It may go on: what it measures then would be there twice."""
    record = described({"status": "FAILED", "best": {"val/loss": 0.5}, "metrics": {"epoch": 2.0}})
    assert (record.metrics, record.tags) == ({}, {"runner.status": "FAILED"})


def test_a_pruned_run_says_when():
    record = described({"status": "PRUNED", "pruned": "after 1 of 4 epochs", "metrics": {"epoch": 1.0}})
    assert record.tags == {"runner.status": "PRUNED", "runner.pruned": "after 1 of 4 epochs"}
