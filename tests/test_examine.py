"""What is found out about a trained model, on 1 to 4 ranks, against scikit-learn and by hand."""

import json
from base64 import b64decode
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix
from torch import nn

from runner.communicator import SingleProcess
from runner.examine import examine
from runner.ingest.sampler import part
from runner.plan import DataFacts
from runner.schema import Task
from tests.fakes import on_ranks

RANKS = [1, 2, 3, 4]


class Share:
    """One rank's part of the validation rows, in batches of 7."""

    def __init__(self, inputs, targets, communicator):
        mine = part(len(inputs), communicator.size, communicator.rank)
        self.columns = inputs[mine], targets[mine]

    def evaluation(self):
        inputs, targets = self.columns
        return ((inputs[i : i + 7], targets[i : i + 7]) for i in range(0, len(inputs), 7))


def facts(inputs, outputs, names=None):
    return DataFacts(1, len(inputs), tuple(inputs.shape[1:]), outputs, class_names=names)


def found(ranks, model, task, inputs, targets, data):
    """The result, which must be the same on all ranks and survive JSON."""

    def call(communicator):
        share = Share(inputs, targets, communicator)
        return examine(model, task, share, data, communicator, nullcontext)

    first, *others = on_ranks(ranks, call)
    assert all(other == first for other in others)
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    return first


