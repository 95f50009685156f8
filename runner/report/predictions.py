"""Pictures of what a model does with the validation rows, from the result of runner.examine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.report.page import BLUE, INK, ORANGE, QUIET, RULE, WIDTH, area, fitting, number, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = dict[str, Any]
Array = npt.NDArray[Any]
WRITTEN = 20  # classes, up to which the cells of a confusion matrix have their counts
NAMED = 40  # classes, up to which each has its name at the axis
LISTED = 20  # pairs of classes
LABELS = 40
BAR = 0.2  # inches from one bar or label to the next
LETTER = 0.075  # inches, about the width of one


def predictions(examined: Json, title: str) -> dict[str, Figure]:
    """The figures that there are numbers for."""
    figures = {}
    if examined.get("confusion"):
        figures["confusion"] = _confusion(examined, title)
    if examined.get("confused"):
        figures["confusion"] = _confused(examined["confused"], title)
    if examined.get("labels"):
        figures["labels"] = _labels(examined["labels"], title)
    if examined.get("points"):
        figures["residuals"] = _residuals(examined["points"], title)
    return figures


def _confusion(examined: Json, title: str) -> Figure:
    """Rows are the true classes. Right ones blue, wrong ones orange, by their share of the row."""
    counts, names = np.array(examined["confusion"]), [fitting(name, 14) for name in examined["classes"]]
    classes, right, total = len(counts), int(np.trace(counts)), int(counts.sum())
    side = min(max(0.36 * classes, 2.0), 6.0)
    letters = LETTER * max(map(len, names))
    turned = letters > 0.9 * side / min(classes, NAMED)
    left, bottom, above = max(0.6 + letters, 0.85), 0.45 + (letters if turned else 0.15), 0.3
    detail = f"{right:,} of {total:,} right ({right / max(total, 1):.1%})"
    figure = page("Confusion", detail, title, bottom + side + above, max(left + side + 0.8, 4.5))
    axes = area(figure, left, bottom, side, side)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    is_right = np.eye(classes, dtype=bool)
    shades = np.where(is_right, shares, np.sqrt(shares))  # the root lets rare mistakes be seen
    axes.imshow(_mixed(shades, is_right), interpolation="nearest", aspect="auto")
    every = math.ceil(classes / NAMED)
    places, shown = range(0, classes, every), names[::every]
    size = 8 if classes <= WRITTEN else 6
    axes.set_xticks(places, shown, rotation=90 if turned else 0, size=size)
    axes.set_yticks(places, shown, size=size)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted", ylabel="true")
    axes.grid(visible=False)
    if classes <= WRITTEN:
        edges = np.arange(classes - 1) + 0.5
        axes.vlines(edges, -0.5, classes - 0.5, color=RULE, linewidth=0.6)
        axes.hlines(edges, -0.5, classes - 0.5, color=RULE, linewidth=0.6)
        _write_counts(axes, counts, shades)
    return figure


def _write_counts(axes: Axes, counts: Array, shades: Array) -> None:
    """Counts in their cells; recall at the right, precision on top."""
    for true, said in np.argwhere(counts):
        colour = "white" if shades[true, said] > 0.55 else INK
        axes.text(
            said, true, f"{counts[true, said]}", color=colour, ha="center", va="center_baseline", size=7
        )
    right, last = np.diag(counts), len(counts) - 0.5
    recalls = [_percent(*pair) for pair in zip(right, counts.sum(axis=1), strict=True)]
    precisions = [_percent(*pair) for pair in zip(right, counts.sum(axis=0), strict=True)]
    beside = [((last, label), (6, 0), "left", text) for label, text in enumerate(recalls)]
    above = [((label, -0.5), (0, 8), "center", text) for label, text in enumerate(precisions)]
    heads = [((last, -0.5), (6, 8), "left", "recall %"), ((-0.5, -0.5), (-6, 8), "right", "precision %")]
    for place, shift, align, text in [*beside, *above, *heads]:
        axes.annotate(
            text,
            place,
            shift,
            textcoords="offset points",
            annotation_clip=False,
            color=QUIET,
            size=7,
            ha=align,
            va="center_baseline",
        )


def _confused(pairs: Sequence[tuple[str, str, int]], title: str) -> Figure:
    shown = pairs[:LISTED]
    names = [f"{fitting(true, 16)} → {fitting(said, 16)}" for true, said, _ in shown]
    left, height = 0.3 + LETTER * max(map(len, names)), BAR * len(shown)
    figure = page("Confusion", "the most frequent mistakes, true → predicted", title, height + 0.45)
    axes = area(figure, left, 0.45, WIDTH - left - 0.5, height)
    counts = [count for *_, count in shown]
    axes.barh(range(len(shown)), counts, color=ORANGE, height=0.7)
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("rows")
    for place, count in enumerate(counts):
        axes.text(count, place, f" {count}", color=QUIET, va="center", size=8)
    return figure


def _labels(labels: Sequence[tuple[str, int, int, int, int]], title: str) -> Figure:
    """Recall and precision of each label, in the order of the data."""
    frequent = sorted(range(len(labels)), key=lambda index: -(labels[index][1] + labels[index][3]))
    shown = [labels[index] for index in sorted(frequent[:LABELS])]
    names = [fitting(name, 20) for name, *_ in shown]
    left, height = 0.35 + LETTER * max(map(len, names)), 1.1 * BAR * len(shown)
    detail = "● recall  ◇ precision" + ("" if len(shown) == len(labels) else f"  {len(shown)} most frequent")
    figure = page("Labels", detail, title, height + 0.45)
    axes = area(figure, left, 0.45, WIDTH - left - 1.0, height)
    right, extra, missed = np.array([row[1:4] for row in shown], np.float64).T
    recall, precision = _ratio(right, right + missed), _ratio(right, right + extra)
    places = np.arange(len(shown))
    axes.hlines(places, recall, precision, color="#b0b0b0", linewidth=1.0)
    axes.plot(recall, places, "o", color=BLUE, markersize=5, clip_on=False)
    axes.plot(precision, places, "D", color=ORANGE, markerfacecolor="white", markersize=4.5, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(places, names)
    axes.grid(visible=False, axis="y")
    for place, count in enumerate(right + missed):
        axes.text(1.03, place, f"{count:,.0f} rows", color=QUIET, va="center", size=8)
    return figure


def _residuals(points: Sequence[Sequence[Sequence[float | None]]], title: str) -> Figure:
    """For each output the predictions against the true values, and the histogram of their differences."""
    from matplotlib.ticker import MaxNLocator

    pairs = np.array(points, np.float64)  # [rows, outputs, 2]; None becomes NaN
    height = 3.1
    figure = page("Residuals", f"{len(pairs):,} validation rows", title, height * pairs.shape[1])
    for output in range(pairs.shape[1]):
        finite = pairs[np.isfinite(pairs[:, output]).all(axis=1), output]
        bottom = height * (pairs.shape[1] - 1 - output) + 0.5
        scatter = area(figure, 0.75, bottom, 2.5, height - 0.75)
        histogram = area(figure, 4.0, bottom, 2.7, height - 0.75)
        name = f"output {output}: " if pairs.shape[1] > 1 else ""
        for axes in (scatter, histogram):
            axes.xaxis.set_major_locator(MaxNLocator(4))
        scatter.set(xlabel="true", ylabel="predicted")
        histogram.set(xlabel="predicted − true", ylabel="rows")
        if not len(finite):
            scatter.set_title(f"{name}no prediction is a number", size=8, loc="left")
            continue
        true, said = finite.T
        ends = [finite.min(), finite.max()]
        scatter.plot(ends, ends, color=QUIET, linewidth=0.8)
        alpha = float(np.clip(100 / len(finite), 0.25, 0.8))
        scatter.plot(true, said, "o", color=BLUE, alpha=alpha, markersize=3.5, markeredgewidth=0)
        differences = said - true
        heights, edges = np.histogram(differences, bins=int(np.clip(math.sqrt(len(finite)), 5, 40)))
        histogram.stairs(heights, edges, fill=True, color=BLUE, alpha=0.8)
        histogram.axvline(0, color=QUIET, linewidth=0.8)
        spread = float(((true - true.mean()) ** 2).sum())
        fit = f"R² {1 - float((differences**2).sum()) / spread:.3g}" if spread else "a single true value"
        scatter.set_title(name + fit, size=8, loc="left")
        mean, deviation = number(differences.mean()), number(differences.std())
        histogram.set_title(f"mean {mean}, deviation {deviation}", size=8, loc="left")
    return figure


def _mixed(shades: Array, is_right: Array) -> Array:
    """[n, n, 3]: white mixed with blue or orange."""
    from matplotlib.colors import to_rgb

    colours = np.where(is_right[..., None], to_rgb(BLUE), to_rgb(ORANGE))
    return 1 - shades[..., None] * (1 - colours)


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}".rstrip("%") if whole else "–"
