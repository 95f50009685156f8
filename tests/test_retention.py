"""Which checkpoints stay, and that nothing on the disk can make this fail."""

import math

import pytest
import torch

from runner import checkpoint, retention
from runner.checkpoint import MANIFEST


def commit(root, values):
    """Checkpoints of steps 1, 2, … with these monitored values."""
    return {
        step: checkpoint.commit(root, f"step-{step:08d}", {"w": torch.ones(1)}, {}, {"value": value})
        for step, value in enumerate(values, start=1)
    }


def steps(root):
    return [int(path.name.removeprefix("step-")) for path in checkpoint.committed(root)]


VALUES = [0.5, 0.9, None, 0.1, math.nan, 0.9, 0.4]


@pytest.mark.parametrize(
    ("keep", "keep_best", "maximise", "left"),
    [
        (2, 0, True, [6, 7]),
        (2, 1, True, [2, 6, 7]),  # of equal ones the earlier
        (2, 2, True, [2, 6, 7]),
        (2, 3, True, [1, 2, 6, 7]),
        (2, 1, False, [4, 6, 7]),
        (3, 2, False, [4, 5, 6, 7]),
        (2, 9, False, [1, 2, 4, 6, 7]),  # without a value, or with NaN, none is a best one
        (9, 1, True, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_prune_keeps_the_last_and_the_best(tmp_path, keep, keep_best, maximise, left):
    commit(tmp_path, VALUES)
    retention.prune(tmp_path, keep, keep_best, maximise)
    assert steps(tmp_path) == left
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in left]
    for path in checkpoint.committed(tmp_path):
        checkpoint.verify(path)


@pytest.mark.parametrize(
    ("values", "highest", "lowest"), [(VALUES, 2, 4), ([None, math.nan], None, None), ([], None, None)]
)
def test_best_is_the_best_that_is_there(tmp_path, values, highest, lowest):
    paths = commit(tmp_path, values)
    assert retention.best(tmp_path, maximise=True) == paths.get(highest)
    assert retention.best(tmp_path, maximise=False) == paths.get(lowest)


def test_without_the_best_the_second_best_is_best(tmp_path):
    paths = commit(tmp_path, VALUES)
    checkpoint.delete(paths[4])
    assert retention.best(tmp_path, maximise=False) == paths[7]


BROKEN = {
    "missing": lambda manifest: manifest.unlink(),
    "torn": lambda manifest: manifest.write_bytes(manifest.read_bytes()[:40]),
    "another value": lambda manifest: manifest.write_text(manifest.read_text().replace("0.9", "9.9")),
    "text": lambda manifest: manifest.write_text("not a manifest"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_checkpoint_without_a_sound_manifest_counts_as_none(tmp_path, how):
    paths = commit(tmp_path, [0.1, 0.2, 0.3, 0.9])
    BROKEN[how](paths[4] / MANIFEST)
    assert retention.best(tmp_path, maximise=True) == paths[3]
    retention.prune(tmp_path, 2, 0, maximise=True)
    assert steps(tmp_path) == [2, 3]  # two that can be loaded, not one and a broken one


def test_with_two_kept_there_is_one_to_fall_back_to(tmp_path):
    paths = commit(tmp_path, [0.1, 0.2, 0.3])
    retention.prune(tmp_path, 2, 0, maximise=True)
    (paths[3] / checkpoint.STATE).write_bytes(b"")
    assert checkpoint.latest(tmp_path) == paths[2]


def test_what_a_training_overtook_goes_even_when_it_was_the_best(tmp_path):
    # Step 4 was damaged; the training went back to 2 and is now at 3 again.
    paths = commit(tmp_path, [0.1, 0.2, 0.3, 0.9])
    retention.prune(tmp_path, 2, 1, maximise=True, newest=paths[3])
    assert steps(tmp_path) == [2, 3]
    assert retention.best(tmp_path, maximise=True) == paths[3]


def test_a_checkpoint_is_deleted_where_an_earlier_deletion_was_cut_short(tmp_path):
    path = commit(tmp_path, [0.1])[1]
    (tmp_path / "tmp-deleted-step-00000001").mkdir()
    (tmp_path / "tmp-deleted-step-00000001" / "state.pt").write_text("half")
    checkpoint.delete(path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_holds_no_checkpoint(tmp_path):
    assert retention.best(tmp_path / "none", maximise=True) is None
    retention.prune(tmp_path / "none", 2, 1, maximise=True)