def classes(rows, count, seed=0):
    """(inputs that are the outputs, labels): the identity is the model."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(count, (rows,), generator=draws)
    return torch.randn(rows, count, generator=draws) + 1.5 * nn.functional.one_hot(labels, count), labels


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("rows", [3, 100])  # of 3 rows a rank of four has none
def test_confusion_counts_each_row_once(ranks, rows):
    outputs, labels = classes(rows, 5)
    result = found(ranks, nn.Identity(), Task.classification, outputs, labels, facts(outputs, 5))
    expected = confusion_matrix(labels, outputs.argmax(dim=1), labels=range(5))
    assert result["task"] == "classification"
    assert result["confusion"] == expected.tolist()
    assert result["classes"] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("ranks", RANKS)
def test_of_many_classes_the_most_frequent_mistakes_are_listed(ranks):
    labels = torch.tensor([100] * 5 + [7] * 3 + [0] * 4)
    said = torch.tensor([7, 7, 7, 7, 100, 100, 100, 0, 0, 0, 0, 3])
    outputs = nn.functional.one_hot(said, 101).float()
    result = found(ranks, nn.Identity(), Task.classification, outputs, labels, facts(outputs, 101))
    assert result["confused"] == [["100", "7", 4], ["7", "100", 2], ["0", "3", 1], ["7", "0", 1]]
    assert "confusion" not in result


@pytest.mark.parametrize("ranks", RANKS)
def test_samples_are_wrong_ones_first_and_then_the_least_sure(ranks):
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7], [0.5625, 0.4375]])
    labels = torch.tensor([0, 0, 1, 0, 0])
    data = facts(probabilities, 2, names=("cat", "dog"))
    result = found(ranks, nn.Identity(), Task.classification, probabilities.log(), labels, data)
    kept = [(s["target"], s["prediction"], s["probability"], s["wrong"]) for s in result["samples"]]
    assert kept == [
        ("cat", "dog", 0.8, True),
        ("cat", "dog", 0.7, True),
        ("cat", "cat", 0.5625, False),
        ("dog", "dog", 0.6, False),
        ("cat", "cat", 0.9, False),
    ]
    assert result["samples"][2]["row"] == [-0.575364, -0.826679]  # six digits


@pytest.mark.parametrize("ranks", RANKS)
def test_no_more_than_16_samples_are_kept(ranks):
    outputs, labels = classes(200, 4)
    result = found(ranks, nn.Identity(), Task.classification, outputs, labels, facts(outputs, 4))
    of_target = outputs.softmax(dim=1)[torch.arange(200), labels].numpy()
    wrong = np.flatnonzero(outputs.argmax(dim=1) != labels)
    worst = wrong[np.argsort(of_target[wrong])][:16]
    assert len(wrong) > 16
    expected = [[float(f"{value:.6g}") for value in outputs[row].tolist()] for row in worst]
    assert [sample["row"] for sample in result["samples"]] == expected


def test_an_image_is_stored_as_bytes_from_its_darkest_to_its_brightest_value():
    images = torch.tensor([[[[-1.0, 0.0], [1.0, 0.5]]]])
    sample = sample_of(images)
    assert sample["image"]["shape"] == [2, 2, 1]
    assert list(b64decode(sample["image"]["bytes"])) == [0, 128, 255, 191]


def test_a_large_image_is_reduced_in_its_proportions_and_a_uniform_one_is_black():
    image = sample_of(torch.ones(1, 3, 80, 160))["image"]
    assert image["shape"] == [20, 40, 3]
    assert b64decode(image["bytes"]) == bytes(2400)


def test_a_long_row_is_not_stored():
    assert "row" in sample_of(torch.zeros(1, 64))
    assert not {"row", "image"} & set(sample_of(torch.zeros(1, 65)))


def sample_of(inputs):
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    data = facts(inputs, 2)
    return found(1, model, Task.classification, inputs, torch.tensor([0]), data)["samples"][0]


@pytest.mark.parametrize("ranks", RANKS)
def test_labels_are_counted_as_scikit_learn_does(ranks):
    draws = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(50, 3, generator=draws), torch.randint(2, (50, 3), generator=draws).float()
    data = facts(outputs, 3, names=("a", "b", "c"))
    result = found(ranks, nn.Identity(), Task.multilabel, outputs, targets, data)
    counts = multilabel_confusion_matrix(targets, outputs > 0)
    expected = [
        [name, *(int(n) for n in (m[1, 1], m[0, 1], m[1, 0], m[0, 0]))]
        for name, m in zip("abc", counts, strict=True)
    ]
    assert result == {"task": "multilabel", "labels": expected}


def test_of_many_labels_the_most_frequent_are_kept_in_their_order():
    targets = torch.ones(2, 102)
    targets[0, 5] = targets[1, 50] = 0
    result = found(2, nn.Identity(), Task.multilabel, -targets, targets, facts(targets, 102))
    assert [row[0] for row in result["labels"]] == [
        str(label) for label in range(102) if label not in (5, 50)
    ]
    assert result["labels"][0] == ["0", 0, 0, 2, 0]


@pytest.mark.parametrize("ranks", RANKS)
def test_regression_points_are_evenly_spaced_over_the_rows_of_all_ranks(ranks):
    rows = torch.arange(5000.0)[:, None]
    targets = torch.cat([rows, -rows, 2 * rows, 3 * rows, 4 * rows], dim=1)  # the fifth is not shown
    model = nn.Linear(1, 5, bias=False)
    model.weight.data = torch.ones(5, 1)
    result = found(ranks, model, Task.regression, rows, targets, facts(rows, 5))
    chosen = range(0, 5000, 10)  # 2000 pairs of 4 outputs
    assert result["points"] == [[[row, row], [-row, row], [2 * row, row], [3 * row, row]] for row in chosen]
    # |−row − row| + |2 row − row| + … grows with the row: the largest errors are those of the last rows
    assert [sample["row"] for sample in result["samples"]] == [[float(row)] for row in range(4999, 4983, -1)]
    assert result["samples"][0]["target"] == [4999, -4999, 9998, 14997]


@pytest.mark.parametrize("ranks", RANKS)
def test_few_rows_are_all_points_and_what_is_not_finite_becomes_none(ranks):
    outputs, targets = torch.tensor([[1.5], [torch.nan], [2.5]]), torch.tensor([[1.0], [2.0], [4.0]])
    result = found(ranks, nn.Identity(), Task.regression, outputs, targets, facts(outputs, 1))
    assert result["points"] == [[[1.0, 1.5]], [[2.0, None]], [[4.0, 2.5]]]
    assert [sample["prediction"] for sample in result["samples"]] == [[None], [2.5], [1.5]]


class Successor(nn.Module):
    """A language model that always expects the token + 1."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens

    def forward(self, inputs):
        return nn.functional.one_hot((inputs + 1) % self.tokens, self.tokens).float()


