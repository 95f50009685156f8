"""Disks that are full or lie (faults 16 and 17): the checkpoint before is intact, and the error says what to do."""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest
import torch

from runner import checkpoint
from runner.checkpoint import MANIFEST, STATE, WEIGHTS, CheckpointError
from tests.composed import CONF

FLIPS = 200

# The first checkpoint fits; then the disk has no more to give. Prints what each further commit came to.
PROGRAM = '''
import json, os, resource, shutil, sys
from pathlib import Path
import torch
from runner import checkpoint

mode, root = sys.argv[1], Path(sys.argv[2])
torch.set_num_threads(1)
# Each file is larger than the one written before it, so a limit on the size of files can hit any of them.
weights = {"w": torch.ones(10_000)}
attachments = {"preprocessing.json": b"x" * 150_000}
facts = {"epoch": 1, "metrics": {str(number): 0.5 for number in range(12_000)}}

def state(filler=None):
    return {"optimizer": {"momentum": torch.ones(20_000)}, "filler": filler}

def commit(step, more=None):
    try:
        checkpoint.commit(root, f"step-{step:08d}", weights, {**state(), **(more or {})}, facts, attachments)
        return None
    except checkpoint.CheckpointError as error:
        return str(error)

class Fills:
    """What is pickled when torch writes it, and then leaves no room."""
    def __reduce__(self):
        try:
            with (root.parent / "other").open("wb") as file:
                while True:
                    file.write(b"x" * 4096)
                    file.flush()
        except OSError:
            pass
        return (str, ())

def outcome(error, **more):
    first = checkpoint.committed(root)
    checkpoint.load(first[0])
    return {"error": error, "names": sorted(path.name for path in root.iterdir()), **more}

assert commit(1) is None
if mode == "limit":
    sizes = [(root / "step-00000001" / name).stat().st_size
             for name in ("weights.safetensors", "state.pt", "preprocessing.json", "manifest.json")]
    assert sizes == sorted(sizes)
    found = []
    for limit in [0, 1, *(at for size in sizes for at in (size // 2, size - 4097, size - 100, size - 1))]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        error = commit(2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        found.append(outcome(error, limit=limit))
else:
    free = shutil.disk_usage(root).free
    large = {"large": torch.ones(free // 4)}
    found = [outcome(commit(2, large), free=free), outcome(commit(2, {"filler": Fills()}))]
    (root.parent / "other").unlink()
print(json.dumps([*found, outcome(commit(2))]))
'''


