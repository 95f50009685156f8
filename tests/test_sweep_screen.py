"""The jobs of a sweep on screen: exact lines where there is no terminal, a table where there is one."""

import io
import types

import pytest
from rich.console import Console

from runner import secrets
from runner.report import sweep_screen
from runner.report.console import Screen
from runner.report.sweep_screen import SweepScreen
from tests.fakes import plan_of

# 1000 rows in batches of 10: 100 steps an epoch, 4 epochs.
PLAN = plan_of({"scaling.num_workers": 1, "trainer.batch_size": 10, "trainer.epochs": 4})


class Clock:
    """Seconds as the test sets them."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(sweep_screen, "time", types.SimpleNamespace(monotonic=found))
    return found


def plain(total=3):
    """(screen, what it has printed since the last look)."""
    file = io.StringIO()
    screen = SweepScreen(Screen(Console(file=file, soft_wrap=True, highlight=False)), total)
    screen.start()

    def printed():
        found = file.getvalue()
        file.seek(0)
        file.truncate()
        return found.splitlines()

    return screen, printed


def measured(epoch, loss):
    return {"epoch": epoch, "train/loss": 2 * loss, "val/loss": loss, "lr": 0.1, "seconds/training": 9.0}


def test_a_line_for_each_job_that_ended_and_how_long_the_rest_will_take(clock, capsys):
    screen, printed = plain(total=4)
    first, second, third, cached = (screen.job(n, [f"seed={n}", "a=b"][: 2 - n % 2]) for n in range(4))
    assert printed() == []
    first.began()
    clock.now += 2.0
    second.began()
    clock.now += 6.0
    screen.ended(0, "FINISHED", "val/loss 0.5", None)
    assert printed() == ["[1/4] job 0  seed=0 a=b  FINISHED  val/loss 0.5  8.0 s  (3 left, about 24 s)"]
    third.began()
    clock.now += 6.0
    screen.ended(1, "FAILED", "", "rank 0: ValueError: no")
    # Of the two that ended: 8 s and 12 s. One trains.
    assert printed() == ["[2/4] job 1  seed=1  FAILED  12.0 s  (2 left, about 20 s)"]
    assert capsys.readouterr().err == "error: job 1 (seed=1): rank 0: ValueError: no\n"
    screen.ended(3, "cached", "val/loss 0.25", None)
    assert printed() == ["[3/4] job 3  seed=3  cached  val/loss 0.25  (1 left, about 10 s)"]
    screen.ended(2, "PRUNED", "val/loss 0.75", None)
    assert printed() == ["[4/4] job 2  seed=2 a=b  PRUNED  val/loss 0.75  6.0 s"]
    assert cached is not third
    screen.stop()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.0, "1 s"), (99.4, "99 s"), (120.0, "2 min"), (5999.0, "100 min"), (9000.0, "2.5 h")],
)
def test_long_times_have_larger_units(clock, seconds, said):
    screen, printed = plain(total=2)
    screen.job(0, []).began()
    clock.now += seconds
    screen.ended(0, "FINISHED", "", None)
    (line,) = printed()
    assert line.endswith(f"(1 left, about {said})")


def test_a_long_job_says_now_and_then_where_it_is(clock):
    screen, printed = plain()
    job = screen.job(7, ["seed=7"])
    job.began()
    clock.now += 9.0
    job.measured(measured(1.0, 0.5), PLAN)
    assert printed() == []
    clock.now += 2.0
    job.measured(measured(1.25, 0.25), PLAN)
    assert printed() == ["job 7  epoch 1.25  train/loss 0.5  val/loss 0.25  lr 0.1"]
    clock.now += 9.0
    job.measured(measured(2.0, 0.125), PLAN)
    assert printed() == []
    clock.now += 2.0
    job.measured(measured(3.0, 0.125), PLAN)
    assert len(printed()) == 1


def test_what_a_training_prints_is_named_and_its_frame_left_out(clock, tmp_path):
    screen, printed = plain()
    job = screen.job(2, ["seed=2"])
    job.banner(tmp_path, PLAN, (), "run", "uri")
    job.start(400)
    job.line("restart 1 of 3: rank 1 was killed")
    job.stop()
    job.finished({}, None, None)
    assert printed() == ["job 2: restart 1 of 3: rank 1 was killed"]


def test_a_job_that_was_not_begun_has_no_seconds(clock):
    screen, printed = plain(total=1)
    screen.job(0, ["seed=0"])
    screen.ended(0, "KILLED", "", None)
    assert printed() == ["[1/1] job 0  seed=0  KILLED"]


# On a terminal


def terminal(total=3):
    console = Console(
        record=True,
        force_terminal=True,
        width=90,
        file=io.StringIO(),
        legacy_windows=False,
        color_system=None,
    )
    screen = SweepScreen(Screen(console), total)

    def table():
        console.export_text()  # forgets what came before
        console.print(screen._table())
        return [line.rstrip() for line in console.export_text().splitlines()]

    return screen, table


def cells(line):
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_table_has_what_runs_how_far_it_is_and_when_it_will_end(clock):
    screen, table = terminal()
    first, second, third = (screen.job(number, [f"seed={number}"]) for number in range(3))
    first.began()
    second.began()
    clock.now += 10.0
    first.measured(measured(1.0, 0.5), PLAN)
    second.measured(measured(4.0, 0.25), PLAN)
    screen.ended(1, "FINISHED", "val/loss 0.25", None)
    lines = table()
    assert lines[0] == "1 of 3 jobs  (2 left, about 20 s)"
    assert cells(lines[2].replace("┃", "│")) == ["job", "overrides", "status", "metrics", "ETA"]
    assert [cells(line) for line in lines[4:7]] == [
        ["1", "seed=1", "FINISHED", "val/loss 0.25", ""],
        ["0", "seed=0", "trains", "val/loss 0.5", "30 s"],  # a quarter took 10 s
        ["2", "seed=2", "waits", "", ""],
    ]
    assert third is not first


def test_the_table_keeps_all_that_run_and_the_last_that_ended(clock):
    screen, table = terminal(total=30)
    for number in range(20):
        screen.job(number, [f"seed={number}"])
    for number in range(12):
        clock.now += 1.0
        screen.ended(number, "FINISHED", "", None)
    shown = [int(cells(line)[0]) for line in table() if line.startswith("│")]
    assert shown == [8, 9, 10, 11, *range(12, 20)]
    for number in range(20, 30):
        screen.job(number, [])
    shown = [int(cells(line)[0]) for line in table() if line.startswith("│")]
    assert shown == list(range(18, 30))


def test_no_secret_and_no_markup_reaches_the_table(clock, monkeypatch):
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    secrets.learn({"password": "tellnobodythis"})
    screen, table = terminal()
    screen.job(0, ["a=[red]b[/red]", "b=tellnobodythis"])
    shown = cells(next(line for line in table() if line.startswith("│")))[1]
    assert shown == f"a=[red]b[/red] b={secrets.MASK}"


def test_a_failure_is_told_above_the_table_which_is_gone_in_the_end(clock):
    screen, _ = terminal()
    screen.start()
    job = screen.job(0, ["seed=0"])
    job.began()
    screen.ended(0, "FAILED", "", "rank 0: ValueError: no")
    screen.stop()
    screen.stop()
    printed = screen._console.file.getvalue()
    assert printed.count("error: job 0 (seed=0): rank 0: ValueError: no") == 1
    assert screen._live is None
