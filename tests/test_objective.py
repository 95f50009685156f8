"""Losses and metrics of the tasks, row by row, against numpy, scikit-learn and torch's means."""

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from runner.communicator import SingleProcess
from runner.errors import ConfigError, TrainingError
from runner.losses import class_weights
from runner.objective import metric_names, objective
from runner.plan import DataFacts
from runner.schema import Loss, Task
from tests.fakes import make_experiment

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 3.0, 1.0], [5.0, -5.0, 0.5]]).double()
CLASSES = torch.tensor([0, 2, 0, 2])
WEIGHTS = [0.25, 1.0, 3.0]
FACTS = DataFacts(10, 4, (5,), 3, class_counts=(6, 0, 4))


def learns(task, loss=None, facts=FACTS, metrics=None):
    settings = {"dataset.task": task, "loss": loss or Loss(), "metrics": metrics or {}}
    return objective(make_experiment(settings), facts)


def rows_of(found, outputs, targets):
    """Loss of each row, and its weight."""
    return found.losses(lambda inputs: outputs, torch.zeros(0), targets), found.weights(targets)


def measured(found, outputs, targets):
    sums = found.measure(lambda inputs: outputs, torch.zeros(0), targets)
    assert sums.shape == (found.width,)
    assert sums.dtype == torch.float64
    return found.metrics(sums, SingleProcess())


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# Classification


def test_cross_entropy_of_each_row():
    losses, weights = rows_of(learns(Task.classification), LOGITS, CLASSES)
    np.testing.assert_allclose(losses, -log_softmax(LOGITS.numpy())[range(4), CLASSES], rtol=0, atol=1e-14)
    assert weights.tolist() == [1.0] * 4
    assert weights.dtype == torch.float64


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, WEIGHTS, "balanced"])
def test_weighted_and_smoothed_cross_entropy_is_torch_s_mean(weights, smoothing):
    found = learns(Task.classification, Loss(label_smoothing=smoothing, class_weights=weights))
    losses, row_weights = rows_of(found, LOGITS, CLASSES)
    expected = nn.CrossEntropyLoss(class_weights(weights, FACTS), label_smoothing=smoothing)(LOGITS, CLASSES)
    assert (losses.sum() / row_weights.sum()).item() == pytest.approx(expected.item(), rel=1e-14)
    assert found.is_weighted is (weights is not None)
    assert measured(found, LOGITS, CLASSES)["loss"] == pytest.approx(expected.item(), rel=1e-14)


def test_balanced_weights_are_scikit_learn_s_and_zero_for_a_class_without_rows():
    labels = np.repeat([0, 1, 2], [6, 1, 4])
    facts = DataFacts(11, 4, (5,), 3, class_counts=(6, 1, 4))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert class_weights("balanced", facts).tolist() == pytest.approx(expected.tolist(), rel=1e-15)
    assert class_weights("balanced", FACTS).tolist() == pytest.approx([10 / 18, 0.0, 10 / 12], rel=1e-15)
    assert class_weights(None, FACTS) is None


def test_accuracy_counts_each_row_once_whatever_its_weight():
    found = learns(Task.classification, Loss(class_weights=WEIGHTS))
    assert measured(found, LOGITS, torch.tensor([0, 1, 1, 2]))["accuracy"] == 0.5


def test_class_weights_that_do_not_fit_are_refused():
    for task_weights, facts, message in [
        ([1, 2], FACTS, "loss.class_weights=[1, 2]: 2 weights for 3 classes; type loss.class_weights=balanced"),
        ("balanced", DataFacts(10, 4, (5,), 3),
         "loss.class_weights=balanced: this dataset does not count its classes; type loss.class_weights=[…], a weight a class"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError) as raised:
            learns(Task.classification, Loss(class_weights=task_weights), facts)
        assert str(raised.value) == message


# Multi-label and regression


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_multilabel_loss_is_the_mean_binary_cross_entropy_of_a_row_s_labels(smoothing):
    targets = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1], [1, 1, 0]]).double()
    smooth = targets.numpy() * (1 - smoothing) + smoothing / 2
    chances = 1 / (1 + np.exp(-LOGITS.numpy()))
    expected = -(smooth * np.log(chances) + (1 - smooth) * np.log(1 - chances)).mean(axis=1)
    found = learns(Task.multilabel, Loss(label_smoothing=smoothing))
    losses, _ = rows_of(found, LOGITS, targets)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-14)
    # Above 0 are [1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 1]: 1, 3, 3 and 1 labels of 3 are right.
    assert measured(found, LOGITS, targets) == pytest.approx({"loss": expected.mean(), "accuracy": 8 / 12})


