"""The driver itself is killed."""

from __future__ import annotations

import signal

from tests.faults.processes import gone


def test_a_killed_driver_s_run_is_found_lost_and_goes_on(home, here, command, uninterrupted, measure):
    measured = measure(14, "SIGKILL in epoch 1")
    run_dir = home / "outputs" / "runs" / "faults" / "driver"
    driver = command(home, run_dir, f"hydra.run.dir={run_dir}", "model.kind=slow", "model.seconds=0.1")
    driver.until((run_dir / "checkpoints" / "step-00000006").exists)
    family = driver.family()
    driver.send(signal.SIGKILL)
    measured.seconds("all gone", gone(set(family)), 10)
    assert len([line for line in family.values() if line.startswith("ray::")]) >= 2
    outcome = driver.wait()
    assert (outcome.code, outcome.result, outcome.status) == (-signal.SIGKILL, {}, "RUNNING")

    other = here("after-the-driver", "trainer.max_steps=1")
    assert other.code == 0
    assert "faults/driver: driver lost: its process was killed, FAILED now; go on with: " in other.text
    assert outcome.status == "FAILED"
    assert outcome.result["error"] == "driver lost: its process was killed"

    resumed = here("driver", verb="resume")
    assert resumed.end == (0, "FINISHED", "FINISHED"), resumed.text
    resumed.assert_equals(uninterrupted(2))
    measured.holds("FAILED at the next start; resumed: hash and metrics equal")
    killed, went_on = resumed.forwards[0]
    assert killed + went_on - 28 <= 3 + 1  # checkpoint.every_steps, and the step that was being taken
