"""executor=train_v2 where the table of executors does not look: signals, a fault that repeats, the other version."""

from __future__ import annotations

import signal

import pytest

from tests.faults.processes import gone


@pytest.fixture
def v2(home, command):
    """v2(name, *overrides) → the command, and its folder."""

    def start(name, *overrides):
        run_dir = home / "outputs" / "runs" / "faults" / f"train_v2-{name}"
        return command(home, run_dir, f"hydra.run.dir={run_dir}", "executor=train_v2", *overrides), run_dir

    return start


def test_a_process_that_has_used_the_other_version_refuses(here, uninterrupted):
    uninterrupted(2)
    refused = here("train_v2-beside-v1", "executor=train_v2")
    assert refused.code == 2
    assert refused.error == (
        "executor=train_v2: this process has used Ray Train V1, and has one version of it; type the same in a new process"
    )


@pytest.mark.faults
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", ["launch", "training"])
def test_a_signal_ends_it(v2, measure, number, code, phase):
    measured = measure(13, f"{signal.Signals(number).name}, {phase}, train_v2")
    driver, run_dir = v2(f"{number}-{phase}", "model.kind=slow", "model.seconds=0.2")
    is_training = (run_dir / "checkpoints" / "step-00000003").exists
    driver.until(is_training if phase == "training" else lambda: driver.says("starting the workers"))
    family = set(driver.family())
    moment = driver.send(number)
    outcome = driver.wait(30)
    measured.seconds("end of the command", outcome.ended - moment, 10)
    measured.seconds("all gone", gone(family | set(driver.family())), 10)
    assert outcome.end == (code, "KILLED", "KILLED"), outcome.text


@pytest.mark.faults
def test_a_killed_driver_leaves_nothing(v2, measure):
    measured = measure(14, "SIGKILL in epoch 1, train_v2")
    driver, run_dir = v2("driver", "model.kind=slow", "model.seconds=0.1")
    driver.until((run_dir / "checkpoints" / "step-00000006").exists)
    family = set(driver.family())
    driver.send(signal.SIGKILL)
    measured.seconds("all gone", gone(family), 10)


@pytest.mark.faults
def test_a_fault_that_repeats_ends_the_training(v2, measure):
    measured = measure(3, "os._exit in rank 1, each time, train_v2")
    fault = ("model.kind=os_exit", "model.rank=1", "model.at=5", "model.once=false", "trainer.max_failures=1")
    outcome = v2("os-exit", *fault)[0].wait()
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert len(outcome.moments) == 2
    measured.seconds("seen", outcome.seen("restart 1 of 1: rank 1 "), 5)
    measured.seconds("end of the command", outcome.ended_after(), 5)
    assert outcome.error.endswith("; 1 restart did not help (trainer.max_failures=1)")
