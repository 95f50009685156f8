"""The pictures of a run: that each is there, of its size, drawn without a warning, and shows what it should."""

import math
from contextlib import nullcontext

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from runner.communicator import SingleProcess
from runner.examine import examine
from runner.plan import DataFacts
from runner.report.page import BLUE, ORANGE, STYLE, clean, fitting, number
from runner.report.plots import curves, draw
from runner.report.predictions import predictions
from runner.report.samples import samples
from runner.schema import Task

NASTY = "a $x_1$ \\frac{ é 漢字 \x00\n\t\u202e\u0301 %s {} <b>"


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context(STYLE):
        yield


def history(epochs, **series):
    """Metrics of each epoch; a series is a function of the epoch."""
    rising = range(1, epochs + 1)
    return [
        {"epoch": float(epoch), **{name.replace("__", "/"): f(epoch) for name, f in series.items()}}
        for epoch in rising
    ]


FULL = history(
    20,
    train__loss=lambda epoch: 2 / epoch,
    val__loss=lambda epoch: 2 / epoch + 0.1,
    val__accuracy=lambda epoch: 1 - 1 / epoch,
    lr=lambda epoch: 0.4,
    throughput__samples_per_second=lambda epoch: 1000.0 + epoch,
    seconds__training=lambda epoch: 0.5,
)


class Batch:
    def __init__(self, inputs, targets):
        self.columns = inputs, targets

    def evaluation(self):
        yield self.columns


def examined(task, outputs, targets, inputs=None, names=None):
    """What `examine` finds of a model with these outputs."""
    inputs = outputs if inputs is None else inputs

    class Given(nn.Module):
        def forward(self, inputs):
            return outputs

    data = DataFacts(1, len(inputs), tuple(inputs.shape[1:]), outputs.shape[-1], class_names=names)
    one = SingleProcess()
    return examine(Given(), task, Batch(inputs, targets), data, one, nullcontext)


def classified(classes, shape=(5,), names=None, rows=60):
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % classes
    outputs = torch.randn(rows, classes, generator=draws) + 2 * nn.functional.one_hot(labels, classes)
    return examined(Task.classification, outputs, labels, torch.rand(rows, *shape, generator=draws), names)


def texts(characters, said):
    tokens, other = (torch.tensor(list(text.encode()))[None] for text in (characters, said))
    outputs = nn.functional.one_hot(other[:, 1:], 256).float()
    return examined(Task.language_modeling, outputs, tokens[:, 1:], tokens[:, :-1])


REGRESSION = examined(
    Task.regression, torch.linspace(-1, 1, 90)[:, None] ** 3, torch.linspace(-1, 1, 90)[:, None]
)
LABELLED = examined(Task.multilabel, torch.eye(6) - 0.5, torch.ones(6, 6).tril())


def drawn(folder, *arguments):
    """{name: pixels [height, width, 3]} of the files."""
    return {path.name: np.asarray(Image.open(path).convert("RGB")) for path in draw(folder, *arguments)}


def colours(pixels):
    return len(np.unique(pixels.reshape(-1, 3), axis=0))


def words(figure):
    """All that is written on a figure, as one text."""
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_a_run_of_images_has_six_pictures(tmp_path):
    found = drawn(tmp_path / "new" / "plots", FULL, classified(10, (1, 8, 8)), "digits")
    assert {name: pixels.shape for name, pixels in found.items()} == {
        "loss.png": (450, 840, 3),
        "metrics.png": (462, 840, 3),
        "lr.png": (450, 840, 3),
        "throughput.png": (450, 840, 3),
        "confusion.png": (618, 630, 3),
        "samples.png": (388, 840, 3),
    }
    assert all(colours(pixels) > 10 for pixels in found.values())
    assert sorted(path.name for path in (tmp_path / "new" / "plots").iterdir()) == sorted(found)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({}, set()),
        (classified(2), {"confusion.png", "samples.png"}),
        (classified(2, (65,)), {"confusion.png", "samples.png"}),
        (classified(100, (3, 5, 9), rows=300), {"confusion.png", "samples.png"}),
        (classified(101, (2, 4, 4), rows=300), {"confusion.png", "samples.png"}),
        (classified(3, names=(NASTY, "", "c" * 99)), {"confusion.png", "samples.png"}),
        (REGRESSION, {"residuals.png", "samples.png"}),
        (examined(Task.regression, torch.full((3, 2), torch.nan), torch.ones(3, 2)), {"residuals.png", "samples.png"}),
        (examined(Task.regression, torch.ones(1, 1), torch.ones(1, 1)), {"residuals.png", "samples.png"}),
        (LABELLED, {"labels.png"}),
        (examined(Task.multilabel, -torch.ones(2, 45), torch.zeros(2, 45)), {"labels.png"}),
        (texts(NASTY * 3, NASTY[::-1] * 3), {"samples.png"}),
    ],
)  # fmt: skip
def test_every_result_is_drawn_without_a_warning(tmp_path, result, names):
    found = drawn(tmp_path, [], result, NASTY)
    assert set(found) == names
    assert all(colours(pixels) > 10 for pixels in found.values())


