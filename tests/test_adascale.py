"""AdaScale's gain on a quadratic whose gradient noise is known in closed form, and what it is measured from."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runner.adascale import AdaScale, gain_ratio
from runner.communicator import SingleProcess
from runner.ingest.batches import MicroBatch
from runner.learner import Learner
from runner.loop import step
from runner.objective import objective
from runner.plan import DataFacts
from runner.schedule import Schedule
from runner.schema import Interval, OnNonfinite, Task
from runner.train_state import Stretch
from tests.fakes import make_experiment
from tests.lockstep import in_lockstep

SIZE, BATCH = 50, 4  # weights; rows of the base batch
positive = st.floats(1e-6, 1e6)


class Constant(nn.Module):
    """w for every row. Its mean squared error over rows x ~ N(0, ν²) has the gradient 2/n (w − mean x): the noise of a
    batch of b rows is n ν²/b, the signal ‖w‖², in units of (2/n)²."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((SIZE,), value / math.sqrt(SIZE), dtype=torch.float64))

    def forward(self, inputs):
        return self.weight.expand(len(inputs), SIZE)


def learner_of(model, communicator, workers, accumulation, lr=0.0, fp16=False, batch=BATCH, total=None):
    communicator.broadcast_model(model)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=lr)
    adascale = AdaScale([p for p in model.parameters() if p.requires_grad], workers, accumulation, batch)
    optimizer = communicator.distribute(optimizer, model, accumulation)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    schedule = Schedule(optimizer, constant, Interval.step, 0, 1.0, 10, total)
    aim = objective(make_experiment({"dataset.task": Task.regression}), DataFacts(1, 1, (SIZE,), SIZE))
    scaler = torch.amp.GradScaler("cpu", enabled=fp16, init_scale=1024.0)
    return Learner(model, optimizer, schedule, aim, scaler=scaler, adascale=adascale)


def batches_of(draws, noise, workers, accumulation, rank=0):
    """A rank's micro-batches of one step; all ranks draw all of them."""
    rows = noise * torch.randn(workers * accumulation, BATCH, SIZE, generator=draws, dtype=torch.float64)
    mine = rows[rank * accumulation : (rank + 1) * accumulation]
    total = workers * accumulation * BATCH
    return [MicroBatch(part, part, True, total) for part in mine]


def gains_of(noise, workers, accumulation, steps, lr=0.0, signal=1.0, **more):
    """Each rank's (gains, squared norms of w before each step) on the quadratic."""

    def rank(communicator):
        learner = learner_of(Constant(signal), communicator, workers, accumulation, lr, **more)
        draws, found, signals = torch.Generator().manual_seed(1), [], []
        for _ in range(steps):
            signals.append(float(learner.model.weight.detach().square().sum()))
            batches = batches_of(draws, noise, workers, accumulation, communicator.rank)
            found.append(step(learner, batches, Stretch(), communicator)[1])
        return found, signals

    return in_lockstep(workers, rank)


def closed_form(noise, scale, signal=1.0):
    """(σ² + μ²) / (σ²/S + μ²) with σ² = n ν²/b and μ² = ‖w‖²."""
    variance = SIZE * noise**2 / BATCH
    return (variance + signal) / (variance / scale + signal)


