"""Rank 0 and the others before a training: threads as ranks, with Horovod's own store of addresses and real connections."""

import contextlib
import os
import queue
import secrets
import socket
import threading
import warnings
from multiprocessing.connection import Client
from types import SimpleNamespace

import numpy as np
import pytest

from runner.communicator import LostPeerError
from runner.diagnosis import diagnose, error_path, record_error
from runner.errors import LaunchError, RunnerError
from runner.executors import launcher_store, other_ranks
from runner.executors.launched import Launch
from runner.executors.other_ranks import ENDED, GONE, READY, Others, receive, unpacked
from tests.fakes import make_experiment

JOB = type("Job", (), {"experiment": make_experiment({"horovod.timeout_s": 30})})
ARRAYS = [np.arange(6.0).reshape(2, 3), np.arange(4)[::2]]  # the second is not contiguous


@pytest.fixture
def store(monkeypatch):
    """horovodrun's, and the environment in which a rank finds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from horovod.runner.http.http_server import RendezvousServer
    server = RendezvousServer()
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.start()))
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo")
    yield server
    server.stop()
    server._httpd.server_close()


class Follower:
    """A rank that waits."""

    def __init__(self, rank):
        host, port, key = launcher_store.find()
        self.connection = Client((host, port), authkey=key)
        self.inbox = queue.Queue()
        self.connection.send(rank)
        threading.Thread(target=receive, args=(self.connection, self.inbox), daemon=True).start()

    def gets(self):
        return unpacked(self.inbox.get(timeout=30))

    def says(self, word, record=None):
        self.connection.send((word, record))


def hang_up(connection):
    """As the end of a process does, also for a thread that reads."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ends(monkeypatch):
    """The exit codes of ranks whose rank 0 has gone."""
    codes = queue.Queue()
    monkeypatch.setattr(other_ranks, "os", SimpleNamespace(_exit=codes.put, dup=os.dup))
    return codes


@pytest.fixture
def others(store):
    """Rank 0 of 3."""
    found = Others(Launch(0, 3))
    yield found
    found._listener.close()
    for connection in found._connections.values():
        hang_up(connection)


def hand(others, job=JOB):
    """Hand the job in a thread; what it ends with."""
    ended = queue.Queue()

    def run():
        try:
            ended.put(others.hand(job, ARRAYS))
        except RunnerError as error:
            ended.put(error)

    threading.Thread(target=run, daemon=True).start()
    return ended


def test_all_ranks_get_the_job_and_begin_together(others, ends):
    handed = hand(others)
    one, two = Follower(1), Follower(2)
    for follower in (one, two):
        assert follower.gets() is JOB
        for mine, theirs in zip(follower.gets(), ARRAYS, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    one.says(READY)
    assert others.until(lambda: READY in others._said.values(), 30)
    assert (handed.empty(), one.inbox.empty()) == (True, True)  # the other is not ready
    two.says(READY)
    assert (handed.get(timeout=30), one.gets(), two.gets()) == (None, "go", "go")
    assert not others.all_said(ENDED)
    one.says(ENDED)
    two.says(ENDED)
    assert others.until(lambda: others.all_said(ENDED), 30)
    assert not others.failed()
    with pytest.raises(LaunchError, match="horovodrun trains one job a launch"):
        others.hand(JOB, ARRAYS)


def test_the_end_of_rank_0_is_that_of_the_others(others, ends):
    follower = Follower(1)
    assert others.until(lambda: 1 in others._connections, 30)
    hang_up(others._connections[1])
    assert ends.get(timeout=30) == 0
    hang_up(follower.connection)


def test_a_rank_that_is_gone_has_failed(others, ends, tmp_path):
    handed = hand(others)
    one, two = Follower(1), Follower(2)
    one.gets()
    hang_up(one.connection)
    assert isinstance(handed.get(timeout=30), LostPeerError)
    assert others.failed()
    assert others._said == {1: GONE}
    others.keep_records(tmp_path)
    assert list(tmp_path.iterdir()) == []
    hang_up(two.connection)


def test_a_rank_on_another_disk_sends_its_record(others, ends, tmp_path):
    try:
        raise ValueError("no such module")
    except ValueError as error:
        record_error(tmp_path / "there", 2, error)
    handed = hand(others)
    one, two = Follower(1), Follower(2)
    two.says(ENDED, error_path(tmp_path / "there", 2).read_text())
    assert isinstance(handed.get(timeout=30), LostPeerError)
    record_error(tmp_path / "here", 0, LostPeerError("another rank is gone"))
    others.keep_records(tmp_path / "here")
    told = str(diagnose(tmp_path / "here", 3, 0.0, None).error)
    assert told.startswith("rank 2: ValueError: no such module (")
    for follower in (one, two):
        hang_up(follower.connection)


def test_a_rank_that_is_not_there_in_time_is_named(others, ends):
    job = type("Job", (), {"experiment": make_experiment({"horovod.timeout_s": 0})})
    with pytest.raises(LaunchError) as late:
        others.hand(job, ARRAYS)
    assert str(late.value) == "rank 1 did not connect within 0 s (horovod.timeout_s)"


def test_nobody_connects_without_the_key_of_the_launch(others, ends):
    host, port, _ = launcher_store.find()
    with pytest.raises((OSError, EOFError, other_ranks.AuthenticationError)):
        Client((host, port), authkey=secrets.token_bytes())
    follower = Follower(1)
    assert others.until(lambda: list(others._connections) == [1], 30)
    hang_up(follower.connection)


def test_a_connection_on_which_nothing_is_said_is_looked_after(others, ends):
    follower = Follower(1)
    assert others.until(lambda: 1 in others._connections, 30)
    with socket.socket(fileno=os.dup(others._connections[1].fileno())) as end:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == other_ranks.KEEP_ALIVE_SECONDS
    hang_up(follower.connection)


def test_connections_are_on_the_network_of_the_launch(others):
    assert launcher_store.find()[0] == "127.0.0.1"


def test_a_launcher_that_is_gone_is_not_waited_for(store):
    store.stop()
    store._httpd.server_close()
    assert launcher_store.find() is None
    with pytest.raises(LaunchError, match=r"^horovodrun does not answer \("):
        launcher_store.leave(("127.0.0.1", 1), b"key")
    store.stop = store._httpd.server_close  # once is enough


def test_a_launch_of_one_has_nobody_to_wait_for():
    others = Others(Launch(0, 1))
    others.hand(JOB, ARRAYS)
    assert others.all_said(ENDED)
