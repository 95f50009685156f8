"""A study on paper: table (text and CSV), trials, plot; on screen, in the multirun's folder and on its parent run."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import NOT_FINITE, RunnerError
from runner.report.console import Screen
from runner.report.page import BLUE, DPI, INK, ORANGE, QUIET, STYLE, WIDTH, area, number, page
from runner.report.study import Exponent, Mean, Study, Trial, by_seed, mean_of, trial
from runner.schema import Experiment
from runner.tracking import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (INK, BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", QUIET)  # Okabe and Ito 2008
MARKERS = "osD^vP*X"
MADE_OF = "workers × rows"
Job = tuple[Experiment, Mapping[str, Any]]  # with its result


def report(jobs: Sequence[Job], folder: Path, parent: RunRecord, screen: Screen) -> int:
    """Write table.txt, table.csv, trials.csv and plot.png to `folder`, print the table, and log all of it with the
    exponent; returns how many of the jobs failed because they diverged."""
    trials = [each for each in (_trial(*job) for job in jobs) if each is not None]
    diverged = [NOT_FINITE in str(result.get("error")) for _, result in jobs]
    if not trials:
        return 0
    settings = jobs[0][0].checkpoint
    study = Study(trials, settings.monitor, settings.mode)
    exponent = study.exponent()
    folder.mkdir(parents=True, exist_ok=True)
    lines = text(study, exponent)
    (folder / "table.txt").write_text("\n".join(lines) + "\n")
    _write_csv(folder / "table.csv", cells(study))
    _write_csv(folder / "trials.csv", [{**vars(each), "batch": each.batch} for each in trials])
    for line in lines:
        screen.line(line)
    try:
        draw(study, exponent, folder / "plot.png")
    except Exception as error:  # noqa: BLE001 (matplotlib raises many types; worth a line, not a study)
        screen.line(f"the plot could not be drawn: {type(error).__name__}: {error}")
    parent.log_artifact(folder)
    parent.log_metrics(metrics(exponent))
    return sum(diverged)


def text(study: Study, exponent: Exponent | None) -> list[str]:
    """Rules against batches at the tuned base LR, the verdicts, and the exponent with what it rests on."""
    grid = ", ".join(f"{lr:g}" for lr in study.base_lrs)
    direction = "higher" if study.sign > 0 else "lower"
    makeups = {each.made_of: each for each in sorted(study.trials, key=lambda each: each.batch)}
    rows = [["batch", "κ", MADE_OF, *study.rules]]
    for made_of, any_trial in makeups.items():
        batch = any_trial.batch
        here = [[each for each in study.cell(rule, batch) if each.made_of == made_of] for rule in study.rules]
        rows.append([str(batch), f"{any_trial.kappa:g}", made_of, *(_cell(trials) for trials in here)])
    lines = [
        f"── study of LR scaling: {study.monitor}, the best of each job ({direction} is better)",
        f"base LR {study.base_lr:g}: the best of {grid} at batch {study.batches[0]}{_end_of_grid(study)}",
        *_aligned(rows),
        "mean ± 95 % interval (seeds)",
        *(verdict.line() for verdict in study.verdicts()),
    ]
    if exponent is None:
        return [*lines, "exponent: n/a, it takes two batches with an LR that trained for every seed"]
    low, high = (f"{value:.2f}" if math.isfinite(value) else "n/a" for value in (exponent.low, exponent.high))
    lines.append(
        f"best LR ∝ batch^{exponent.value:.2f} [{low}, {high}] (1: linear, 0.5: square root); as fine as the LRs tried:"
    )
    return lines + [f"  batch {batch}: {_best(found)}" for batch, found in exponent.best.items()]


def cells(study: Study) -> list[dict[str, Any]]:
    """Every rule, batch and base LR as a row of table.csv."""
    rows = []
    for batch in study.batches:
        for rule in study.rules:
            for base_lr in study.base_lrs:
                trials = study.cell(rule, batch, base_lr)
                if trials:
                    rows.append(_row(trials))
    return rows


def metrics(exponent: Exponent | None) -> dict[str, float]:
    if exponent is None:
        return {}
    found = {"exponent": exponent.value, "exponent_low": exponent.low, "exponent_high": exponent.high}
    return {f"study/{name}": value for name, value in found.items() if math.isfinite(value)}


def draw(study: Study, exponent: Exponent | None, path: Path) -> None:
    """Best metric against global batch, a line a rule with its interval; beside it the best LR against batch."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = _figure(study, exponent)
        figure.savefig(path, dpi=DPI)


