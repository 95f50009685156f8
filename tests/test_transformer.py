"""The language model: what it may see, how it starts, and that it can be stored and compiled."""

import math

import pytest
import torch

from models.transformer import Transformer, _angles, _turn


def small(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "context_length": 8, "width": 16, "depth": 2, "heads": 2, "dropout": 0.0}
    return Transformer(**{**sizes, **changes})


def excited(**changes):
    """With weights large enough that each path through the model shows in its outputs."""
    model = small(**changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def tokens(rows, time):
    return torch.randint(0, 11, (rows, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("time", [1, 5, 8])
def test_every_token_gets_logits(time):
    assert small()(tokens(3, time)).shape == (3, time, 11)


def test_parameters():
    width, vocabulary, depth = 16, 11, 2
    attention = (width * 3 * width + 3 * width) + (width * width + width)
    network = (width * 4 * width + 4 * width) + (4 * width * width + width)
    block = 2 * width + attention + 2 * width + network
    found = sum(parameter.numel() for parameter in small().parameters())
    assert found == vocabulary * width + depth * block + 2 * width  # the output layer is the embedding
    assert sum(tensor.numel() for tensor in small().state_dict().values()) == found


@pytest.mark.parametrize("place", range(8))
def test_a_token_changes_no_earlier_logits_and_all_later_ones(place):
    model, rows = excited(), tokens(1, 8)
    changed = rows.clone()
    changed[0, place] = (rows[0, place] + 1) % 11
    before, after = model(rows)[0], model(changed)[0]
    torch.testing.assert_close(before[:place], after[:place], rtol=0, atol=1e-5)
    assert ((before[place:] - after[place:]).abs().amax(dim=1) > 1e-3).all()


def test_the_order_of_earlier_tokens_matters():
    model = excited(depth=1)
    last = [model(torch.tensor([row]))[0, -1] for row in ([1, 2, 3, 4], [2, 1, 3, 4])]
    assert (last[0] - last[1]).abs().max() > 1e-3


def test_turns_are_plane_rotations_by_the_place():
    angles = _angles(3, 4)
    torch.testing.assert_close(angles, torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]]))
    turned = _turn(torch.tensor([[[[1.0, 0.0, 0.0, 2.0]] * 3]]), torch.stack([angles.cos(), angles.sin()]))
    place_2 = [math.cos(2), -2 * math.sin(0.02), math.sin(2), 2 * math.cos(0.02)]
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([1.0, 0.0, 0.0, 2.0]))
    torch.testing.assert_close(turned[0, 0, 2], torch.tensor(place_2))


def test_products_of_turned_features_depend_on_the_distance_alone():
    angles = _angles(8, 6)
    turns = torch.stack([angles.cos(), angles.sin()])
    query, key = torch.randn(2, 1, 1, 1, 6).expand(2, 1, 1, 8, 6)
    products = (_turn(query, turns) @ _turn(key, turns).mT)[0, 0]
    for distance in (0, 1, 3):
        torch.testing.assert_close(
            products.diagonal(-distance), products[distance, 0].expand(8 - distance), rtol=1e-4, atol=1e-5
        )


def test_weights_start_as_in_gpt_2():
    model = small(vocab_size=256, width=64, depth=8)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1 if name.endswith("norm.weight") else 0)).all(), name
        else:
            expected = 0.02 / math.sqrt(16) if "leave" in name else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_an_untrained_model_is_undecided():
    model, rows = small(vocab_size=256, context_length=64), torch.randint(0, 256, (4, 64))
    loss = torch.nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.roll(1).flatten())
    assert loss.item() / math.log(2) == pytest.approx(8, abs=0.05)


def test_dropout_is_for_training_only():
    model, rows = small(dropout=0.5), tokens(1, 8)
    assert not torch.equal(model(rows), model(rows))
    model.eval()
    assert torch.equal(model(rows), model(rows))


def test_export_with_any_number_of_rows():
    model = excited()
    exported = torch.export.export(model, (tokens(2, 8),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for rows in (1, 2, 5):
        torch.testing.assert_close(exported.module()(tokens(rows, 8)), model(tokens(rows, 8)))


def test_it_is_compiled_as_one_graph():
    model = excited()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens(2, 8)), model(tokens(2, 8)))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"^width=18 must be a multiple of 2 × heads=2$"):
        small(width=18)
    with pytest.raises(ValueError, match=r"^rows of 9 tokens are longer than context_length=8$"):
        small()(tokens(1, 9))
