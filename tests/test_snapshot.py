"""A snapshot shares nothing with the training, and holds nothing that would not load again."""

from collections import Counter, OrderedDict, namedtuple
from enum import StrEnum

import numpy as np
import pytest
import torch

from runner import checkpoint
from runner.errors import TrainingError
from runner.snapshot import Snapshot, copied, copy_of


class Mode(StrEnum):
    low = "low"


def test_what_trains_on_does_not_change_the_snapshot():
    weight, momentum, losses = torch.ones(2, requires_grad=True), torch.ones(3), [1.0]
    state = {"optimizer": {0: {"momentum": momentum}}, "tuple": (momentum,), "losses": losses}
    taken = copy_of(Snapshot("step-00000001", {"w": weight}, state, {"metrics": {"loss": losses}}, {}))
    with torch.no_grad():
        weight.add_(1)
    momentum.add_(1)
    losses.append(2.0)
    state["later"] = 1
    assert torch.equal(taken.weights["w"], torch.ones(2))
    assert not taken.weights["w"].requires_grad
    assert torch.equal(taken.state["optimizer"][0]["momentum"], torch.ones(3))
    assert torch.equal(taken.state["tuple"][0], torch.ones(3))
    assert (taken.state["losses"], taken.facts["metrics"]["loss"]) == ([1.0], [1.0])
    assert sorted(taken.state) == ["losses", "optimizer", "tuple"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1).expand(4),
        torch.arange(10.0)[2:5],
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.ones(2, dtype=torch.bfloat16),
    ],
)
def test_a_copied_tensor_has_memory_of_its_own_and_no_more(tensor):
    copy = copied(tensor, "state")
    assert torch.equal(copy, tensor)
    assert copy.dtype is tensor.dtype
    assert copy.untyped_storage().nbytes() == tensor.nbytes
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


PLAIN = {
    "none": None,
    "nested": {"a": [1, 2.5, True, "text", b"bytes", 1j], 7: (None, {"x"})},
    "counter": Counter({3: 2}),
    "ordered": OrderedDict(a=1),
    "torch": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
}
NARROWED = [
    (np.float64(0.1), 0.1),
    (np.int64(3), 3),
    (Mode.low, "low"),
    (namedtuple("Pair", "a b")(1, 2), (1, 2)),
]


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_are_kept_as_they_are_and_load_again(tmp_path, name):
    taken = copy_of(Snapshot("step-00000001", {}, {"value": PLAIN[name]}, {}, {}))
    assert taken.state["value"] == PLAIN[name]
    assert type(taken.state["value"]) is type(PLAIN[name])
    path = checkpoint.commit(tmp_path, taken.name, taken.weights, taken.state, taken.facts)
    loaded = checkpoint.load(path)[1]["value"]
    assert loaded == PLAIN[name]
    assert type(loaded) is type(PLAIN[name])


@pytest.mark.parametrize(("value", "plain"), NARROWED)
def test_what_only_derives_from_a_plain_value_becomes_one(value, plain):
    found = copied(value, "state")
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (len, "builtin_function_or_method"),
        (np.ones(2), "ndarray"),
        (object(), "object"),
        (torch.nn.ReLU(), "ReLU"),
    ],
)
def test_what_would_not_load_again_is_refused_by_its_name(value, kind):
    state = {"schedule": {"lambdas": [None, value]}}
    with pytest.raises(TrainingError) as refused:
        copy_of(Snapshot("step-00000001", {}, state, {}, {}))
    assert str(refused.value) == (
        f"state.schedule.lambdas.1: a {kind} cannot be kept, a checkpoint holds tensors and plain values"
    )
