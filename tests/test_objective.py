"""Losses and metrics row by row, against numpy."""

import numpy as np
import torch

from runner.objective import objective
from runner.schema import Task

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 3.0, 1.0], [5.0, -5.0, 0.5]])
LABELS = np.array([0, 2, 0, 2])


def test_cross_entropy_of_each_row():
    found = objective(Task.classification).row_losses(torch.from_numpy(LOGITS), torch.from_numpy(LABELS))
    expected = np.log(np.exp(LOGITS).sum(axis=1)) - LOGITS[range(4), LABELS]
    assert found.shape == (4,)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14)


def test_accuracy_is_one_where_the_largest_output_is_the_label():
    metrics = objective(Task.classification).row_metrics
    assert list(metrics) == ["accuracy"]
    labels = torch.tensor([0, 1, 1, 2])
    assert metrics["accuracy"](torch.from_numpy(LOGITS), labels).tolist() == [1.0, 0.0, 1.0, 0.0]


def test_squared_and_absolute_error_are_means_over_a_row_s_targets():
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[3.0, 1.0], [0.0, 1.0]])
    found = objective(Task.regression)
    assert found.row_losses(outputs, targets).tolist() == [2.5, 4.5]  # (4 + 1) / 2, (0 + 9) / 2
    assert list(found.row_metrics) == ["mae"]
    assert found.row_metrics["mae"](outputs, targets).tolist() == [1.5, 1.5]


def test_errors_of_a_single_target():
    outputs, targets = torch.tensor([[1.0], [-2.0]]), torch.tensor([[4.0], [-2.5]])
    found = objective(Task.regression)
    assert found.row_losses(outputs, targets).tolist() == [9.0, 0.25]
    assert found.row_metrics["mae"](outputs, targets).tolist() == [3.0, 0.5]


def test_only_the_loss_carries_a_gradient_for_each_row():
    outputs = torch.from_numpy(LOGITS).requires_grad_()
    objective(Task.classification).row_losses(outputs, torch.from_numpy(LABELS)).sum().backward()
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs.grad.numpy(), softmax - np.eye(3)[LABELS], rtol=0, atol=1e-14)
