"""Pictures of a run: its curves here, what the model does with the validation rows in predictions.py."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.report.page import (
    BLUE,
    DPI,
    INK,
    ORANGE,
    STYLE,
    WIDTH,
    area,
    fitting,
    number,
    page,
)
from runner.report.predictions import predictions
from runner.report.samples import samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[dict[str, float]]
Numbers = npt.NDArray[np.float64]
End = tuple[float, str, str]  # last value, text, colour
DECADES = 2  # from which a logarithmic scale reads better
LARGEST = 1e30  # nothing beyond it can be drawn, such as the perplexity of a model that diverged
LABEL_GAP = 14  # pixels
PANELS = 12
MARKED = 40  # points, up to which each is marked


def draw(folder: Path, history: History, examined: dict[str, Any], title: str) -> list[Path]:
    """Write the PNGs of a run to `folder` and return their paths.

    `history` has the metrics of each epoch or validation in order, `examined` is the result of runner.examine.
    """
    import matplotlib

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells of its cache
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE):
        figures = curves(history, title) | predictions(examined, title) | samples(examined, title)
        for name, figure in figures.items():
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=DPI)
    return paths


def curves(history: History, title: str) -> dict[str, Figure]:
    """The figures of the metrics that there are."""
    names = dict.fromkeys(key for metrics in history for key in metrics)
    figures = {}
    if losses := [key for key in ("train/loss", "val/loss") if key in names]:
        figures["loss"] = _single(history, losses, "Loss", _best(history), title)
    if others := _others(list(names)):
        figures["metrics"] = _panels(history, others, title)
    if "lr" in names:
        figures["lr"] = _single(history, ["lr"], "Learning rate", "", title)
    speed = "throughput/samples_per_second"
    if speed in names:
        detail = "training rows a second, all workers"
        figures["throughput"] = _single(history, [speed], "Throughput", detail, title, from_zero=True)
    return figures


def _others(names: Sequence[str]) -> list[list[str]]:
    """Groups of metrics that share a panel: the same quantity of val/ and train/."""
    groups: dict[str, list[str]] = {}
    for name in names:
        kind, _, quantity = name.partition("/")
        if kind in ("val", "train") and quantity != "loss":
            groups.setdefault(quantity, []).append(name)
        elif kind == "norm":
            groups[name] = [name]
    return sorted(groups.values(), key=lambda group: group[0].startswith("norm/"))  # those last


def _best(history: History) -> str:
    epochs, losses = _series(history, "val/loss")
    if not np.isfinite(losses).any():
        return ""
    best = int(np.nanargmin(losses))
    return f"lowest val {number(losses[best])} at epoch {number(epochs[best])}"


def _single(
    history: History, names: Sequence[str], what: str, detail: str, title: str, from_zero: bool = False
) -> Figure:
    from matplotlib.ticker import FuncFormatter

    height = 3.1
    figure = page(what, detail, title, height)
    axes = area(figure, 0.75, 0.5, WIDTH - 2.0, height - 0.5)
    axes.set_xlabel("epoch")
    ends = _plot(axes, history, names)
    if from_zero:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    _label_ends(axes, ends)
    return figure


def _panels(history: History, groups: Sequence[Sequence[str]], title: str) -> Figure:
    shown = groups[:PANELS]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    width, height = WIDTH / columns, 1.9 if columns > 1 else 3.2
    detail = f"{len(shown)} of {len(groups)}" if len(shown) < len(groups) else ""
    figure = page("Metrics", detail, title, rows * height)
    for index, names in enumerate(shown):
        row, column = divmod(index, columns)
        bottom = (rows - 1 - row) * height
        axes = area(figure, column * width + 0.6, bottom + 0.45, width - 0.75, height - 0.8)
        axes.set_title(fitting(_heading(history, names), int(width * 14)), size=8, loc="left", color=INK)
        if row == rows - 1 or index + columns >= len(shown):
            axes.set_xlabel("epoch", size=8)
        _plot(axes, history, names)
    return figure


def _heading(history: History, names: Sequence[str]) -> str:
    last = {name: number(_last(_series(history, name)[1])) for name in names}
    if len(names) == 1:
        return f"{names[0]} {last[names[0]]}"
    kinds = (f"{name.split('/')[0]} {value}" for name, value in last.items())
    return f"{names[0].partition('/')[2]}: {', '.join(kinds)}"


def _plot(axes: Axes, history: History, names: Sequence[str]) -> list[End]:
    """Draw the series, with × on the axis where a value is not a number; returns what to write at their ends."""
    from matplotlib.ticker import MaxNLocator

    ends = []
    everything = np.concatenate([_series(history, name)[1] for name in names])
    for name in names:
        epochs, values = _series(history, name)
        colour = ORANGE if name.startswith("val/") else BLUE
        marker = "o" if len(values) <= MARKED else ""
        axes.plot(epochs, values, color=colour, linewidth=1.4, marker=marker, markersize=2.5)
        alone = _alone(values)
        axes.plot(epochs[alone], values[alone], color=colour, linestyle="none", marker="o", markersize=3.5)
        missing = epochs[np.isnan(values)]
        on_axis = axes.get_xaxis_transform()
        axes.plot(missing, 0 * missing, "x", color=colour, transform=on_axis, markersize=4, clip_on=False)
        last = _last(values)
        what = f"{name.split('/')[0]} " if len(names) > 1 else ""
        ends.append((last, f"{what}{number(last)}", colour))
    if _spans_decades(everything):
        _make_logarithmic(axes)
    low, high = axes.get_xlim()
    whole = len(history) == 1 or high - low >= 3
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1))
    return ends


def _series(history: History, name: str) -> tuple[Numbers, Numbers]:
    """(epochs, values) of the entries that have the metric; NaN for what cannot be drawn."""
    found = [
        (metrics.get("epoch", index + 1), metrics[name])
        for index, metrics in enumerate(history)
        if name in metrics
    ]
    epochs, values = np.array(found, np.float64).reshape(-1, 2).T
    return epochs, np.where(np.abs(values) < LARGEST, values, np.nan)


def _last(values: Numbers) -> float:
    return float(values[-1]) if len(values) else math.nan


def _alone(values: Numbers) -> npt.NDArray[np.bool_]:
    """Where a line shows nothing: numbers between two that are none, or a single one."""
    there = np.pad(np.isfinite(values), 1)
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _spans_decades(values: Numbers) -> bool:
    values = values[np.isfinite(values)]
    return len(values) > 0 and values.min() > 0 and bool(np.ptp(np.log10(values)) > DECADES)


def _make_logarithmic(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    decades = np.ptp(np.log10(axes.get_ylim()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if decades < 3 else (1,), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the usual one is mathtext
    axes.yaxis.set_minor_formatter(NullFormatter())


def _label_ends(axes: Axes, labels: Sequence[End]) -> None:
    """At the right of the axes, moved apart where they would overlap."""
    bottom = axes.get_ylim()[0]  # also settles the limits, which the transforms need
    heights = [
        axes.transData.transform((0, value if np.isfinite(value) else bottom))[1] for value, *_ in labels
    ]
    if len(heights) == 2 and abs(heights[0] - heights[1]) < LABEL_GAP:
        middle, upper = sum(heights) / 2, int(np.argmax(heights))
        heights[upper], heights[1 - upper] = middle + LABEL_GAP / 2, middle - LABEL_GAP / 2
    for height, (_, text, colour) in zip(heights, labels, strict=True):
        fraction = axes.transAxes.inverted().transform((0, height))[1]
        axes.text(1.02, fraction, text, color=colour, transform=axes.transAxes, va="center")