def test_squared_and_absolute_error_are_means_over_a_row_s_targets():
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[3.0, 1.0], [0.0, 1.0]])
    found = learns(Task.regression)
    losses, _ = rows_of(found, outputs, targets)
    assert losses.tolist() == [2.5, 4.5]  # (4 + 1) / 2, (0 + 9) / 2
    assert measured(found, outputs, targets) == {"loss": 3.5, "mae": 1.5}


@pytest.mark.parametrize("task", [Task.regression, Task.multilabel])
def test_outputs_that_would_be_broadcast_are_refused(task):
    with pytest.raises(TrainingError) as raised:
        rows_of(learns(task), torch.zeros(4), torch.zeros(4, 1))
    assert str(raised.value) == (
        "the model's outputs have shape (4,), the targets (4, 1); they must be the same, a column a target"
    )


# Language modelling

TOKENS = torch.tensor([[1, -100, 2], [-100, -100, -100], [0, 0, 1], [2, 2, -100]])
TOKEN_LOGITS = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 3, 3)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_language_model_s_loss_is_the_mean_over_the_counted_tokens(smoothing):
    found = learns(Task.language_modeling, Loss(label_smoothing=smoothing))
    losses, weights = rows_of(found, TOKEN_LOGITS, TOKENS)
    assert weights.tolist() == [2.0, 0.0, 3.0, 2.0]
    assert losses[1].item() == 0.0
    mean = nn.CrossEntropyLoss(label_smoothing=smoothing)(TOKEN_LOGITS.flatten(0, 1), TOKENS.flatten())
    assert (losses.sum() / weights.sum()).item() == pytest.approx(mean.item(), rel=1e-14)
    nats = nn.CrossEntropyLoss()(TOKEN_LOGITS.flatten(0, 1), TOKENS.flatten()).item()
    right = (TOKEN_LOGITS.argmax(dim=2) == TOKENS).sum().item()
    expected = {
        "loss": mean.item(),
        "accuracy": right / 7,
        "bits_per_token": nats / math.log(2),
        "perplexity": math.exp(nats),
    }
    assert measured(found, TOKEN_LOGITS, TOKENS) == pytest.approx(expected, rel=1e-13)


def test_a_uniform_language_model_s_perplexity_is_its_vocabulary():
    found = measured(learns(Task.language_modeling), torch.zeros(4, 3, 3).double(), TOKENS)
    assert found["perplexity"] == pytest.approx(3.0, rel=1e-15)


def test_no_counted_token_is_not_a_number_and_a_hopeless_model_infinite():
    found = learns(Task.language_modeling)
    nothing = measured(found, TOKEN_LOGITS, torch.full((4, 3), -100))
    assert all(math.isnan(value) for value in nothing.values())
    wrong = nn.functional.one_hot(TOKENS[2:3], 3) * -1e4
    assert measured(found, wrong, TOKENS[2:3])["perplexity"] == math.inf


# Losses of one's own


def a_row(outputs, targets):
    return (outputs - targets).abs().sum(dim=1)


def an_element(outputs, targets):
    return (outputs - targets) ** 4


def their_mean(outputs, targets):
    return (outputs - targets).exp().mean()


def too_few(outputs, targets):
    return (outputs - targets)[:2]


def no_tensor(outputs, targets):
    return 1.0


def raising():
    raise ValueError("not today")


def custom(name, **arguments):
    return Loss(target={"_target_": f"tests.test_objective.{name}", "_partial_": True, **arguments})


ERRORS = np.array([[1.0, -2.0], [0.5, 0.0], [2.0, 3.0]])
OUTPUTS, TARGETS = torch.from_numpy(ERRORS + 1.0), torch.ones(3, 2).double()


