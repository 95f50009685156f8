"""Pictures of single validation rows: what the model said, and what it should have said."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.report.page import INK, ORANGE, QUIET, WIDTH, canvas, clean, fitting, number, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]
COLUMNS = 8  # of images
LINE = 0.19  # inches from one line of text to the next
NUMBERS = 7  # of an input row
PROMPT, CONTINUATION = 36, 62  # monospaced characters
FONT = 7


def samples(examined: Json, title: str) -> dict[str, Figure]:
    """The figure of the result's samples, if it has any."""
    found = examined.get("samples")
    if not found:
        return {}
    if "prompt" in found[0]:
        return {"samples": _texts(found, title)}
    return {"samples": (_images if "image" in found[0] else _table)(found, title)}


def _images(found: Sequence[Json], title: str) -> Figure:
    from matplotlib.patches import Rectangle

    step = (WIDTH - 0.2) / COLUMNS
    side, row_height = step - 0.12, step + 0.42
    height = math.ceil(len(found) / COLUMNS) * row_height + 0.05
    figure = page("Samples", _which(found), title, height)
    axes = canvas(figure)
    limits = axes.axis()
    for index, sample in enumerate(found):
        row, column = divmod(index, COLUMNS)
        x, y = 0.15 + column * step, height - row * row_height - side
        shape = sample["image"]["shape"]
        pixels = np.frombuffer(b64decode(sample["image"]["bytes"]), np.uint8).reshape(shape)
        tall, wide = (side * length / max(shape[:2]) for length in shape[:2])
        left, bottom = x + (side - wide) / 2, y + (side - tall) / 2
        extent = (left, left + wide, bottom, bottom + tall)
        shown = pixels.repeat(3, axis=2) if shape[2] == 1 else pixels
        axes.imshow(shown, extent=extent, aspect="auto", interpolation="nearest")
        colour, thick = (ORANGE, 1.8) if sample.get("wrong") else (QUIET, 0.6)
        axes.add_patch(Rectangle((left, bottom), wide, tall, fill=False, edgecolor=colour, linewidth=thick))
        true, said = _value(sample["target"], 9), _value(sample["prediction"], 11)
        captions = [
            (f"true {true}", QUIET),
            (_mark(sample) + said, _colour(sample)),
            (_sureness(sample), QUIET),
        ]
        for line, (text, shade) in enumerate(captions):
            axes.text(x, y - 0.06 - 0.13 * line, text, va="top", size=FONT, color=shade)
    axes.axis(limits)  # which every image changes
    return figure


def _table(found: Sequence[Json], title: str) -> Figure:
    """A line a sample: true, predicted, and the first numbers of the input."""
    height = LINE * (len(found) + 1) + 0.1
    figure = page("Samples", _which(found), title, height)
    axes = canvas(figure)
    has_row = "row" in found[0]
    lines = [(f"  {'true':16}{'predicted':20}{'input' if has_row else ''}", QUIET)]
    for sample in found:
        said = f"{_value(sample['prediction'], 13)} {_sureness(sample)}"
        row = sample.get("row", [])
        numbers = "".join(f"{'–' if value is None else format(value, '.3g'):<10}" for value in row[:NUMBERS])
        more = "…" if len(row) > NUMBERS else ""
        line = f"{_mark(sample):2}{_value(sample['target'], 14):16}{said:20}{numbers}{more}"
        lines.append((line, _colour(sample)))
    for index, (line, colour) in enumerate(lines):
        y = height - LINE * (index + 0.5)
        axes.text(0.15, y, line, color=colour, family="monospace", size=FONT, va="center")
    return figure


def _texts(found: Sequence[Json], title: str) -> Figure:
    """Two lines a sample: prompt and true text; below each true token the predicted one, wrong ones in orange."""
    block = 2.7 * LINE
    height = block * len(found) + 0.05
    right = [is_right for sample in found for is_right in sample["right"]]
    detail = (
        f"below each true token the likeliest given all before it: {sum(right):,} of {len(right):,} right"
    )
    figure = page("Samples", detail, title, height)
    axes = canvas(figure)
    for index, sample in enumerate(found):
        top = height - block * index
        prompt = clean(sample["prompt"])
        before = (prompt if len(prompt) <= PROMPT else "…" + prompt[1 - PROMPT :]).rjust(PROMPT)
        indent = " " * PROMPT
        true, good, bad = _aligned(sample)
        lines = [
            (before, QUIET, 0),
            (indent + true, INK, 0),
            (indent + good, INK, 1),
            (indent + bad, ORANGE, 1),
        ]
        for line, colour, place in lines:
            y = top - LINE * place
            axes.text(0.15, y, line, color=colour, va="top", family="monospace", size=FONT)
    return figure


def _aligned(sample: Json) -> tuple[str, str, str]:
    """Three lines, token below token: the truth, the right ones of the prediction, the wrong ones."""
    true = good = bad = ""
    for expected, said, is_right in zip(sample["truth"], sample["prediction"], sample["right"], strict=True):
        width = max(len(expected), len(said))
        if len(true) + width > CONTINUATION:
            return true + "…", good, bad
        shown, blank = clean(said).ljust(width), " " * width
        true += clean(expected).ljust(width)
        good += shown if is_right else blank
        bad += blank if is_right else "␣" if said == " " else shown
    return true, good, bad


def _which(found: Sequence[Json]) -> str:
    if "wrong" not in found[0]:
        return "the largest errors"
    wrong = sum(sample["wrong"] for sample in found)
    if wrong == len(found):
        return "wrong ones, the worst first"
    return f"{wrong} wrong, then the least sure of the right ones"


def _mark(sample: Json) -> str:
    return {True: "✗ ", False: "✓ ", None: ""}[sample.get("wrong")]


def _colour(sample: Json) -> str:
    return ORANGE if sample.get("wrong") else INK


def _value(value: Any, length: int) -> str:
    """A class's name, or the outputs of a regression."""
    return fitting(value if isinstance(value, str) else ", ".join(map(number, value)), length)


def _sureness(sample: Json) -> str:
    probability = sample.get("probability")
    return "" if probability is None else f"{probability:.0%}"
