"""A training that is killed 200 times at random moments loses nothing (`make soak`; RUNNER_SOAK_KILLS=6 for a try)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
from mlflow import MlflowClient

from runner import checkpoint
from runner.run_folder import RUN
from tests.faults.command import Command
from tests.faults.outcome import Outcome
from tests.faults.processes import gone

KILLS = int(os.environ.get("RUNNER_SOAK_KILLS", "200"))
SEED = int(os.environ.get("RUNNER_SOAK_SEED", "0"))
SPREAD = 2.0  # a kill comes within so many times the seconds that a training needs to begin, about 8
SETTINGS = ("dataset.train_rows=2030", "scheduler=constant", "checkpoint.every_steps=5")  # 64 steps an epoch
ENDLESS = "trainer.epochs=100000"  # until the last kill: how long a training is may change when it goes on
TARGETS = ("driver", "rank")


class Soak:
    """A command that is started again whenever it has ended."""

    def __init__(self, home, command):
        self.home, self.run_dir = home, home / "outputs" / "runs" / "faults" / "soak"
        self.starts = 0
        self.changes: tuple[str, ...] = ()
        self._start = command
        self._command = None

    def running(self) -> Command:
        """The command; a new one where the last one has ended, because a rank was killed too often or too early."""
        command = self._command
        if command is not None and command.process.poll() is not None:
            outcome = command.wait()
            assert outcome.code == 1, f"it ended by itself with {outcome.code}:\n{outcome.text}"
            assert "did not help" in outcome.error or "did not start" in outcome.error, outcome.text
            self._end(command)
            command = None
        if command is None:
            self.starts += 1
            if (self.run_dir / RUN).exists():
                command = self._start(self.home, self.run_dir, *self.changes, verb="resume")
            else:
                slow = ("model.kind=slow", "model.seconds=0.05", "resume=auto")
                folder = f"hydra.run.dir={self.run_dir}"
                command = self._start(self.home, self.run_dir, folder, *SETTINGS, *slow, ENDLESS)
            self._command = command
        return command

    def begins(self) -> float:
        """Seconds from the command to the first step of its training."""
        before = time.monotonic()
        self.running().until(lambda: any(path.read_text() for path in self.run_dir.glob("fault/rank-*")))
        return time.monotonic() - before

    def kill(self, target, draw) -> str:
        """SIGKILL the driver or a rank; where there is no rank yet, the driver. Says what was hit, and when."""
        command = self.running()
        family = command.family()
        ranks = sorted(
            pid for pid, line in family.items() if line.startswith("ray::") and "TrainWorker" in line
        )
        phase = "start"
        if ranks:
            phase = "training" if self._forwards(ranks) else "launch"
        elif command.says("starting the workers"):
            phase = "placement"
        elif any("raylet" in line.partition(" ")[0] for line in family.values()):
            phase = "start of Ray"
        if target == "rank" and ranks:
            os.kill(draw.choice(ranks), signal.SIGKILL)
            return f"rank, {phase}"
        command.send(signal.SIGKILL)
        gone(set(family))
        self._end(command)
        return f"driver, {phase}"

    def finish(self, epochs) -> Outcome:
        """The outcome of a last command, which makes it that long and is left alone."""
        self.end()
        self.changes = (epochs,)
        command = self.running()
        outcome = command.wait(3600)
        gone(set(command.family()))
        return outcome

    def end(self) -> None:
        """Kill the driver, if there is one."""
        if self._command is not None:
            self._command.process.kill()
            self._end(self._command)

    def _end(self, command) -> None:
        command.wait()
        gone(set(command.family()))
        command.close()
        self._command = None

    def _forwards(self, ranks) -> bool:
        """Whether one of these processes has taken a step."""
        paths = (self.run_dir / "fault").glob("rank-*")
        return any(int(path.name.split("-")[2]) in ranks and path.read_text() for path in paths)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_training_that_is_killed_at_random_moments_loses_nothing(home, tmp_path, here, command, capsys):
    draw = random.Random(SEED)
    other = Soak(tmp_path, command)
    seconds = SPREAD * other.begins()
    other.end()
    soak = Soak(home, command)
    hit: Counter[str] = Counter()
    for number in range(1, KILLS + 1):
        soak.running()
        time.sleep(draw.uniform(0, seconds))
        hit[soak.kill(draw.choice(TARGETS), draw)] += 1
        whole(soak.run_dir)
        with capsys.disabled():
            steps = [path.name for path in checkpoint.committed(soak.run_dir / "checkpoints")][-1:]
            print(f"{number} of {KILLS} kills, {soak.starts} starts, {steps}: {dict(hit)}", flush=True)
    (newest, *_) = reversed(checkpoint.committed(soak.run_dir / "checkpoints"))
    epochs = f"trainer.epochs={checkpoint.read_manifest(newest)['epoch'] + 3}"
    outcome = soak.finish(epochs)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert [name for name in outcome.checkpoints if not name.startswith("step-")] == []
    whole(soak.run_dir)
    client = MlflowClient(outcome.store)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert {run.info.run_id: run.info.status for run in client.search_runs(experiments)} == {
        outcome.run_id: "FINISHED"
    }
    uninterrupted = here("uninterrupted", *SETTINGS, epochs)
    assert uninterrupted.code == 0
    outcome.assert_equals(uninterrupted)


def whole(run_dir) -> None:
    """Every checkpoint that is there verifies; a living command may prune one meanwhile."""
    for path in checkpoint.committed(run_dir / "checkpoints"):
        try:
            checkpoint.verify(path)
        except checkpoint.CheckpointError:
            if path.exists():
                raise
