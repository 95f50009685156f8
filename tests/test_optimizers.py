"""Every optimizer of conf/optimizer: its first steps in closed form, and the same steps under Horovod."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional

from models.mlp import MLP
from models.resnet import ResNet
from models.transformer import Transformer
from runner import parameters, schema
from runner.schedule import Schedule
from runner.schema import Interval

FOLDER = Path(__file__).resolve().parents[1] / "conf/optimizer"
# Another value of an option of each: a wrapper that lost it would go on with the default.
CHANGES = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "adam": {"betas": [0.5, 0.6], "eps": 0.1},
    "adamw": {"betas": [0.5, 0.6], "weight_decay": 0.5},
    "rmsprop": {"alpha": 0.5, "momentum": 0.9, "centered": True},
    "adagrad": {"lr_decay": 0.5, "initial_accumulator_value": 0.5},
    "lion": {"betas": [0.5, 0.6], "weight_decay": 0.5},
    "lars": {"trust_coefficient": 0.1, "momentum": 0.5},
    "lamb": {"pre_norm": True, "max_grad_norm": 0.01},  # neither is an option of its groups
    "muon": {"ns_steps": 3, "momentum": 0.5},
}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.hidden = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head(self.hidden(self.tokens(tokens)))


def settings(name, **changes):
    """conf/optimizer/<name>.yaml with `changes`, as config.py splits it."""
    plain = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) | changes
    own = {field.name for field in dataclasses.fields(schema.Optimizer)} & plain.keys()
    target = {key: value for key, value in plain.items() if key not in own}
    return schema.Optimizer(**{key: plain[key] for key in own}, target=target)


def network():
    torch.manual_seed(0)
    return Network()


def trained(model, optimizer, steps=3):
    """The weights after so many steps on the same rows."""
    tokens, classes = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([0, 1, 2, 0, 1, 2])
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), classes).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def stepped(name, weights, gradients, multiplier=1.0, **changes):
    """[weights before the first, second, … step, and after the last]; beside a matrix and a vector that stay."""
    model = nn.Module()
    model.matrix, model.vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    model.weight = nn.Parameter(weights.clone())
    optimizer = parameters.optimizer(model, settings(name, **changes), multiplier)
    seen = [weights.clone()]
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        optimizer.step()
        seen.append(model.weight.detach().clone())
    return seen


def randoms(*shape, count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def hvd():
    """Horovod with this process as its only rank."""
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


def test_every_file_is_tested():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_horovod_s_wrapper_takes_the_same_steps_with_every_option(hvd, name):
    alone, wrapped, default = network(), network(), network()
    changed = settings(name, **CHANGES[name])
    optimizer = parameters.optimizer(wrapped, changed, 2.0)
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=wrapped.named_parameters())
    distributed.load_state_dict(distributed.state_dict())  # as the communicator does to broadcast it
    expected = trained(alone, parameters.optimizer(alone, changed, 2.0))
    assert torch.equal(trained(wrapped, distributed), expected)
    assert not torch.equal(trained(default, parameters.optimizer(default, settings(name), 2.0)), expected)


@pytest.mark.parametrize("name", CHANGES)
def test_a_restored_optimizer_goes_on_as_if_it_had_not_stopped(name, tmp_path):
    model, resumed = network(), network()
    optimizer = parameters.optimizer(model, settings(name), 2.0)
    trained(model, optimizer)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(weights)
    restored = parameters.optimizer(resumed, settings(name), 2.0)
    restored.load_state_dict(state)
    assert torch.equal(trained(resumed, restored), trained(model, optimizer))


@pytest.mark.parametrize("name", CHANGES)
def test_every_group_has_the_scaled_lr(name):
    once, twice = (parameters.optimizer(network(), settings(name), multiplier) for multiplier in (1.0, 2.0))
    assert once.param_groups[0]["lr"] == settings(name).lr
    assert [group["lr"] for group in twice.param_groups] == [2 * group["lr"] for group in once.param_groups]


def test_lion_takes_the_sign_of_interpolated_momentum():
    """Chen et al. 2023, algorithm 2: u = sign(β₁m + (1−β₁)g); w ← w − lr(u + λw); m ← β₂m + (1−β₂)g."""
    weights, *gradients = randoms(3, 4)
    lr, decay, beta1, beta2 = 0.01, 0.5, 0.9, 0.5
    seen = stepped("lion", weights, gradients, lr=lr, betas=[beta1, beta2], weight_decay=decay)
    momentum = torch.zeros_like(weights)
    for before, gradient, after in zip(seen, gradients, seen[1:], strict=False):
        direction = torch.sign(beta1 * momentum + (1 - beta1) * gradient)
        close(after, before - lr * (direction + decay * before))
        momentum = beta2 * momentum + (1 - beta2) * gradient
    assert not torch.equal(torch.sign(gradients[1]), direction)  # the momentum has its say


def test_lars_moves_a_matrix_by_the_trust_ratio():
    """You et al. 2017, algorithm 1: v ← mv + lr η‖w‖/(‖g‖ + λ‖w‖) (g + λw); w ← w − v."""
    weights, *gradients = randoms(3, 4)
    decay, momentum, trust = 0.1, 0.9, 0.001
    seen = stepped("lars", weights, gradients, multiplier=2.0, weight_decay=decay)
    velocity = torch.zeros_like(weights)
    for before, gradient, after in zip(seen, gradients, seen[1:], strict=False):
        ratio = trust * before.norm() / (gradient.norm() + decay * before.norm())
        velocity = momentum * velocity + ratio * (gradient + decay * before)
        close(after, before - 2.0 * velocity)


def test_lars_moves_a_vector_as_sgd_does():
    weights, gradient = randoms(4, count=2)
    close(stepped("lars", weights, [gradient], weight_decay=0.1)[1], weights - gradient)


def test_lamb_moves_a_tensor_by_the_trust_ratio():
    """You et al. 2020, algorithm 2, w ← w − lr ‖w‖/‖u‖ u, u without bias correction; ‖w‖ is at most 10 there."""
    for scale in (1.0, 100.0):
        weights, *gradients = randoms(3, 4)
        weights *= scale
        lr, decay, beta1, beta2, eps = 0.01, 0.1, 0.9, 0.999, 1e-6
        seen = stepped("lamb", weights, gradients, weight_decay=decay)
        first, second = torch.zeros_like(weights), torch.zeros_like(weights)
        for before, gradient, after in zip(seen, gradients, seen[1:], strict=False):
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            update = first / (second.sqrt() + eps)
            decayed = before * (1 - lr * decay)
            close(after, decayed - lr * decayed.norm().clamp(max=10) / (update.norm() + eps) * update)


def test_without_adam_debias_lamb_s_first_step_is_ten_times_as_long():
    weights, gradient = randoms(3, 4, count=2)
    before, after = stepped("lamb", weights, [gradient])
    _, longer = stepped("lamb", weights, [gradient], adam_debias=False)
    close(longer - before, 10 * (after - before))
    assert float((after - before).norm()) == pytest.approx(0.01 * float(weights.norm()), rel=1e-6)


def test_muon_s_update_is_nearly_orthogonal_and_along_the_gradient_s_singular_vectors():
    """Jordan 2024: five Newton-Schulz iterations bring every singular value into about [0.68, 1.13]."""
    for rows, columns in ((6, 6), (4, 9), (9, 4)):
        weights, gradient = randoms(rows, columns, count=2)
        before, after = stepped("muon", weights, [gradient])
        update = (before - after) / (0.01 * math.sqrt(max(1, rows / columns)))
        left, _, right = torch.linalg.svd(gradient, full_matrices=False)
        rotated = left.T @ update @ right.T
        values = rotated.diagonal()
        assert ((values > 0.65) & (values < 1.2)).all()
        assert (rotated - values.diag()).abs().max() < 0.02  # it is computed in bfloat16


@pytest.mark.parametrize(
    ("shape", "reference"),
    [
        ((9, 4), lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.95, weight_decay=0.0)),
        ((4,), lambda p: torch.optim.AdamW(p, lr=0.0006, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)),
    ],
)
def test_muon_is_torch_s_muon_for_a_matrix_and_torch_s_adamw_for_a_vector(shape, reference):
    weights, *gradients = randoms(*shape)
    seen = stepped("muon", weights, gradients, multiplier=2.0)
    parameter = nn.Parameter(weights.clone())
    optimizer = reference([parameter])
    for gradient, after in zip(gradients, seen[1:], strict=True):
        parameter.grad = gradient.clone()
        optimizer.step()
        close(after, parameter.detach())


@pytest.mark.parametrize(
    ("model", "hidden"),
    [
        (lambda: MLP(8, 3, hidden=[5]), "layers."),  # its last layer has no name of its own
        (lambda: ResNet((1, 8, 8), 3, depth=8, width=4), "layers."),
        (lambda: Transformer(vocab_size=7, context_length=4, width=4, depth=1, heads=1), "blocks."),
        (Network, "hidden."),
    ],
)
def test_muon_takes_hidden_matrices_and_leaves_embeddings_heads_norms_and_biases_to_adamw(model, hidden):
    built = model()
    muon, adamw = parameters.groups(built, settings("muon"), 1.0)
    matrices = [p for name, p in built.named_parameters() if name.startswith(hidden) and p.ndim >= 2]
    assert [id(p) for p in muon["params"]] == [id(p) for p in matrices]
    assert len(muon["params"]) + len(adamw["params"]) == len(list(built.parameters()))
    assert (muon["use_muon"], adamw["use_muon"]) == (True, False)


def test_a_warm_up_reaches_both_parts_of_muon():
    def moved(warmup):
        model = network()
        optimizer = parameters.optimizer(model, settings("muon"), 1.0)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
        Schedule(optimizer, constant, Interval.step, warmup, 0.25, 10)
        before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        return trained(model, optimizer, steps=1) - before

    torch.testing.assert_close(moved(warmup=4), moved(warmup=0) / 4, rtol=1e-3, atol=1e-6)