HUBER = np.where(np.abs(ERRORS) <= 1, ERRORS**2 / 2, np.abs(ERRORS) - 0.5)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (custom("a_row"), np.abs(ERRORS).sum(axis=1)),
        (custom("an_element"), (ERRORS**4).mean(axis=1)),
        (custom("their_mean"), np.full(3, np.exp(ERRORS).mean())),
        (Loss(target={"_target_": "torch.nn.HuberLoss", "reduction": "none"}), HUBER.mean(axis=1)),
        (Loss(target={"_target_": "torch.nn.HuberLoss"}), np.full(3, HUBER.mean())),
    ],
)
def test_a_loss_of_one_s_own_gives_rows_elements_or_their_mean(loss, expected):
    losses, weights = rows_of(learns(Task.regression, loss), OUTPUTS, TARGETS)
    np.testing.assert_allclose(losses, expected, rtol=1e-14)
    assert weights.tolist() == [1.0] * 3


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_language_model_s_own_loss_sees_counted_tokens_alone(reduction):
    loss = Loss(target={"_target_": "torch.nn.CrossEntropyLoss", "reduction": reduction})
    outputs = TOKEN_LOGITS.where((TOKENS != -100)[:, :, None], torch.nan).requires_grad_()
    losses, weights = rows_of(learns(Task.language_modeling, loss), outputs, TOKENS)
    expected = nn.CrossEntropyLoss()(TOKEN_LOGITS.flatten(0, 1), TOKENS.flatten())
    assert (losses.sum() / weights.sum()).item() == pytest.approx(expected.item(), rel=1e-14)
    losses.sum().backward()
    assert torch.isfinite(outputs.grad).all()
    assert not outputs.grad[TOKENS == -100].any()
    nothing, _ = rows_of(learns(Task.language_modeling, loss), outputs, torch.full((4, 3), -100))
    assert nothing.tolist() == [0.0] * 4


@pytest.mark.parametrize(("name", "found"), [("too_few", "shape (2, 2)"), ("no_tensor", "a float")])
def test_a_loss_of_another_shape_is_an_error_in_one_line(name, found):
    with pytest.raises(TrainingError) as raised:
        rows_of(learns(Task.regression, custom(name)), OUTPUTS, TARGETS)
    assert str(raised.value) == (
        f"loss._target_=tests.test_objective.{name}: gave {found} for 3 rows; "
        "it must give a loss a row (3,), an element (3, …), or their mean ()"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"_target_": "tests.test_objective.raising"},
         "loss._target_=tests.test_objective.raising: ValueError: not today"),
        ({"_target_": "math.sqrt", "_args_": [4]},
         ("loss._target_=math.sqrt: gives a float, which cannot be called with (outputs, targets); "
          "type +loss._partial_=true where it is a function")),
        ({"_target_": "torch.nn.Linear", "in_features": None, "out_features": None},
         "loss._target_=torch.nn.Linear: has parameters of its own, which no optimizer would train"),
    ],
)  # fmt: skip
def test_what_is_no_loss_is_refused(target, message):
    with pytest.raises(ConfigError) as raised:
        learns(Task.regression, Loss(target=target))
    assert str(raised.value) == message


# Names


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (Task.classification, ["val/loss", "val/accuracy"]),
        (Task.multilabel, ["val/loss", "val/accuracy"]),
        (Task.regression, ["val/loss", "val/mae"]),
        (Task.language_modeling, ["val/loss", "val/accuracy", "val/bits_per_token", "val/perplexity"]),
    ],
)
def test_the_names_of_what_is_measured_need_nothing_of_the_user_s(task, names):
    unbuilt = {"_target_": "tests.test_objective.raising"}
    settings = {
        "dataset.task": task,
        "loss": Loss(target=unbuilt, class_weights="balanced"),
        "metrics": {"mine": unbuilt},
    }
    assert metric_names(make_experiment(settings)) == ["train/loss", *names, "val/mine"]
    assert [f"val/{name}" for name in learns(task).names] == names


@pytest.mark.parametrize("look", [metric_names, lambda experiment: objective(experiment, FACTS)])
def test_a_metric_with_the_name_of_a_built_in_one_is_refused(look):
    settings = {
        "dataset.task": Task.classification,
        "metrics": {"accuracy": {"_target_": "torchmetrics.Accuracy"}},
    }
    with pytest.raises(ConfigError) as raised:
        look(make_experiment(settings))
    assert str(raised.value) == (
        "metrics.accuracy={…}: a classification measures accuracy by itself; type another name, metrics.accuracy_2"
    )


def test_metrics_of_torchmetrics_join_the_built_in_ones():
    nodes = {"rmse": {"_target_": "torchmetrics.regression.MeanSquaredError", "squared": False}}
    found = measured(learns(Task.regression, metrics=nodes), OUTPUTS, TARGETS)
    assert list(found) == ["loss", "mae", "rmse"]
    assert found["rmse"] == pytest.approx(math.sqrt(found["loss"]), rel=1e-15)
