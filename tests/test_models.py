"""The models: sizes, shapes, and outputs worked out by hand."""

import pytest
import torch

from models.linear import Linear
from models.mlp import MLP


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def kinds(model):
    return [type(layer).__name__ for layer in model.layers]


@pytest.mark.parametrize(
    ("hidden", "parameters"),
    [
        ([], 64 * 10 + 10),
        ([128], 64 * 128 + 128 + 128 * 10 + 10),
        ([7, 5], 64 * 7 + 7 + 7 * 5 + 5 + 5 * 10 + 10),
    ],
)
def test_mlp_parameters(hidden, parameters):
    assert count(MLP(64, 10, hidden)) == parameters


def test_mlp_layers():
    assert kinds(MLP(4, 2, [])) == ["Flatten", "Linear"]
    assert kinds(MLP(4, 2, [3])) == ["Flatten", "Linear", "ReLU", "Linear"]
    assert kinds(MLP(4, 2, [3, 3], dropout=0.5)) == (
        ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    )


def test_mlp_outputs():
    model = MLP(2, 1, [2])
    weights = {
        "layers.1.weight": [[1.0, -1.0], [2.0, 0.0]],
        "layers.1.bias": [0.0, -1.0],
        "layers.3.weight": [[10.0, 1.0]],
        "layers.3.bias": [0.5],
    }
    model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    # [3, 1]: hidden [2, 5]; [0, 4]: hidden [−4 → 0, −1 → 0]
    assert model(torch.tensor([[3.0, 1.0], [0.0, 4.0]])).tolist() == [[25.5], [0.5]]


def test_mlp_drops_out_in_training_only():
    torch.manual_seed(0)
    model, rows = MLP(8, 3, [64], dropout=0.5), torch.ones(1, 8)
    assert not torch.equal(model(rows), model(rows))
    model.eval()
    assert torch.equal(model(rows), model(rows))


def test_linear_outputs_and_parameters():
    model = Linear(2, 1)
    model.load_state_dict(
        {"layers.1.weight": torch.tensor([[2.0, 3.0]]), "layers.1.bias": torch.tensor([1.0])}
    )
    assert model(torch.tensor([[1.0, 10.0], [0.0, 0.0]])).tolist() == [[33.0], [1.0]]
    assert count(model) == 3
    assert count(Linear(2, 1, bias=False)) == 2


@pytest.mark.parametrize("model", [MLP(64, 10, [16]), Linear(64, 10)])
def test_inputs_of_any_shape_are_flattened(model):
    images = torch.randn(5, 1, 8, 8)
    assert model(images).shape == (5, 10)
    assert torch.equal(model(images), model(images.reshape(5, 64)))