def test_without_history_and_result_nothing_is_drawn(tmp_path):
    assert draw(tmp_path, [], {}, "") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, 1e300, -3.0, 0.0])
def test_a_history_of_one_epoch_is_drawn(tmp_path, value):
    one = {"train/loss": value, "val/loss": value, "val/mae": value, "lr": 0.1, "epoch": 0.25}
    found = drawn(tmp_path, [one], {}, "one")
    assert set(found) == {"loss.png", "metrics.png", "lr.png"}
    blue = np.array([0x00, 0x72, 0xB2])  # a point, and its label
    assert (found["lr.png"] == blue).all(axis=2).sum() > 20


def lines(figure):
    """[colour, marker, xs, ys] of what was plotted, without empty series."""
    plotted = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata())]
    return [(line.get_color(), line.get_marker(), *map(list, line.get_data())) for line in plotted]


def test_losses_are_drawn_where_they_were_measured_and_gaps_are_marked():
    entries = [
        {"train/loss": 3.0, "epoch": 0.5},
        {"train/loss": math.nan, "val/loss": 2.0, "epoch": 1.0},
        {"train/loss": 1.0, "epoch": 1.5},
        {"train/loss": math.inf, "val/loss": 1.5, "epoch": 2.0},
        {"train/loss": 0.75, "val/loss": 1.75, "epoch": 3.0},
        {"train/loss": 0.5, "epoch": 3.5},
    ]
    figure = curves(entries, "run")["loss"]
    (_, _, epochs, losses), alone, missing, val = lines(figure)
    assert epochs == [0.5, 1.0, 1.5, 2.0, 3.0, 3.5]
    np.testing.assert_array_equal(losses, [3.0, math.nan, 1.0, math.nan, 0.75, 0.5])
    assert alone == (BLUE, "o", [0.5, 1.5], [3.0, 1.0])  # no line leads to them
    assert missing == (BLUE, "x", [1.0, 2.0], [0.0, 0.0])
    assert val == (ORANGE, "o", [1.0, 2.0, 3.0], [2.0, 1.5, 1.75])
    assert "run · lowest val 1.5 at epoch 2" in words(figure)
    assert {"train 0.5", "val 1.75"} <= set(words(figure).split("\n"))


@pytest.mark.parametrize(
    ("last", "scale"), [(0.0011, "linear"), (0.0009, "log"), (0.0, "linear"), (math.nan, "linear")]
)
def test_a_learning_rate_over_more_than_two_decades_has_a_logarithmic_scale(last, scale):
    values = [0.1, 0.05, last]
    figure = curves(history(3, lr=lambda epoch: values[int(epoch) - 1]), "")["lr"]
    assert figure.axes[0].get_yscale() == scale


def test_labels_at_the_ends_of_lines_do_not_overlap():
    entries = history(3, train__loss=lambda epoch: 1.0, val__loss=lambda epoch: 1.0001)
    figure = curves(entries, "")["loss"]
    figure.draw_without_rendering()
    train, val = (text.get_window_extent() for text in figure.axes[0].texts)
    assert val.y0 >= train.y1 - 1


