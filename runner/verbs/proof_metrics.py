"""The metrics of a validation as scikit-learn computes them from targets and outputs of all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from runner import losses
from runner.plan import DataFacts
from runner.schema import UNCOUNTED, Experiment, Task

Array = Any
PLAIN = {"_target_", "num_classes", "num_labels", "num_outputs", "average", "squared"}
AVERAGES = ("macro", "micro", "weighted")


def by_scikit_learn(
    experiment: Experiment, data: DataFacts, targets: Tensor, outputs: Tensor
) -> dict[str, float]:
    """{"val/accuracy": …} of float64 `outputs` [rows, …] and `targets` [rows] or [rows, …].

    Metrics that scikit-learn does not have, or not with these settings, are left out: losses of one's own and smoothed
    labels, Spearman's correlation, calibration, an AUROC over classes of which one has no rows.
    """
    task = experiment.dataset.task
    if task is Task.language_modeling:
        counted = targets != UNCOUNTED
        targets, outputs = targets[counted], outputs[counted]
    found = _TASKS[task](experiment, data, targets, outputs)
    for name, node in experiment.metrics.items():
        function = _LIBRARY.get(str(node["_target_"]).rpartition(".")[2])
        if function is not None and set(node) <= PLAIN:
            value = function(node, targets.numpy(), _scores(task, outputs))
            found |= {} if value is None else {name: value}
    return {f"val/{name}": float(value) for name, value in found.items()}


def _scores(task: Task, outputs: Tensor) -> Array:
    """What the metrics take: probabilities, or a regression's outputs."""
    if task is Task.regression:
        return outputs.numpy()
    return (outputs.sigmoid() if task is Task.multilabel else outputs.softmax(dim=1)).numpy()


def _is_plain(experiment: Experiment) -> bool:
    return not experiment.loss.target and not experiment.loss.label_smoothing


def _classification(
    experiment: Experiment, data: DataFacts, targets: Tensor, outputs: Tensor
) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, log_loss

    found = {"accuracy": accuracy_score(targets, outputs.argmax(dim=1))}
    if _is_plain(experiment):
        weights = losses.class_weights(experiment.loss.class_weights, data)
        found["loss"] = log_loss(
            targets,
            _scores(Task.classification, outputs),
            sample_weight=None if weights is None else weights[targets].numpy(),
            labels=range(data.out_features),
        )
    return found


def _multilabel(
    experiment: Experiment, data: DataFacts, targets: Tensor, outputs: Tensor
) -> dict[str, float]:
    from sklearn.metrics import hamming_loss, log_loss

    labels = (targets > 0.5).numpy()
    found = {"accuracy": 1 - hamming_loss(labels, (outputs > 0).numpy())}
    if _is_plain(experiment):
        columns = zip(labels.T, _scores(Task.multilabel, outputs).T, strict=True)
        found["loss"] = np.mean([log_loss(label, score, labels=[False, True]) for label, score in columns])
    return found


def _regression(
    experiment: Experiment, data: DataFacts, targets: Tensor, outputs: Tensor
) -> dict[str, float]:
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    found = {"mae": mean_absolute_error(targets, outputs)}
    return found | ({"loss": mean_squared_error(targets, outputs)} if _is_plain(experiment) else {})


def _language_modeling(
    experiment: Experiment, data: DataFacts, targets: Tensor, outputs: Tensor
) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, log_loss

    nats = log_loss(targets, outputs.softmax(dim=1).numpy(), labels=range(data.out_features))
    found = {"accuracy": accuracy_score(targets, outputs.argmax(dim=1))}
    found |= {"bits_per_token": nats / math.log(2), "perplexity": math.exp(nats)}
    return found | ({"loss": nats} if _is_plain(experiment) else {})


_TASKS: dict[Task, Callable[[Experiment, DataFacts, Tensor, Tensor], dict[str, float]]] = {
    Task.classification: _classification,
    Task.multilabel: _multilabel,
    Task.regression: _regression,
    Task.language_modeling: _language_modeling,
}

Node = Mapping[str, Any]
Compute = Callable[[Node, Array, Array], float | None]  # (node, targets, scores)


def _of_classes(name: str) -> Compute:
    def compute(node: Node, targets: Array, scores: Array) -> float | None:
        from sklearn import metrics

        average = node.get("average", "macro")
        said = scores.argmax(axis=1)
        score: Any = getattr(metrics, name)
        return score(targets, said, average=average, zero_division=0) if average in AVERAGES else None

    return compute


def _of_labels(name: str) -> Compute:
    def compute(node: Node, targets: Array, scores: Array) -> float | None:
        from sklearn import metrics

        average, score = node.get("average", "macro"), getattr(metrics, name)
        return score(targets, scores > 0.5, average=average, zero_division=0) if average in AVERAGES else None

    return compute


def _auroc(node: Node, targets: Array, scores: Array) -> float | None:
    """One class against the rest, averaged."""
    from sklearn.metrics import roc_auc_score

    classes = range(scores.shape[1])
    columns = targets[:, None] == np.array(classes) if targets.ndim == 1 else targets > 0.5
    if node.get("average", "macro") != "macro" or not (columns.any(axis=0) & ~columns.all(axis=0)).all():
        return None
    return float(np.mean([roc_auc_score(columns[:, each], scores[:, each]) for each in classes]))


def _average_precision(node: Node, targets: Array, scores: Array) -> float | None:
    from sklearn.metrics import average_precision_score

    if node.get("average", "macro") != "macro" or not (targets > 0.5).any(axis=0).all():
        return None
    return average_precision_score(targets > 0.5, scores, average="macro")


def _mean_squared_error(node: Node, targets: Array, scores: Array) -> float | None:
    from sklearn.metrics import mean_squared_error

    error = mean_squared_error(targets, scores)
    return error if node.get("squared", True) else math.sqrt(error)


def _r2(node: Node, targets: Array, scores: Array) -> float | None:
    from sklearn.metrics import r2_score

    return r2_score(targets, scores)


_LIBRARY: dict[str, Compute] = {
    "MulticlassF1Score": _of_classes("f1_score"),
    "MulticlassPrecision": _of_classes("precision_score"),
    "MulticlassRecall": _of_classes("recall_score"),
    "MulticlassAUROC": _auroc,
    "MultilabelF1Score": _of_labels("f1_score"),
    "MultilabelPrecision": _of_labels("precision_score"),
    "MultilabelRecall": _of_labels("recall_score"),
    "MultilabelAUROC": _auroc,
    "MultilabelAveragePrecision": _average_precision,
    "MeanSquaredError": _mean_squared_error,
    "R2Score": _r2,
}