def run(mode, root, *prefix):
    command = [*prefix, sys.executable, "-c", PROGRAM, mode, str(root)]
    done = subprocess.run(command, cwd=CONF.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def needs(error):
    """(reason, bytes needed, bytes free) of the error about the second checkpoint."""
    form = (
        r".*/step-00000002: (.*): the checkpoint needs (\d+) bytes, (\d+) are free; "
        r"free some space, or type checkpoint\.keep=2, or hydra\.run\.dir=… on another disk"
    )
    reason, needed, free = re.fullmatch(form, error).groups()
    return reason, int(needed), int(free)


def test_a_write_that_fails_at_any_byte_leaves_the_checkpoint_before(tmp_path):
    *failed, last = run("limit", tmp_path / "checkpoints")
    assert len(failed) == 18
    for outcome in failed:
        reason, needed, free = needs(outcome["error"])
        assert "File too large" in reason, outcome
        assert free > needed == 40_000 + 80_000 + 2 * checkpoint.TENSOR_SLACK + 150_000 + checkpoint.SLACK
        assert outcome["names"] == ["step-00000001"]
    assert last == {"error": None, "names": ["step-00000001", "step-00000002"]}


def mounted(folder):
    """How to run a command with 2 MB of disk at `folder`; None where this user may not mount."""
    if shutil.which("unshare") is None:
        return None
    script = f'mount -t tmpfs -o size=2m tmpfs "{folder}" && exec "$@"'
    private = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    prefix = ["unshare", *private, "sh", "-c", script, "sh"]
    done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return None if done.returncode else prefix


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    prefix = mounted(tmp_path)
    if prefix is None:
        pytest.skip("this user may not mount a file system of its own")
    refused, cut, last = run("full", tmp_path / "checkpoints", *prefix)
    # Seen before a byte is written.
    reason, needed, free = needs(refused["error"])
    assert reason == "No space left on device"
    assert (free, free < needed < free + 2**20) == (refused["free"], True)
    assert refused["names"] == ["step-00000001"]
    # Filled by another program while this one writes.
    reason, needed, free = needs(cut["error"])
    assert reason == "No space left on device"
    assert cut["names"] == ["step-00000001"]
    assert last == {"error": None, "names": ["step-00000001", "step-00000002"]}


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_a_checkpoint_takes_no_more_of_the_disk_than_was_asked_for(tmp_path, rows, count):
    weights = {f"layers.{index}.weight": torch.ones(rows, 5) for index in range(count)}
    state = {
        "optimizer": {key: {"exp_avg": torch.ones(rows, 5), "lr": 0.1} for key in weights},
        "all": [torch.ones(rows, 5) for key in weights],
    }
    attachments = {"a.json": b"x" * 5000}
    path = checkpoint.commit(
        tmp_path, "step-00000001", weights, state, {"metrics": {"loss": 1.0}}, attachments
    )
    taken = sum(file.stat().st_blocks * 512 for file in path.iterdir())
    tensors = 3 * count * (rows * 5 * 4 + checkpoint.TENSOR_SLACK)
    needed = tensors + len(attachments["a.json"]) + checkpoint.SLACK
    assert 0 <= needed - taken <= checkpoint.SLACK + 3 * count * checkpoint.TENSOR_SLACK


@pytest.fixture
def two(tmp_path):
    """The folder of two checkpoints."""
    for step in (1, 2):
        weights = {"layer.weight": torch.randn(20, 10), "layer.bias": torch.randn(20)}
        state = {"optimizer": {"momentum": torch.randn(20, 10), "lr": 0.1}, "step": step}
        facts = {
            "epoch": step,
            "value": 1e-7,
            "metrics": {"val/loss": 0.5, "µ": float("nan")},
            "run_id": "0a1b",
        }
        checkpoint.commit(tmp_path, f"step-{step:08d}", weights, state, facts, {"a.json": b'{"mean": 0.5}'})
    return tmp_path


def flip(file, bit):
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("name", [STATE, WEIGHTS, MANIFEST, "a.json"])
def test_every_flipped_bit_is_found(two, name):
    file = two / "step-00000002" / name
    bits = range(file.stat().st_size * 8)
    for bit in random.Random(name).sample(bits, min(FLIPS // 4, len(bits))):
        flip(file, bit)
        with pytest.raises(CheckpointError, match=f"^{re.escape(str(file))}: "):
            checkpoint.verify(file.parent)
        with pytest.raises(CheckpointError, match=f"^{re.escape(str(file))}: "):
            checkpoint.load(file.parent)
        assert checkpoint.latest(two) == two / "step-00000001", (name, bit)
        flip(file, bit)
    assert checkpoint.latest(two) == two / "step-00000002"


def test_no_other_spelling_of_the_manifest_is_taken_for_it(two):
    manifest = two / "step-00000002" / MANIFEST
    text = manifest.read_text()
    for ours, other in [("1e-07", "1E-07"), ("\\u00b5", "µ"), ("0.5", "0.50"), ("\n", " \n")]:
        assert ours in text
        manifest.write_text(text.replace(ours, other))
        assert json.loads(manifest.read_text())["epoch"] == 2  # JSON, and it says the same
        with pytest.raises(CheckpointError, match=r"not what was written, its sha256 is another$"):
            checkpoint.verify(manifest.parent)


def test_each_rejected_checkpoint_is_one_warning(two):
    checkpoint.commit(two, "step-00000003", {"w": torch.ones(1)}, {}, {})
    state, weights = two / "step-00000003" / STATE, two / "step-00000002" / WEIGHTS
    size = state.stat().st_size
    state.write_bytes(state.read_bytes()[:-7])
    flip(weights, 4000)
    lines = [
        f"warning: {state}: {size - 7} bytes, {size} were written; falling back to step-00000001",
        f"warning: {weights}: not what was written, its sha256 is another; falling back to step-00000001",
    ]
    warned, warned_again = [], []
    assert checkpoint.latest(two, warned.append) == two / "step-00000001"
    path, manifest, loaded = checkpoint.load_latest(two, warned_again.append)
    assert (path, manifest["epoch"], loaded["step"]) == (two / "step-00000001", 1, 1)
    assert warned == warned_again == lines


def test_with_none_left_the_warning_says_so(two):
    for step in (1, 2):
        (two / f"step-{step:08d}" / MANIFEST).unlink()
    warned = []
    assert checkpoint.latest(two, warned.append) is None
    assert checkpoint.load_latest(two) is None
    assert [line.endswith("; and there is none to fall back to") for line in warned] == [True, True]


def test_a_sound_newest_checkpoint_gives_no_warning(two):
    warned = []
    assert checkpoint.latest(two, warned.append) == two / "step-00000002"
    assert warned == []