def test_metrics_share_a_panel_by_quantity_and_norms_come_last():
    entries = history(
        2,
        norm__gradient=lambda epoch: 5.0,
        train__accuracy=lambda epoch: 0.5,
        val__accuracy=lambda epoch: 0.25,
        val__mae=lambda epoch: 1234.5,
        seconds__training=lambda epoch: 1.0,
    )
    figure = curves(entries, "")["metrics"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["accuracy: train 0.5, val 0.25", "val/mae 1,234", "norm/gradient 5"]


def test_of_many_metrics_the_first_twelve_are_drawn():
    entries = history(2, **{f"val__m{index}": lambda epoch: epoch for index in range(15)})
    figure = curves(entries, "run")["metrics"]
    assert len(figure.axes) == 12
    assert "run · 12 of 15" in words(figure)


def test_a_confusion_shows_counts_recall_and_precision():
    result = {"classes": ["cat", "dog"], "confusion": [[6, 2], [0, 4]]}
    figure = predictions(result, "pets")["confusion"]
    texts_at = {
        text.get_text(): text.get_position() for text in figure.axes[0].texts if text.get_text() in "624"
    }
    assert texts_at == {"6": (0, 0), "2": (1, 0), "4": (1, 1)}  # column, row; nothing where no row is
    written = words(figure)
    assert "pets · 10 of 12 right (83.3%)" in written
    shown = [text.get_text() for text in figure.axes[0].texts][3:]
    assert shown == ["75", "100", "100", "67", "recall %", "precision %"]


def test_residuals_are_those_of_the_points():
    points = [[[1.0, 2.0]], [[2.0, 2.0]], [[3.0, None]], [[6.0, 5.0]]]
    figure = predictions({"points": points}, "")["residuals"]
    scatter, histogram = figure.axes
    assert [line.get_xydata().tolist() for line in scatter.lines][1] == [[1, 2], [2, 2], [6, 5]]
    assert scatter.get_title(loc="left") == f"R² {1 - 2 / 14:.3g}"
    assert histogram.get_title(loc="left") == "mean 0, deviation 0.8165"
    assert histogram.patches[0].get_data().values.sum() == 3


def test_labels_have_recall_and_precision():
    figure = predictions({"labels": [["a", 3, 1, 0, 6], ["b", 1, 0, 3, 6], ["c", 0, 0, 2, 8]]}, "")["labels"]
    recall, precision = (line.get_xdata() for line in figure.axes[0].lines)
    np.testing.assert_array_equal(recall, [1.0, 0.25, 0.0])
    np.testing.assert_array_equal(precision, [0.75, 1.0, math.nan])


def test_samples_mark_what_is_wrong_by_a_sign_and_a_colour():
    image = {"shape": [1, 2, 1], "bytes": "AP8="}
    found = [
        {"target": "3", "prediction": "8", "probability": 0.97, "wrong": True, "image": image},
        {"target": "1", "prediction": "1", "probability": None, "wrong": False, "image": image},
    ]
    figure = samples({"samples": found}, "")["samples"]
    written = [(text.get_text(), text.get_color() == ORANGE) for text in figure.axes[0].texts]
    expected = [
        ("true 3", False),
        ("✗ 8", True),
        ("97%", False),
        ("true 1", False),
        ("✓ 1", False),
        ("", False),
    ]
    assert written == expected
    assert figure.axes[0].images[0].get_array().tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_a_text_s_predictions_stand_below_the_tokens_they_should_have_been():
    sample = {"prompt": "one ", "truth": ["two ", "x"], "prediction": ["a ", "x"], "right": [False, True]}
    figure = samples({"samples": [sample]}, "")["samples"]
    before = " " * 36
    lines_of = [(text.get_text(), text.get_color() == ORANGE) for text in figure.axes[0].texts]
    assert lines_of == [
        (" " * 32 + "one ", False),
        (before + "two x", False),
        (before + "    x", False),
        (before + "a    ", True),
    ]
    assert "1 of 2 right" in words(figure)


def test_user_s_text_becomes_characters_that_can_be_set():
    assert clean("a $x$\n\t\x00漢\u0301\u202e") == "a $x$↵ ····"
    assert fitting("abcdef", 4) == "abc…"
    assert fitting("abcd", 4) == "abcd"


def test_numbers_are_short():
    shown = [number(value) for value in (None, 0.123456, 1234.5, 1e-7, 3e12, math.nan)]
    assert shown == ["–", "0.1235", "1,234", "1e-07", "3e+12", "nan"]
