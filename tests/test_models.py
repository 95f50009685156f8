"""The models: sizes, shapes, and outputs worked out by hand."""

import re

import pytest
import torch

from models.cnn import CNN
from models.linear import Linear
from models.mlp import MLP
from models.resnet import ResNet
from models.tabular import TabularResNet


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


@pytest.mark.parametrize("model", [MLP(64, 10, [16]), Linear(64, 10), TabularResNet(64, 10).eval()])
def test_inputs_of_any_shape_are_flattened(model):
    images = torch.randn(5, 1, 8, 8)
    assert model(images).shape == (5, 10)
    assert torch.equal(model(images), model(images.reshape(5, 64)))


@pytest.mark.parametrize(
    ("input_shape", "flattened"),
    [
        ([1, 8, 8], 64 * 2 * 2),
        ([3, 32, 32], 64 * 8 * 8),
        ([1, 7, 5], 64 * 2 * 2),  # sides are rounded up: 7 → 4 → 2, 5 → 3 → 2
        ([2, 1, 1], 64),
    ],
)
def test_cnn_takes_images_of_any_size(input_shape, flattened):
    model = CNN(input_shape, 10, widths=[32, 64])
    assert model(torch.randn(5, *input_shape)).shape == (5, 10)
    convolutions = (9 * input_shape[0] * 32 + 32) + (9 * 32 * 64 + 64)
    assert count(model) == convolutions + flattened * 10 + 10


def test_cnn_outputs():
    model = CNN([1, 2, 2], 1, widths=[1])
    cross = torch.tensor([[0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 0.0]])
    weights = {"layers.0.weight": cross[None, None], "layers.0.bias": torch.tensor([-1.0])}
    weights |= {"layers.4.weight": torch.tensor([[10.0]]), "layers.4.bias": torch.tensor([0.5])}
    model.load_state_dict(weights)
    # [[1, 2], [3, 4]]: the convolution gives [[7, 9], [11, 13]] − 1, of which the largest is 12
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[-1.0, -1.0], [-1.0, -1.0]]]])
    assert model(images).tolist() == [[120.5], [0.5]]


def test_cnn_drops_out_before_the_last_layer_only_when_asked():
    assert kinds(CNN([1, 8, 8], 10, [4], dropout=0.5)) == (
        ["Conv2d", "ReLU", "MaxPool2d", "Flatten", "Dropout", "Linear"]
    )
    assert "Dropout" not in kinds(CNN([1, 8, 8], 10, [4]))


@pytest.mark.parametrize("model", [CNN, ResNet])
@pytest.mark.parametrize("input_shape", [[64], [8, 8], [2, 3, 8, 8]])
def test_a_convolutional_network_refuses_rows_that_are_no_images(model, input_shape):
    message = (
        f"input_shape={input_shape} must be [channels, height, width]; rows that are no images take model=mlp"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        model(input_shape, 10)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_resnet_has_as_many_parameters_as_in_table_6_of_he_et_al(depth, millions):
    digits = 1 if millions > 1 else 2
    assert round(count(ResNet([3, 32, 32], 10, depth, norm="batch")) / 1e6, digits) == millions


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_parameters(norm):
    # Convolutions without bias, a scale and a shift a channel after each, one linear layer at the end.
    first = 9 * 1 * 16 + 2 * 16
    stages = 2 * (9 * 16 * 16 + 32) + (9 * 16 * 32 + 9 * 32 * 32 + 128) + (9 * 32 * 64 + 9 * 64 * 64 + 256)
    assert count(ResNet([1, 8, 8], 10, depth=8, width=16, norm=norm)) == first + stages + 64 * 10 + 10


@pytest.mark.parametrize("input_shape", [[1, 8, 8], [3, 32, 32], [1, 1, 1]])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_takes_images_of_any_size(input_shape, norm):
    assert ResNet(input_shape, 7, depth=14, width=4, norm=norm)(torch.randn(3, *input_shape)).shape == (3, 7)


def test_each_block_of_a_resnet_starts_as_its_shortcut():
    block = ResNet([1, 8, 8], 10, depth=8, width=2).layers[4]
    images = torch.rand(3, 2, 8, 8)
    assert torch.equal(block(images)[:, :2], images[:, :, ::2, ::2])
    assert torch.equal(block(images)[:, 2:], torch.zeros(3, 2, 4, 4))


@pytest.mark.parametrize(
    ("depth", "nearest"), [(18, 20), (9, 8), (34, 32), (101, 98), (7, 8), (2, 8), (1, 8), (-40, 8)]
)
def test_resnet_names_the_nearest_depth(depth, nearest):
    message = f"depth={depth} must be 6n + 2: 8, 14, 20, …; the nearest is depth={nearest}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ResNet([1, 8, 8], 10, depth)


def test_resnet_names_the_norms_there_are():
    with pytest.raises(ValueError, match="norm=layer must be batch or group"):
        ResNet([1, 8, 8], 10, norm="layer")


@pytest.mark.parametrize(
    "model", [ResNet([1, 8, 8], 10, depth=8), TabularResNet(64, 10, dropout=0.0), CNN([1, 8, 8], 10)]
)
def test_a_row_s_output_does_not_depend_on_its_batch(model):
    model.train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    rows = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(model(rows)[2:3], model(rows[2:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("width", "depth"), [(64, 2), (8, 1), (5, 0)])
def test_tabular_resnet_parameters(width, depth):
    block = 2 * width + (width * 2 * width + 2 * width) + (2 * width * width + width)
    expected = (30 * width + width) + depth * block + 2 * width + (width * 2 + 2)
    assert count(TabularResNet(30, 2, width, depth)) == expected


def test_tabular_resnet_adds_its_blocks_to_what_enters():
    model = TabularResNet(3, 2, width=4, depth=2).eval()
    for block in model.blocks:
        torch.nn.init.zeros_(block.contract.weight)
        torch.nn.init.constant_(block.contract.bias, 0.25)
    rows = torch.randn(5, 3)
    assert torch.equal(model(rows), model.leave(model.enter(rows) + 0.25 + 0.25))


def test_tabular_resnet_drops_out_in_training_only():
    model, rows = TabularResNet(8, 3, dropout=0.5), torch.ones(1, 8)
    assert not torch.equal(model(rows), model(rows))
    model.eval()
    assert torch.equal(model(rows), model(rows))