def _figure(study: Study, exponent: Exponent | None) -> Figure:
    height = 3.3
    seeds = len({each.seed for each in study.trials})
    figure = page(
        "Learning-rate scaling", f"{seeds} seeds, 95 % intervals", f"base LR {study.base_lr:g}", height
    )
    left = area(figure, 0.65, 0.5, 3.2, height - 0.75)
    for index, rule in enumerate(study.rules):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        shown = [(batch, _mean(study.cell(rule, batch))) for batch in study.batches]
        points = [(batch, mean) for batch, mean in shown if mean.seeds]
        batches, means = [batch for batch, _ in points], [mean.mean for _, mean in points]
        left.plot(batches, means, color=colour, marker=marker, markersize=4, linewidth=1.4, label=rule)
        if all(mean.seeds > 1 for _, mean in points) and points:
            low, high = [mean.low for _, mean in points], [mean.high for _, mean in points]
            left.fill_between(batches, low, high, color=colour, alpha=0.15, linewidth=0)
    if study.monitor.endswith("accuracy"):
        left.set_ylim(top=min(1.0, left.get_ylim()[1]))
    left.legend(frameon=False, fontsize=8, loc="best")
    _batch_axis(left, study)
    left.set_title(study.monitor, size=8, loc="left", color=INK)
    if exponent is not None:
        right = area(figure, 4.75, 0.5, WIDTH - 4.95, height - 0.75)
        _best_lrs(right, study, exponent)
    return figure


def _best_lrs(axes: Axes, study: Study, exponent: Exponent) -> None:
    batches, best = list(exponent.best), list(exponent.best.values())
    lrs = [each.lr for each in best]
    below = [each.lr - (each.below or each.lr) for each in best]
    above = [(each.above or each.lr) - each.lr for each in best]
    axes.errorbar(batches, lrs, yerr=[below, above], fmt="o", color=INK, markersize=4, elinewidth=1)
    middle = math.exp(sum(map(math.log, batches)) / len(batches))
    centre = math.exp(sum(map(math.log, lrs)) / len(lrs))
    fitted = [centre * (batch / middle) ** exponent.value for batch in batches]
    axes.plot(batches, fitted, color=BLUE, linewidth=1.2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    _batch_axis(axes, study)
    axes.set_title(f"best LR ∝ batch^{exponent.value:.2f}", size=8, loc="left", color=INK)
    axes.set_ylabel("bars: to the next LRs tried", size=8)


def _batch_axis(axes: Axes, study: Study) -> None:
    """Its ticks are the batches; a star says that accumulation simulated it."""
    from matplotlib.ticker import NullLocator

    simulated = {each.batch for each in study.trials if each.accumulation_steps > 1}
    real = {each.batch for each in study.trials if each.accumulation_steps == 1}
    axes.set_xscale("log")
    axes.set_xticks(study.batches, [f"{batch}{'*' * (batch in simulated - real)}" for batch in study.batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("global batch" + " (* simulated)" * bool(simulated - real), size=8)


def _trial(experiment: Experiment, result: Mapping[str, Any]) -> Trial | None:
    try:
        return trial(experiment, result)
    except RunnerError:  # refused by its rule: the list of jobs has said so
        return None


def _mean(trials: Sequence[Trial]) -> Mean:
    return mean_of(list(by_seed(trials).values()))


def _row(trials: Sequence[Trial]) -> dict[str, Any]:
    first, mean = trials[0], _mean(trials)
    found = {
        "batch": first.batch,
        "kappa": first.kappa,
        "made_of": " or ".join(dict.fromkeys(each.made_of for each in trials)),
        "rule": first.rule,
        "base_lr": first.base_lr,
        "scaled_lr": first.scaled_lr,
        "mean": mean.mean,
        "low": mean.low,
        "high": mean.high,
        "seeds": mean.seeds,
    }
    return found | {status: _count(trials, status) for status in ("diverged", "failed")}


def _count(trials: Sequence[Trial], status: str) -> int:
    return sum(each.status == status for each in trials)


def _cell(trials: Sequence[Trial]) -> str:
    """0.9850 ± 0.0021 (5), 1 diverged"""
    if not trials:
        return "–"
    mean = _mean(trials)
    half = f"{mean.half:.4f}" if mean.seeds > 1 else "n/a"
    parts = [f"{mean.mean:.4f} ± {half} ({mean.seeds})"] if mean.seeds else []
    counts = {status: _count(trials, status) for status in ("diverged", "failed")}
    return ", ".join(parts + [f"{count} {status}" for status, count in counts.items() if count])


def _best(found: Any) -> str:
    if found.below is None and found.above is None:
        return f"{found.lr:g}, the only one tried"
    if found.below is None or found.above is None:
        end = "lowest" if found.below is None else "highest"
        return f"{found.lr:g}, the {end} tried: the best may lie beyond"
    return f"{found.lr:g}, between {found.below:g} and {found.above:g}"


def _end_of_grid(study: Study) -> str:
    is_end = len(study.base_lrs) > 1 and study.base_lr in (study.base_lrs[0], study.base_lrs[-1])
    return ", at the end of the grid: the best may lie beyond" if is_end else ""


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
