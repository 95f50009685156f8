"""A study on paper, from planted results; and what a multirun that is one reports."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from PIL import Image
from rich.console import Console

from runner.report import study_page
from runner.report.console import Screen
from runner.schema import Study as StudyKind
from runner.tracking import NullRecord
from tests.fakes import make_experiment
from tests.test_study import planted, study, with_best_lr


def figures() -> Any:
    """Two rules, batches 1 and 4, two seeds; linear diverged once, none once failed for another reason."""
    trials = [
        planted(rule, 1, value, seed) for rule in ("none", "linear") for seed, value in ((0, 0.90), (1, 0.92))
    ]
    trials += [planted("none", 4, 0.5, 0), planted("none", 4, None, 1, status="failed")]
    trials += [planted("linear", 4, 0.9, 0), planted("linear", 4, None, 1)]
    return study(*trials)


def test_the_table_word_for_word() -> None:
    found = figures()
    assert study_page.text(found, found.exponent()) == [
        "── study of LR scaling: val/accuracy, the best of each job (higher is better)",
        "base LR 0.1: the best of 0.1 at batch 1",
        "batch  κ  workers × rows       none                        linear",
        "1      1  1 × 1                0.9100 ± 0.1271 (2)         0.9100 ± 0.1271 (2)",
        "4      4  1 × 1 × 4 simulated  0.5000 ± n/a (1), 1 failed  0.9000 ± n/a (1), 1 diverged",
        "mean ± 95 % interval (seeds)",
        "sqrt is better than none at batch 4: not shown: there is no job of sqrt at batch 4",
        "linear is better than sqrt at batch 4: not shown: there is no job of sqrt at batch 4",
        "exponent: n/a, it takes two batches with an LR that trained for every seed",
    ]


def test_the_exponent_s_lines_say_how_fine_the_grid_was() -> None:
    found = with_best_lr(1.0, 3)
    assert study_page.text(found, found.exponent())[-4:] == [
        "best LR ∝ batch^1.00 [1.00, 1.00] (1: linear, 0.5: square root); as fine as the LRs tried:",
        "  batch 1: 0.1, between 0.05 and 0.2",
        "  batch 4: 0.4, between 0.2 and 0.8",
        "  batch 16: 1.6, between 0.8 and 3.2",
    ]
    lowest = study(*(planted("none", kappa, -base, base=base) for kappa in (1, 2) for base in (0.1, 0.2)))
    lines = study_page.text(lowest, lowest.exponent())
    assert (
        lines[1]
        == "base LR 0.1: the best of 0.1, 0.2 at batch 1, at the end of the grid: the best may lie beyond"
    )
    assert lines[-1] == "  batch 2: 0.1, the lowest tried: the best may lie beyond"
    assert "best LR ∝ batch^0.00 [n/a, n/a]" in lines[-3]


def test_batches_of_workers_and_of_accumulation_are_rows_of_their_own() -> None:
    real = planted("none", 4, 0.8, num_workers=4, accumulation_steps=1)
    lines = study_page.text(study(planted("none", 1, 0.9), planted("none", 4, 0.7), real), None)
    assert lines[3:6] == [
        "1      1  1 × 1                0.9000 ± n/a (1)",
        "4      4  1 × 1 × 4 simulated  0.7000 ± n/a (1)",
        "4      4  4 × 1                0.8000 ± n/a (1)",
    ]


def test_the_csv_has_every_rule_batch_and_base_lr() -> None:
    rows = study_page.cells(figures())
    assert [(row["batch"], row["rule"], row["seeds"], row["diverged"], row["failed"]) for row in rows] == [
        (1, "none", 2, 0, 0),
        (1, "linear", 2, 0, 0),
        (4, "none", 1, 0, 1),
        (4, "linear", 1, 1, 0),
    ]
    assert len(study_page.cells(with_best_lr(1.0))) == 27


@pytest.mark.filterwarnings("error")
def test_the_plot_has_a_line_and_a_band_a_rule() -> None:
    found = with_best_lr(1.0, 3)
    with mpl.rc_context(study_page.STYLE):
        left, right = study_page._figure(found, found.exponent()).axes
    assert [line.get_label() for line in left.get_lines()] == ["none", "sqrt", "linear"]
    assert len(left.collections) == 3
    assert list(left.get_lines()[2].get_ydata()) == pytest.approx([0.9, 0.9, 0.9])
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["1", "4*", "16*"]
    assert right.get_title(loc="left") == "best LR ∝ batch^1.00"


@pytest.mark.filterwarnings("error")
def test_a_plot_of_what_has_no_interval_no_value_or_no_exponent(tmp_path: Path) -> None:
    for number, found in enumerate(
        (figures(), study(planted("none", 1, None)), study(planted("linear", 4, 0.5)), with_best_lr(0.5))
    ):
        study_page.draw(found, found.exponent(), tmp_path / f"{number}.png")
        with Image.open(tmp_path / f"{number}.png") as image:
            assert image.size == (840, 474)


class Record(NullRecord):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.artifacts: list[Path] = []

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        self.metrics |= metrics

    def log_artifact(self, path: Path) -> None:
        self.artifacts.append(path)


def job(kappa: int, seed: int, value: float | str, **settings: Any) -> study_page.Job:
    """A job of batch κ, its LR 0.1 × κ, which came to a value, or failed with an error."""
    chosen = {
        "scaling.num_workers": 1,
        "trainer.batch_size": 1,
        "trainer.accumulation_steps": kappa,
        "seed": seed,
        "study": StudyKind.lr_scaling,
    }
    failed = {"status": "FAILED", "best": {}, "error": value}
    done = {"status": "FINISHED", "best": {"val/loss": value}}
    return make_experiment({**chosen, **settings}), failed if isinstance(value, str) else done


def reported(folder: Path, *jobs: study_page.Job) -> tuple[int, Record, str]:
    """(how many diverged, what the parent run got, what was printed)."""
    record, console = Record(), Console(record=True, width=200, file=StringIO())
    diverged = study_page.report(jobs, folder, record, Screen(console))
    return diverged, record, console.export_text()


DIVERGED = "rank 0: TrainingError: step 3: the loss of rank 0 is not finite; type a lower optimizer.lr (full trace …)"


def test_a_multirun_that_is_a_study_ends_with_files_metrics_and_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "study"
    jobs = [job(kappa, seed, 0.5) for kappa in (1, 4) for seed in (0, 1)]
    diverged, record, printed = reported(folder, *jobs)
    assert diverged == 0
    assert record.artifacts == [folder]
    assert record.metrics == pytest.approx(
        {"study/exponent": 1.0, "study/exponent_low": 1.0, "study/exponent_high": 1.0}
    )
    assert {path.name for path in folder.iterdir()} == {"table.txt", "table.csv", "trials.csv", "plot.png"}
    table = (folder / "table.txt").read_text()
    assert table == printed
    assert "4      4  1 × 1 × 4 simulated  0.5000 ± 0.0000 (2)\n" in table
    with (folder / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [(each["seed"], each["batch"], each["value"]) for each in trials] == [
        ("0", "1", "0.5"), ("1", "1", "0.5"), ("0", "4", "0.5"), ("1", "4", "0.5"),
    ]  # fmt: skip


@pytest.mark.parametrize(("error", "count"), [(DIVERGED, 1), ("rank 1 was killed", 0)])
def test_a_diverged_job_is_counted_and_another_failure_is_not(tmp_path: Path, error: str, count: int) -> None:
    diverged, _, printed = reported(tmp_path, job(1, 0, 0.5), job(4, 0, error), job(4, 1, 0.5))
    assert diverged == count
    assert f"0.5000 ± n/a (1), 1 {'diverged' if count else 'failed'}\n" in printed


def test_jobs_of_which_none_is_a_trial_have_nothing_to_say(tmp_path: Path) -> None:
    dry = make_experiment({"study": StudyKind.lr_scaling}), {"status": "DRY_RUN"}
    assert reported(tmp_path / "study", dry)[0] == 0
    assert not (tmp_path / "study").exists()


def test_a_plot_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(study_page, "draw", broken)
    diverged, record, printed = reported(tmp_path / "study", job(1, 0, 0.5))
    assert diverged == 0
    assert printed.endswith("the plot could not be drawn: RuntimeError: no font\n")
    assert record.artifacts == [tmp_path / "study"]
