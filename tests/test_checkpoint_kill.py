"""SIGKILL at any moment of a commit leaves the previous checkpoint or the complete new one (fault 15)."""

import json
import subprocess
import sys

import pytest

from tests.composed import CONF

OFFSETS = 20  # in time, as many in lines of the code, and all calls of the file system

# One process imports torch, forks a child for each offset and looks at what the killed child left.
PROGRAM = '''
import json, os, signal, sys, threading, time
from pathlib import Path
import torch
from runner import checkpoint, retention

mode, root, offsets = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)

def commit(folder, epoch):
    weights = {"w": torch.full((100, 100), float(epoch))}
    checkpoint.commit(folder, f"step-{epoch:08d}", weights, {"step": epoch}, {"epoch": epoch})

def lines(limit=None):
    """Counts the lines of checkpoint.py as they run; at line `limit` the process kills itself."""
    seen = [0]
    def trace(frame, event, argument):
        if frame.f_code.co_filename != checkpoint.__file__:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    return seen

def calls(limit=None):
    """The same for calls that touch the file system, those inside shutil among them."""
    seen = [0]
    def hook(event, arguments):
        if event.startswith("os.") or event == "open":
            seen[0] += 1
            if seen[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    return seen

def again(folder):  # the last epoch once more, as after a resume
    commit(folder, 2)

def prune(folder):
    commit(folder, 3)
    retention.prune(folder, keep=2, keep_best=0, maximise=True)

WORK = {"lines": again, "again": again, "prune": prune}
WATCH = {"lines": lines, "again": calls, "prune": calls}

def before(folder):
    commit(folder, 1)
    if mode != "lines":
        commit(folder, 2)

def child(folder, offset):
    if mode == "time":
        for epoch in range(1, 10_000):
            commit(folder, epoch)
    before(folder)
    WATCH[mode](offset)
    WORK[mode](folder)

def count(folder):
    """Lines or calls that the work takes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        before(folder)
        seen = WATCH[mode]()
        WORK[mode](folder)
        os.write(writing, str(seen[0]).encode())
        os._exit(0)
    os.wait()
    return int(os.read(reading, 100))

def examine(folder):
    newest = checkpoint.latest(folder)
    if newest is None:
        return {"loaded": None}
    manifest, state = checkpoint.load(newest)
    whole = bool((state["weights"]["w"] == manifest["epoch"]).all()) and state["step"] == manifest["epoch"]
    committed = [int(path.name[6:]) for path in checkpoint.committed(folder)]
    verified = []
    for path in checkpoint.committed(folder):
        try:
            checkpoint.verify(path)
            verified.append(int(path.name[6:]))
        except checkpoint.CheckpointError:
            pass
    left = [path.name for path in folder.glob("tmp-*")]
    commit(folder, 9000)
    after = [path.name for path in folder.glob("tmp-*")]
    return {"loaded": manifest["epoch"], "whole": whole, "committed": committed, "verified": verified,
            "left": left, "after": after}

commit(root / "warm", 1)
started = time.perf_counter()
commit(root / "warm", 2)
seconds = time.perf_counter() - started
found = []
if mode == "time":
    moments = [seconds * 2 * index / offsets for index in range(offsets)]
elif mode == "lines":
    total = count(root / "counted")
    moments = sorted({1 + index * total // offsets for index in range(offsets)} | {total - 1, total})
else:
    moments = range(1, count(root / "counted") + 1)
for index, at in enumerate(moments):
    folder = root / f"{mode}-{index}"
    pid = os.fork()
    if pid == 0:
        child(folder, at)
        os._exit(0)
    if mode == "time":
        deadline = time.time() + 10
        while not (folder / "step-00000001").exists() and time.time() < deadline:
            time.sleep(0.001)
        time.sleep(at)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    found.append({"killed": os.WIFSIGNALED(status), **examine(folder)})
print(json.dumps(found))
'''


def kill(mode, root):
    command = [sys.executable, "-c", PROGRAM, mode, str(root), str(OFFSETS)]
    done = subprocess.run(command, cwd=CONF.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= OFFSETS
    assert all(outcome["killed"] for outcome in found)
    return found


@pytest.mark.parametrize("mode", ["time", "lines", "again", "prune"])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, mode):
    found = kill(mode, tmp_path)
    for outcome in found:
        assert outcome["loaded"] is not None, "nothing could be loaded"
        assert outcome["whole"]
        assert outcome["after"] == [], "the next commit left the half-written one lying"
        # What had been committed is not torn: nothing half-written, and nothing half-deleted, has its name.
        assert outcome["verified"] == outcome["committed"]
        assert outcome["loaded"] == max(outcome["committed"])
    if mode == "time":
        for outcome in found:  # nor lost
            assert outcome["committed"] == list(range(1, outcome["loaded"] + 1))
    elif mode == "prune":
        assert {outcome["loaded"] for outcome in found} == {2, 3}
        assert {tuple(outcome["committed"]) for outcome in found} == {(1, 2), (1, 2, 3), (2, 3)}
    else:
        assert {outcome["loaded"] for outcome in found} == {1, 2}
    assert any(outcome["left"] for outcome in found), "no kill hit a commit while it wrote"
