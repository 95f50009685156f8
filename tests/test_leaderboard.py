"""The jobs of a sweep in order, on screen and as CSV."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from runner import secrets
from runner.report.console import Screen
from runner.report.leaderboard import Row, board, row_of, rows_of
from runner.report.leaderboard_table import cut, duration, show, to_csv
from runner.schema import Mode
from runner.tracking.found import Found

RAN = {"epochs": 27.0, "seconds": 48.25}


def jobs() -> list[Row]:
    """One of each kind."""
    failed = "rank 1: ValueError: no, not so"
    return [
        Row(0, ("optimizer.lr=0.1", "model=cnn", "seed=1"), "FINISHED", 0.25, {"val/accuracy": 0.9}, run_id="a", **RAN),
        Row(1, ("optimizer.lr=10", "model=cnn", "seed=1"), "FAILED", 0.01, run_id="b", reason=failed, log="/x/rank-1.log"),
        Row(2, ("optimizer.lr=0.01", "model=mlp", "seed=1"), "FINISHED", 0.125, {"val/accuracy": 0.95}, cached="z", **RAN),
        Row(3, ("optimizer.lr=1", "model=mlp", "seed=1"), "PRUNED", 0.5, reason="after 3 of 27 epochs", epochs=3.0),
        Row(4, ("optimizer.lr=1", "model=cnn", "seed=1")),
        Row(5, ("optimizer.lr=2", "model=cnn", "seed=1"), "KILLED"),
    ]  # fmt: skip


def test_the_best_comes_first_then_what_has_no_value_then_what_failed() -> None:
    assert [row.number for row in board("s", None, "val/loss", Mode.min, jobs()).rows] == [2, 0, 3, 4, 1, 5]
    found = board("s", None, "val/loss", Mode.max, jobs())
    assert [row.number for row in found.rows] == [3, 0, 2, 4, 1, 5]
    assert [row.number for row in found.ranked] == [
        3,
        0,
        2,
    ]  # though job 1 measured something before it failed
    assert [row.number for row in found.lost] == [1, 5]


def test_equal_jobs_stay_in_the_order_of_their_numbers() -> None:
    rows = [Row(number, status="FINISHED", value=0.5) for number in (3, 1, 2)]
    for mode in Mode:
        assert [row.number for row in board("s", None, "m", mode, rows).rows] == [1, 2, 3]


def test_columns_are_the_overrides_that_differ() -> None:
    found = board("s", None, "val/loss", Mode.min, jobs())
    assert found.keys == ["optimizer.lr", "model", "seed"]
    assert found.columns == ["optimizer.lr", "model"]
    assert found.others == ["val/accuracy"]
    assert found.counts == "6 jobs: 2 finished, 1 pruned, 1 running, 1 failed, 1 killed"
    some = [
        Row(0, ("+model.extra=1", "model=cnn")),
        Row(1, ("~model.extra", "model=cnn")),
        Row(2, ("model=cnn",)),
    ]
    ragged = board("s", None, "val/loss", Mode.min, some)
    assert ragged.columns == ["model.extra"]
    assert [row.overrides.get("model.extra") for row in ragged.rows] == ["1", "(removed)", None]


def test_an_override_keeps_all_that_follows_its_first_equals_sign() -> None:
    assert Row(0, ("a={b: 1, c: x=y}", "group@pkg=option")).overrides == {
        "a": "{b: 1, c: x=y}",
        "group@pkg": "option",
    }


def shown(rows: list[Row], **settings: object) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, highlight=False, soft_wrap=True, **settings)  # type: ignore[arg-type]
    show(board("multirun 10-00-00", "p", "val/loss", Mode.min, rows), Screen(console))
    return output.getvalue().splitlines()


def test_the_table_word_for_word() -> None:
    assert shown(jobs()) == [
        "── leaderboard of multirun 10-00-00: best val/loss, lower is better",
        "   job  val/loss  optimizer.lr  model  val/accuracy  epochs  time  status",
        "1  2    0.125     0.01          mlp    0.95          27      48 s  FINISHED (cached)",
        "2  0    0.25      0.1           cnn    0.9           27      48 s  FINISHED",
        "3  3    0.5       1             mlp    –             3       –     PRUNED after 3 of 27 epochs",
        "–  4    –         1             cnn    –             –       –     RUNNING",
        "6 jobs: 2 finished, 1 pruned, 1 running, 1 failed, 1 killed",
        "job 1 FAILED: rank 1: ValueError: no, not so  [optimizer.lr=10 model=cnn]  log /x/rank-1.log",
        "job 5 KILLED: it left no reason  [optimizer.lr=2 model=cnn]",
    ]


def test_of_many_jobs_twenty_are_shown_and_the_failed_ones() -> None:
    finished = [Row(number, (f"a={number}",), "FINISHED", float(number)) for number in range(190)]
    lines = shown(
        [*finished, *(Row(number, (f"a={number}",), "FAILED", reason="no") for number in range(190, 200))]
    )
    assert lines[21].split() == ["20", "19", "19", "19", "–", "–", "FINISHED"]
    assert lines[22:25] == [
        "… and 170 more",
        "200 jobs: 190 finished, 10 failed",
        "job 190 FAILED: no  [a=190]",
    ]
    assert len(lines) == 34


def test_a_terminal_that_is_too_narrow_gets_the_parameters_in_one_column() -> None:
    style = {"force_terminal": True, "color_system": None}
    wide = shown(jobs(), width=110, **style)
    assert wide[2].replace("┃", "").split()[:4] == ["job", "val/loss", "optimizer.lr", "model"]
    lines = shown(jobs(), width=60, **style)
    assert lines[3:6] == [
        "┃   ┃ job ┃ val/loss ┃ overrides        ┃ status           ┃",
        "┡━━━╇━━━━━╇━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━┩",
        "│ 1 │ 2   │ 0.125    │ optimizer.lr=0.0 │ FINISHED         │",
    ]
    assert max(len(line) for line in lines if line[:1] in "│┃") == 60


def test_no_text_is_taken_for_style() -> None:
    rows = [Row(number, (f"a=[red]wide[/red]{number}",), "FINISHED", 0.5) for number in range(3)]
    lines = shown(rows, force_terminal=True, width=100, color_system=None)
    assert sum(f"[red]wide[/red]{number}" in lines[number + 4] for number in range(3)) == 3


def test_the_csv_has_all_rows_all_overrides_and_whole_numbers() -> None:
    rows = [*jobs()[:2], Row(2, ('a="x,y"',), "FINISHED", 0.1 + 0.2, {"val/f1": 1 / 3})]
    assert to_csv(board("s", None, "val/loss", Mode.min, rows)).encode() == (
        b"rank,job,status,optimizer.lr,model,seed,a,val/loss,val/accuracy,val/f1,epochs,seconds,run_id,cached,reason,log\r\n"
        b"1,0,FINISHED,0.1,cnn,1,,0.25,0.9,,27.0,48.25,a,,,\r\n"
        b'2,2,FINISHED,,,,"""x,y""",0.30000000000000004,,0.3333333333333333,,,,,,\r\n'
        b',1,FAILED,10,cnn,1,,0.01,,,,,b,,"rank 1: ValueError: no, not so",/x/rank-1.log\r\n'
    )


def child(number: int, ended: str = "FINISHED", **tags: str) -> Found:
    named = {f"runner.{name}": value for name, value in tags.items()}
    return Found(f"run-{number}", "0", f"job {number}", ended, 0, 1, {"runner.job": str(number), **named}, {})


def test_a_child_run_becomes_a_row(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / f"rank-{rank}.log").touch()
    metrics = {
        "best/val/loss": 0.5,
        "best/val/f1": 0.25,
        "best/epoch": 2.0,
        "val/loss": 9.0,
        "epoch": 4.0,
        "seconds/total": 7.5,
    }
    finished = Found(
        "r", "0", "n", "FINISHED", 0, 1, {"runner.job": "7", "runner.overrides": '["a=1"]'}, metrics
    )
    failed = child(8, "FAILED", error="rank 1: no", run_dir=str(tmp_path))
    elsewhere = child(9, "FAILED", error="rank 2: no", run_dir=str(tmp_path / "gone"))
    early = child(10, "FAILED", error="a rule", run_dir=str(tmp_path))
    pruned = child(11, "FINISHED", status="PRUNED", pruned="after 1 of 2 epochs", cached="old")
    not_ended = child(12, "RUNNING", overrides='["cut off')
    logs = [str(tmp_path / "logs" / f"rank-{rank}.log") for rank in (0, 1)]
    assert rows_of([finished, failed, elsewhere, early, pruned, not_ended], "val/loss") == [
        Row(7, ("a=1",), "FINISHED", 0.5, {"val/f1": 0.25}, 4.0, 7.5, "r"),
        Row(8, (), "FAILED", run_id="run-8", reason="rank 1: no", log=logs[1]),
        Row(9, (), "FAILED", run_id="run-9", reason="rank 2: no"),
        Row(10, (), "FAILED", run_id="run-10", reason="a rule", log=logs[0]),
        Row(11, (), "PRUNED", run_id="run-11", reason="after 1 of 2 epochs", cached="old"),
        Row(12, (), "RUNNING", run_id="run-12"),
    ]


def test_a_job_that_was_trained_again_is_its_newest_run_and_other_children_are_no_jobs() -> None:
    newest_first = [child(0), child(0, "KILLED"), Found("x", "0", "n", "FINISHED", 0, 1, {}, {})]
    assert [(row.number, row.status) for row in rows_of(newest_first, "m")] == [(0, "FINISHED")]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.7976931348623157e308, -math.inf])
def test_what_is_not_finite_has_no_place(value: float) -> None:
    found = Found("r", "0", "n", "FINISHED", 0, 1, {"runner.job": "0"}, {"best/m_1_": value})
    assert rows_of([found], "m[1]") == [
        Row(0, (), "FINISHED", None, run_id="r")
    ]  # the name as MLflow takes it


def test_a_result_becomes_the_same_row(tmp_path: Path) -> None:
    result = {
        "run_id": "r",
        "status": "FINISHED",
        "best": {"val/loss": 0.5, "val/f1": 0.25, "train/loss": 9.0, "epoch": 2.0, "lr": 0.1},
        "metrics": {"val/loss": 0.75, "epoch": 4.0},
        "seconds": {"total": 7.5},
    }
    row = row_of(7, ("a=1",), result, tmp_path, "val/loss")
    assert row == Row(7, ("a=1",), "FINISHED", 0.5, {"val/f1": 0.25}, 4.0, 7.5, "r")
    assert row_of(7, (), result, tmp_path, "train/loss").value == 9.0
    refused = row_of(8, ("a=2",), {"status": "FAILED", "error": "a=2: no"}, tmp_path, "val/loss")
    assert refused == Row(8, ("a=2",), "FAILED", reason="a=2: no")


def test_secrets_stay_out_of_a_board() -> None:
    secrets.learn({"password": "hunter2-hunter2"})
    rows = [Row(0, ("x.api_token=abcdefgh", "y=1"), "FAILED", reason="no hunter2-hunter2"), Row(1, ("y=2",))]
    found = board("s", None, "val/loss", Mode.min, rows)
    assert found.lost[0].asked == ("x.api_token=<secret>", "y=1")
    assert found.lost[0].reason == "no <secret>"


def test_short_texts() -> None:
    assert [duration(seconds) for seconds in (None, 4.21, 48.25, 99.4, 99.6, 204, 7560)] == [
        "–", "4.2 s", "48 s", "99 s", "1.7 min", "3.4 min", "2.1 h",
    ]  # fmt: skip
    assert [cut("abcdef", 6), cut("abcdef", 5)] == ["abcdef", "abcd…"]