@pytest.mark.parametrize(
    ("noise", "workers", "accumulation", "expected"),
    [
        (0.01, 1, 4, 1.00094),
        (0.1, 1, 4, 1.0909),
        (0.2, 1, 4, 1.3333),
        (0.3, 1, 8, 1.8630),
        (0.5, 2, 2, 2.3158),
        (1.0, 1, 4, 3.2727),
        (3.0, 1, 4, 3.8970),
        (10.0, 4, 1, 3.9904),
        (10.0, 1, 8, 7.9555),
    ],
)
def test_the_measured_gain_is_the_formula_s_on_a_noisy_quadratic(noise, workers, accumulation, expected):
    scale = workers * accumulation
    assert closed_form(noise, scale) == pytest.approx(expected, abs=5e-5)
    ranks = gains_of(noise, workers, accumulation, steps=400)
    gains = ranks[0][0]
    assert all(found == gains for found, _ in ranks)  # to the bit
    assert gains[0] == 1.0  # nothing is known yet
    assert all(1 <= each <= scale for each in gains)
    assert gains[-1] == pytest.approx(expected, rel=0.05)
    if noise <= 0.01:
        assert gains[-1] < 1.01  # no noise: a larger batch is no better
    if noise >= 10:
        assert gains[-1] > 0.95 * scale  # all noise: S times as good


def test_the_gain_rises_while_the_training_nears_the_minimum():
    """w shrinks from 3: at first the signal dominates, near the minimum the noise; each gain against the formula with
    the true values, averaged over past steps as the estimates are."""
    ((gains, signals),) = gains_of(0.5, 1, 4, steps=400, lr=1.0, signal=3.0)
    mean = 0.0
    for number, (found, signal) in enumerate(zip(gains, signals, strict=True)):
        if number >= 20:
            assert found == pytest.approx(closed_form(0.5, 4, mean), rel=0.05), number
        mean += max(1 / (number + 1), 4 / 1000) * (signal - mean)
    assert signals[-1] < signals[0] / 50
    assert gains[1] < 1.3 < 3.2 < gains[-1]


@given(positive, positive, st.floats(1, 512))
def test_a_gain_lies_between_1_and_the_scale(noise, signal, scale):
    found = gain_ratio(noise, signal, scale)
    assert 1 <= found <= scale
    assert found == pytest.approx((noise + signal) / (noise / scale + signal))
    assert found <= gain_ratio(2 * noise, signal, scale) * (1 + 1e-12)
    assert found >= gain_ratio(noise, 2 * signal, scale) * (1 - 1e-12)
    assert found <= gain_ratio(noise, signal, 2 * scale)


@given(positive, st.floats(1, 512))
def test_the_ends_of_the_scale(value, scale):
    assert gain_ratio(0.0, value, scale) == gain_ratio(-1e-9, value, scale) == 1.0
    assert gain_ratio(value, 0.0, scale) == gain_ratio(value, -1e-9, scale) == pytest.approx(scale)
    assert gain_ratio(value, value, 1.0) == gain_ratio(0.0, 0.0, scale) == 1.0