@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_are_shown_as_text(ranks):
    text = torch.tensor(list("abcdégh".encode() + b"\xffj"))  # é has two bytes
    inputs, targets = text[None, :-1].repeat(20, 1), text[None, 1:].repeat(20, 1)
    result = found(ranks, Successor(256), Task.language_modeling, inputs, targets, facts(inputs, 256))
    assert len(result["samples"]) == 8
    assert result["samples"][7] == {
        "prompt": "abcd",
        "truth": ["", "é", "g", "h", "\ufffd", "j"],
        "prediction": ["e", "", "Ī", "h", "i", "\0"],
        "right": [False, False, False, True, False, False],
    }


def test_tokens_are_shown_by_name_or_number_and_what_is_masked_is_left_out():
    inputs = torch.tensor([[0, 1, 2, 1], [2, 0, 0, 0]])
    targets = torch.tensor([[1, 2, 1, -100], [0, -100, -100, -100]])
    arguments = (Successor(3), Task.language_modeling, inputs, targets)
    (sample,) = found(1, *arguments, facts(inputs, 3))["samples"]  # the second has nothing to predict
    assert sample == {
        "prompt": "0 1 ",
        "truth": ["2 ", "1 "],
        "prediction": ["2 ", "0 "],
        "right": [True, False],
    }
    (sample,) = found(1, *arguments, facts(inputs, 3, names=("x", "y", "z")))["samples"]
    assert (sample["prompt"], sample["truth"]) == ("xy", ["z", "y"])


class FailsOn(nn.Module):
    """Fails when it sees the value."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, inputs):
        if (inputs == self.value).any():
            raise RuntimeError(f"no {self.value}")
        return torch.zeros(len(inputs), 2)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_model_that_fails_on_one_rank_gives_nothing_on_all(ranks, capsys):
    inputs = torch.arange(8.0)[:, None]
    labels = torch.zeros(8, dtype=torch.int64)
    assert found(ranks, FailsOn(7.0), Task.classification, inputs, labels, facts(inputs, 2)) == {}
    line = "plots: the predictions are not drawn: RuntimeError: no 7.0\n"
    assert capsys.readouterr().out == ranks * line


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Identity(), "ValueError: the model returned (3, 4) where classification needs (3, 2)"),
        (nn.Module(), "NotImplementedError: "),  # a LightningModule without forward
        (nn.LSTM(4, 2), "TypeError: the model returned a tuple, not a tensor"),
    ],
)
def test_a_model_of_another_kind_gives_nothing(model, why, capsys):
    inputs, labels = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    assert found(1, model, Task.classification, inputs, labels, facts(inputs, 2)) == {}
    assert capsys.readouterr().out.startswith(f"plots: the predictions are not drawn: {why}")


def test_half_precision_is_entered_and_left():
    inputs, labels = classes(10, 3)
    model = nn.Linear(3, 3)

    def half():
        return torch.autocast("cpu", torch.bfloat16)

    share = Share(inputs, labels, SingleProcess())
    result = examine(model, Task.classification, share, facts(inputs, 3), SingleProcess(), half)
    with half(), torch.no_grad():
        said = model(inputs)
    assert said.dtype is torch.bfloat16
    assert result["confusion"] == confusion_matrix(labels, said.argmax(dim=1), labels=range(3)).tolist()


def test_the_largest_result_stays_below_200_kilobytes():
    labels = torch.arange(100).repeat(100)
    said = labels.sort().values  # each class is taken for each other once
    inputs = torch.arange(10_000.0)[:, None, None, None].expand(-1, 3, 40, 40)

    class Rows(nn.Module):
        def forward(self, inputs):
            return nn.functional.one_hot(said[inputs[:, 0, 0, 0].long()], 100).float()

    result = found(2, Rows(), Task.classification, inputs, labels, facts(inputs, 100))
    assert {len(sample["image"]["bytes"]) for sample in result["samples"]} == {40 * 40 * 3 * 4 // 3}
    assert len(result["samples"]) == 16
    assert len(json.dumps(result)) < 200_000
