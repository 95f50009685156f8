"""Checkpoints that are torn, corrupted, or have no room."""

from __future__ import annotations

import re
import subprocess

import pytest

from runner import checkpoint


def test_a_rank_0_killed_while_it_writes_leaves_a_whole_checkpoint(here, uninterrupted, measure):
    measured = measure(15, "SIGKILL of rank 0 with half a checkpoint on the disk")
    outcome = here("kill-writer", "model.kind=kill_writer", "model.rank=0", "model.at=5")
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert outcome.result["restarts"] == 1
    outcome.assert_equals(uninterrupted(2))
    measured.holds("hash and metrics equal")
    assert [name for name in outcome.checkpoints if not name.startswith("step-")] == []


def test_a_corrupted_checkpoint_is_passed_over(here, uninterrupted, measure):
    measured = measure(17, "a bit of the newest state.pt flipped, then resumed")
    outcome = here(
        "corrupted",
        "model.kind=sigkill",
        "model.rank=1",
        "model.at=17",
        "model.after=step-00000015",
        "trainer.max_failures=0",
    )
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert outcome.text.splitlines()[-2] == f"go on with: python -m runner resume run_id={outcome.run_id}"
    older, newest = outcome.checkpoints[-2:]
    state = outcome.run_dir / "checkpoints" / newest / "state.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    resumed = here("corrupted", verb="resume")
    assert resumed.end == (0, "FINISHED", "FINISHED"), resumed.text
    warning = f"warning: {state}: not what was written, its sha256 is another; falling back to {older}"
    assert warning in resumed.text
    assert f"goes on from {older}" in resumed.text.splitlines()
    resumed.assert_equals(uninterrupted(2))
    measured.holds(f"{older} in place of {newest}; hash and metrics equal")


@pytest.fixture
def small_disk(home):
    """4 MB, as the folder of the run `small-disk`."""
    folder = home / "outputs" / "runs" / "faults" / "small-disk"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_earlier_checkpoint_stays(here, small_disk, measure):
    measured = measure(16, "4 MB, a checkpoint of 1.4 MB")
    outcome = here("small-disk", "model.width=16000", "skip_checks=[disk]")
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert re.match(
        rf"rank 0: {small_disk}/checkpoints/step-\d+: No space left on device: the checkpoint needs 14\d+ bytes, \d+ "
        r"are free; free some space, or type checkpoint\.keep=2, or hydra\.run\.dir=… on another disk \(",
        outcome.error,
    ), outcome.error
    measured.holds("path and bytes named, the one before is sound")
    assert [name for name in outcome.checkpoints if not name.startswith("step-")] == []
    checkpoint.verify(outcome.run_dir / "checkpoints" / outcome.checkpoints[-1])