def test_ranks_and_accumulated_micro_batches_measure_the_same():
    layouts = [gains_of(0.3, workers, 6 // workers, steps=30)[0][0] for workers in (1, 2, 3, 6)]
    for found in layouts[1:]:
        assert found == pytest.approx(layouts[0], rel=1e-12)


def test_one_worker_without_accumulation_is_the_base_batch():
    ((gains, _),) = gains_of(0.3, 1, 1, steps=5)
    assert gains == [1.0] * 5


def test_the_loss_scale_of_float16_is_undone():
    ((plain, _),) = gains_of(0.3, 1, 4, steps=10)
    ((scaled, _),) = gains_of(0.3, 1, 4, steps=10, fp16=True)
    assert scaled == pytest.approx(plain, rel=1e-12)
    assert plain[-1] > 1.5


def test_the_estimates_are_those_of_the_micro_batches_gradients():
    """By hand: four gradients, their mean, σ̂² and μ̂² with the factors of the paper's section 3; then the mean of two
    steps; a step of all-equal gradients."""
    learner = learner_of(Constant(1.0), SingleProcess(), 1, 4)
    draws, found = torch.Generator().manual_seed(1), []
    for _ in range(2):
        batches = batches_of(draws, 0.3, 1, 4)
        each = [2 / SIZE * (learner.model.weight.detach() - batch.inputs.mean(dim=0)) for batch in batches]
        mean = sum(each) / 4
        variance = sum(float((one - mean).square().sum()) for one in each) / 3
        found.append((variance, float(mean.square().sum()) - variance / 4))
        step(learner, batches, Stretch(), SingleProcess())
    noise, signal = (sum(values) / 2 for values in zip(*found, strict=True))
    expected = {"noise": noise, "signal": signal, "steps": 2}
    assert learner.adascale.state_dict() == pytest.approx(expected, rel=1e-12)


def test_a_moving_average_takes_over_from_the_mean():
    """With S = 500 a new step has the weight ½ from the third on."""
    scale = 500
    adascale = AdaScale([], scale, 1, 1)
    seen = []
    for number in range(4):
        adascale.begin(scale)
        adascale._norms.append(torch.tensor(1.0 + number).double().sqrt())
        adascale.observe(
            scale, torch.tensor(1.0).double(), torch.amp.GradScaler("cpu", enabled=False), SingleProcess()
        )
        seen.append(adascale.state_dict()["noise"] * (scale - 1) / scale)
    assert seen == pytest.approx([0, 0.5, 1.25, 2.125])  # of 0, 1, 2, 3


def test_a_short_batch_teaches_nothing_and_gains_as_many_base_batches_as_it_has():
    learner = learner_of(Constant(1.0), SingleProcess(), 1, 4)
    draws = torch.Generator().manual_seed(1)
    for _ in range(20):
        step(learner, batches_of(draws, 10.0, 1, 4), Stretch(), SingleProcess())
    before = learner.adascale.state_dict()
    part = torch.zeros(BATCH, SIZE, dtype=torch.float64)
    for rows, base_batches in ((2, 1.0), (4, 1.0), (10, 2.5), (15, 3.75)):
        short = [MicroBatch(part[: max(1, rows // 4)], part[: max(1, rows // 4)], True, rows)] * 4
        _, found = step(learner, short, Stretch(), SingleProcess())
        assert found == gain_ratio(before["noise"], before["signal"], base_batches)
        assert learner.adascale.state_dict() == before


def test_a_step_that_is_left_out_teaches_nothing():
    learner = learner_of(Constant(1.0), SingleProcess(), 1, 4)
    learner = Learner(**{**vars(learner), "on_nonfinite": OnNonfinite.skip})
    draws = torch.Generator().manual_seed(1)
    step(learner, batches_of(draws, 1.0, 1, 4), Stretch(), SingleProcess())
    before = learner.adascale.state_dict()
    broken = batches_of(draws, 1.0, 1, 4)
    broken[2].targets[0, 0] = math.inf
    stretch = Stretch()
    step(learner, broken, stretch, SingleProcess())
    assert (stretch.skipped, learner.adascale.state_dict()) == (1, before)
    step(learner, batches_of(draws, 1.0, 1, 4), stretch, SingleProcess())
    assert learner.adascale.state_dict()["steps"] == 2


class Shared(nn.Module):
    """A tied weight, one that is frozen, and an embedding with a sparse gradient."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.other = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.other.weight = self.one.weight
        self.frozen = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)
        self.table = nn.Embedding(5, 3, sparse=True, dtype=torch.float64)

    def forward(self, rows):
        return self.frozen(self.other(self.one(self.table(rows))))


def test_tied_frozen_and_sparse_parameters_count_as_the_optimizer_sees_them():
    torch.manual_seed(0)
    model = Shared()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adascale = AdaScale(trained, 1, 2, 1)
    adascale.begin(2)
    expected = 0.0
    for row in (1, 1, 4):
        model.zero_grad()
        model(
            torch.tensor([row, row])
        ).square().sum().backward()  # a row twice: the sparse gradient is not coalesced
        dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in trained]
        expected += sum(float(each.square().sum()) for each in dense)
    assert float(torch.stack(adascale._norms).square().sum()) == pytest.approx(expected, rel=1e-12)
    assert model.frozen.weight.grad is None
