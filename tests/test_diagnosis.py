"""Which of the ranks' records is the cause of a failed attempt, and the line that says so."""

import json
import time

import pytest

from runner.communicator import LostPeerError
from runner.diagnosis import diagnose, record_error
from runner.errors import TrainingError
from runner.rank_log import log_path

GONE = LostPeerError("a collective failed: another rank ended or stopped answering (Read error)")


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    return begun(tmp_path, monkeypatch)


def begun(folder, monkeypatch):
    """The folder of a run of two ranks that have begun to write their logs; its parent is the driver's."""
    monkeypatch.chdir(folder)
    for rank in (0, 1):
        path = log_path(folder / "run", rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("training\n")
    return folder / "run"


def fails(run_dir, rank, error, **changes):
    """Raise `error` as user code would, record it, and return the line of the `raise`."""
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - as in a rank, SystemExit too
        record_error(run_dir, rank, raised)
        line = raised.__traceback__.tb_lineno
    path = run_dir / f"errors/rank-{rank}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return f"{__file__}:{line}"


def stalls(run_dir, rank, waiting, **changes):
    record = {
        "rank": rank,
        "time": time.time(),
        "idle_seconds": 30.2,
        "position": "step 37 of 900",
        "waiting": waiting,
        "line": "models/foo.py:12 forward",
        "stack": f"Thread of rank {rank}",
    }
    (run_dir / "stalls").mkdir(exist_ok=True)
    (run_dir / f"stalls/rank-{rank}.json").write_text(json.dumps({**record, **changes}))


def line_of(run_dir, num_workers=2, since=0.0, launch_error=""):
    return str(diagnose(run_dir, num_workers, since, launch_error).error)


def is_told(run_dir, line, is_final, rank, num_workers=2):
    found = diagnose(run_dir, num_workers, 0.0, "")
    assert str(found.error) == line
    assert (found.is_final, found.rank) == (is_final, rank)


def test_the_earliest_error_is_the_cause_whatever_the_others_say(run_dir):
    now = time.time()
    fails(run_dir, 0, KeyError("later"), time=now + 1)
    line = fails(run_dir, 1, ValueError("the sky\n  fell"), time=now)
    is_told(
        run_dir,
        f"rank 1: ValueError: the sky fell ({line}; full trace in run/logs/rank-1.log)",
        is_final=True,
        rank=1,
    )


def test_a_lost_peer_is_no_cause_even_when_it_was_recorded_first(run_dir):
    now = time.time()
    fails(run_dir, 0, GONE, time=now - 1)
    line = fails(run_dir, 1, ValueError("the sky fell"), time=now)
    assert line_of(run_dir).startswith(f"rank 1: ValueError: the sky fell ({line}; ")


def test_an_error_without_a_message_is_named_by_its_type(run_dir):
    line = fails(run_dir, 0, NotImplementedError())
    assert line_of(run_dir) == f"rank 0: NotImplementedError ({line}; full trace in run/logs/rank-0.log)"


def test_what_all_ranks_raise_alike_is_one_cause(run_dir):
    for rank in (0, 1):
        line = fails(run_dir, rank, ValueError("no such column"))
    told = f"ValueError: no such column ({line}; full trace in run/logs/rank-0.log)"
    is_told(run_dir, f"all ranks: {told}", is_final=True, rank=None)
    is_told(run_dir, f"rank 0: {told}", is_final=True, rank=0, num_workers=3)


def test_a_single_worker_is_rank_0(run_dir):
    fails(run_dir, 0, ValueError("no"))
    assert line_of(run_dir, num_workers=1).startswith("rank 0: ValueError: no (")


def test_runner_s_own_errors_need_no_line_of_code(run_dir):
    fails(run_dir, 1, TrainingError("an epoch took 9 rows of 10: each must be used once"))
    assert line_of(run_dir) == (
        "rank 1: an epoch took 9 rows of 10: each must be used once (full trace in run/logs/rank-1.log)"
    )


@pytest.mark.parametrize(
    ("code", "call"), [(3, "sys.exit(3)"), (None, "sys.exit()"), ("enough", "sys.exit('enough')")]
)
def test_sys_exit_is_told_with_its_line(run_dir, code, call):
    line = fails(run_dir, 1, SystemExit(code))
    fails(run_dir, 0, GONE)
    is_told(
        run_dir,
        f"rank 1: {call} was called ({line}; full trace in run/logs/rank-1.log)",
        is_final=True,
        rank=1,
    )


def test_horovod_s_own_error_out_of_a_gradient_s_hook_is_a_lost_peer(run_dir):
    class HorovodInternalError(RuntimeError):
        """Of Horovod's name: its module is not imported to know it."""

    fails(run_dir, 0, HorovodInternalError("Horovod has been shut down. This was caused by …"))
    record = json.loads((run_dir / "errors/rank-0.json").read_text())
    assert (record["kind"], record["type"], record["line"]) == ("lost peer", "LostPeerError", None)
    assert record["message"] == (
        "a collective failed: another rank ended or stopped answering (Horovod has been shut down)"
    )


def test_what_was_raised_from_a_lost_peer_is_no_cause(run_dir):
    error = ValueError("no metrics")
    error.__cause__ = GONE
    fails(run_dir, 0, error)
    assert json.loads((run_dir / "errors/rank-0.json").read_text())["kind"] == "lost peer"


def test_ranks_that_called_different_collectives_are_told_what_horovod_says(run_dir):
    class HorovodInternalError(RuntimeError):
        pass

    for rank in (0, 1):
        fails(run_dir, rank, HorovodInternalError("Mismatched data types: One rank had type float32, …"))
    is_told(
        run_dir,
        "all ranks: the ranks called different collectives: Mismatched data types: One rank had type float32, … "
        "(full trace in run/logs/rank-0.log)",
        is_final=True,
        rank=None,
    )


def test_a_record_of_an_earlier_attempt_does_not_count(run_dir):
    now = time.time()
    fails(run_dir, 0, ValueError("of the first attempt"), time=now - 60)
    stalls(run_dir, 0, None, time=now - 60)
    line = fails(run_dir, 1, KeyError("of the second"), time=now)
    assert line_of(run_dir, since=now - 10).startswith(f"rank 1: KeyError: 'of the second' ({line}; ")


def test_a_full_disk_does_not_hide_an_error(tmp_path):
    (tmp_path / "errors").write_text("in the way")
    try:
        raise ValueError("the sky fell")
    except ValueError as error:
        record_error(tmp_path, 0, error)
    assert (tmp_path / "errors").read_text() == "in the way"


# Ranks that stood still: test_watchdog.py has those of real processes


def test_a_stuck_rank_is_told_from_those_that_wait_for_it(run_dir):
    stalls(run_dir, 0, "gradients", time=time.time() - 1)
    stalls(run_dir, 1, None)
    stalls(run_dir, 2, "gradients")
    fails(run_dir, 3, GONE)  # the group broke before its own watchdog had waited long enough
    is_told(
        run_dir,
        "rank 1 made no progress for 30 s at step 37 of 900 (in models/foo.py:12 forward); ranks 0 and 2 waited for "
        "it; stacks of all ranks: run/logs/stacks.txt",
        is_final=False,
        rank=1,
        num_workers=4,
    )
    assert (run_dir / "logs/stacks.txt").read_text() == (
        "=== rank 0\nThread of rank 0\n\n=== rank 1\nThread of rank 1\n\n=== rank 2\nThread of rank 2\n"
    )


def test_ranks_that_are_all_stuck_are_all_named(run_dir):
    for rank in (0, 1, 2):
        stalls(run_dir, rank, None)
    is_told(
        run_dir,
        "ranks 0, 1 and 2 made no progress for 30 s at step 37 of 900 (in models/foo.py:12 forward); "
        "stacks of all ranks: run/logs/stacks.txt",
        is_final=False,
        rank=None,
        num_workers=3,
    )


def test_a_rank_of_which_nothing_is_known_is_the_stuck_one(run_dir):
    stalls(run_dir, 0, "allgather")
    is_told(
        run_dir,
        "rank 1 made no progress for 30 s at step 37 of 900; rank 0 waited for it; "
        "stacks of all ranks: run/logs/stacks.txt",
        is_final=False,
        rank=1,
    )


def test_ranks_that_wait_for_each_other_are_told_with_what_each_waits_for(run_dir):
    stalls(run_dir, 0, "allgather")
    stalls(run_dir, 1, "gradients")
    is_told(
        run_dir,
        "the ranks waited for each other for 30 s at step 37 of 900: rank 0 in allgather, rank 1 in gradients; "
        "stacks of all ranks: run/logs/stacks.txt",
        is_final=False,
        rank=None,
    )


@pytest.mark.parametrize(("seconds", "cause"), [(-5, "ValueError"), (5, "made no progress")])
def test_of_an_error_and_a_stall_the_earlier_is_the_cause(run_dir, seconds, cause):
    now = time.time()
    stalls(run_dir, 0, None, time=now)
    fails(run_dir, 1, ValueError("the sky fell"), time=now + seconds)
    assert cause in line_of(run_dir)
