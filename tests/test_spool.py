"""The file between a training and MLflow: what a kill leaves of it, and what is read of that."""

import pytest

from runner import secrets
from runner.schema import OnOutage, Tracking
from runner.tracking import delivery, open_record
from runner.tracking.spool import DRIVER, RANK_0_FILES, Address, Line, Spool


def entry(number):
    return {"kind": "tags", "tags": {"number": number}}


def entries(spool):
    return [line.entry["tags"]["number"] for line in spool.pending()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tracking" / "driver.jsonl"


def test_lines_are_read_in_order_from_what_is_delivered_on_also_by_another_process(tmp_path):
    spool = Spool(tmp_path, DRIVER)
    assert spool.is_empty
    for number in range(4):
        spool.append(entry(number))
    assert entries(spool) == [0, 1, 2, 3]
    spool.advance(spool.pending()[1].end)
    assert entries(spool) == [2, 3]
    assert entries(Spool(tmp_path, DRIVER)) == [2, 3]
    Spool(tmp_path, DRIVER).append(entry(4))
    assert entries(spool) == [2, 3, 4]


def test_nan_infinity_and_any_text_survive(tmp_path):
    Spool(tmp_path, DRIVER).append({"kind": "metrics", "metrics": {"a": float("nan"), "b": float("-inf")}})
    Spool(tmp_path, DRIVER).append({"kind": "text", "text": 'κ\n"\\\u2028', "name": "x"})
    numbers, text = (line.entry for line in Spool(tmp_path, DRIVER).pending())
    assert str(numbers["metrics"]) == "{'a': nan, 'b': -inf}"
    assert text["text"] == 'κ\n"\\\u2028'


@pytest.mark.parametrize("left", [1, 10, 30])
def test_a_line_that_a_kill_tore_is_not_read_and_the_next_one_is_whole(tmp_path, path, left):
    spool = Spool(tmp_path, DRIVER)
    spool.append(entry(0))
    size = path.stat().st_size
    spool.append(entry(1))
    with path.open("r+b") as file:
        file.truncate(size + left)
    assert entries(Spool(tmp_path, DRIVER)) == [0]
    again = Spool(tmp_path, DRIVER)
    again.append(entry(2))
    assert entries(again) == [0, 2]


def test_a_torn_line_after_what_is_delivered_is_cut_there(tmp_path, path):
    spool = Spool(tmp_path, DRIVER)
    spool.append(entry(0))
    spool.advance(spool.pending()[0].end)
    with path.open("ab") as file:
        file.write(b'{"kind": "ta')
    again = Spool(tmp_path, DRIVER)
    assert again.is_empty
    again.append(entry(1))
    assert entries(again) == [1]


def test_more_than_is_read_at_once_is_all_read(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.tracking.spool.READ_BYTES", 100)
    spool, found = Spool(tmp_path, DRIVER), []
    for number in range(20):
        spool.append(entry(number))
    while lines := spool.pending():
        assert len(lines) < 5
        found += [line.entry["tags"]["number"] for line in lines]
        spool.advance(lines[-1].end)
    assert found == list(range(20))


def test_nothing_is_left_of_a_removed_one_and_it_begins_anew(tmp_path):
    spool = Spool(tmp_path, DRIVER)
    spool.append(entry(0))
    spool.advance(spool.pending()[0].end)
    spool.remove()
    assert not list(tmp_path.iterdir())
    spool.append(entry(1))
    assert entries(spool) == entries(Spool(tmp_path, DRIVER)) == [1]


def test_who_has_given_up_moves_no_mark(tmp_path):
    slow, next_one = Spool(tmp_path, DRIVER), Spool(tmp_path, DRIVER)
    for number in range(2):
        slow.append(entry(number))
    end = slow.pending()[0].end
    slow.give_up()
    next_one.advance(next_one.pending()[1].end)
    slow.advance(end)
    assert entries(Spool(tmp_path, DRIVER)) == []


def test_an_address_is_read_back_or_none(tmp_path):
    assert Address.read(tmp_path) is None
    Address("http://x", None, was_put_off=True).write(tmp_path)
    assert Address.read(tmp_path) == Address("http://x", None, was_put_off=True)


def line(number, kind, name=None):
    return Line(number, {"kind": kind} | ({"name": name} if name else {}))


def test_metrics_that_follow_each_other_are_one_request(monkeypatch):
    monkeypatch.setattr(delivery, "LINES", 3)
    kinds = ["metrics", "metrics", "tags", "metrics", "metrics", "metrics", "metrics", "text"]
    groups = delivery._groups([line(number, kind) for number, kind in enumerate(kinds)])
    assert [[each.end for each in group] for group in groups] == [[0, 1], [2], [3, 4, 5], [6], [7]]


def test_of_checkpoints_under_one_name_the_newest_is_sent(tmp_path):
    names = ["last", "best", "last", None, "last"]
    lines = [line(number, "checkpoint" if name else "model", name) for number, name in enumerate(names)]
    assert [group[0].end for group in delivery._newest(lines)] == [1, 3, 4]
    assert Spool(tmp_path, RANK_0_FILES).is_files


def test_neither_lines_nor_the_address_hold_a_secret(tmp_path, path, monkeypatch):
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(secrets, "_uris", {})
    monkeypatch.setattr(secrets, "_pattern", None)
    uri = "http://bob:hunter22@127.0.0.1:9"
    secrets.learn_from_process([f"tracking.uri={uri}"])
    settings = Tracking(uri=uri, on_outage=OnOutage.spool)
    record = open_record(settings, tmp_path, tmp_path, "a run")
    record.log_params({"tracking.uri": uri, "dataset.password": "short"})
    record.log_text(f"uri: {uri}", "config.yaml")
    record.log_event(f"failed at {uri}")
    record.set_tags({"where": uri})
    record.finish("FAILED", f"no answer from {uri}")
    record.close(0.0)
    for file in (path, Address.path(tmp_path)):
        assert "bob" not in file.read_text()
        assert "hunter22" not in file.read_text()
        assert "short" not in file.read_text()
        assert secrets.MASK in file.read_text()
    assert Address.read(tmp_path) == Address(uri, None, was_put_off=True)
