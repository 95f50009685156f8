"""A loss or gradient that is not finite (FAULTS row 11): the training stops at that step, or leaves it out, on all ranks."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.ingest.batches import MicroBatch
from runner.ingest.sampler import epoch_order
from runner.loop import fit, step
from runner.schedule import Schedule
from runner.schema import Interval, OnNonfinite, Precision
from runner.train_state import Stretch
from tests.goings_on import SEED, Case, exact
from tests.lockstep import in_lockstep

ROWS, GLOBAL_BATCH, LR = 32, 12, 0.05  # three steps an epoch, the last of 8 rows
BROKEN = 2  # this step, of the six
SGD = {"_target_": "torch.optim.SGD", "momentum": 0.9}
NORMED = {"_target_": "tests.goings_on.Normed", "in_features": None, "out_features": None}
ADVICE = "is not finite; type a lower optimizer.lr, trainer.clip_norm=1, or trainer.on_nonfinite=skip to leave such steps out"


def case_of(workers, policy, **settings):
    return Case(
        {
            "trainer.epochs": 2,
            "trainer.batch_size": GLOBAL_BATCH // workers,
            "lr_scaling.base_batch_size": GLOBAL_BATCH,
            "optimizer.lr": LR,
            "optimizer.target": SGD,
            "trainer.precision": Precision.float64,
            "trainer.on_nonfinite": policy,
            **settings,
        },
        workers,
        ROWS,
    )


class Broken:
    """An objective whose losses get `value` added at one step: the gradient stays as it is."""

    def __init__(self, inner, state, value):
        self._inner, self._state, self._value = inner, state, value

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def losses(self, model, inputs, targets):
        found = self._inner.losses(model, inputs, targets)
        return found + self._value if self._state.step + 1 == BROKEN else found


def break_loss(value, ranks):
    def change(learner, state, rank):
        if rank not in ranks:
            return learner
        return dataclasses.replace(learner, objective=Broken(learner.objective, state, value))

    return change


def break_gradient(value, ranks):
    def change(learner, state, rank):
        if rank in ranks:
            weight = next(learner.model.parameters())
            weight.register_hook(lambda gradient: gradient + (value if state.step + 1 == BROKEN else 0.0))
        return learner

    return change


def nothing(learner, state, rank):
    return learner


def trained(case, change=nothing):
    """Each rank's (error or None, weights by step, metrics, learner, collectives)."""

    def rank(communicator):
        training, ingest = case.begin(communicator)
        state, metrics, error = training.state, [], None
        learner = change(training.learner, state, communicator.rank)
        weights = [copy.deepcopy(learner.model.state_dict())]
        before = communicator.collectives
        moments = fit(state, training.stretch, case.plan, learner, ingest, communicator, lambda state: True)
        try:
            for moment in moments:
                weights.append(copy.deepcopy(learner.model.state_dict()))
                metrics += [moment.metrics] if moment.metrics else []
        except TrainingError as raised:
            error = str(raised)
            weights.append(copy.deepcopy(learner.model.state_dict()))
        return error, weights, metrics, learner, communicator.collectives - before

    return in_lockstep(case.workers, rank)


def by_hand(case, leaves_out=()):
    """Weights after the training in one process, with those steps left out; and each row's loss at its step."""
    ((_, (start, *_), _, learner, _),) = trained(dataclasses.replace(case, workers=1))
    model = learner.model
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    inputs, targets = (torch.from_numpy(column).double() for column in case.splits()["train"].read(0, ROWS))
    losses, number = [], 0
    model.train()
    for epoch in range(2):
        for rows in epoch_order(ROWS, SEED, epoch).split(GLOBAL_BATCH):
            number += 1
            if number in leaves_out:
                losses.append(None)
                continue
            optimizer.zero_grad()
            each = (model(inputs[rows]) - targets[rows]).square().mean(dim=1)
            each.mean().backward()
            optimizer.step()
            losses.append(each.detach())
    return model.state_dict(), losses


CHANGES = {
    "NaN loss": (break_loss(math.nan, {1}), "the loss of rank 1"),
    "infinite loss": (break_loss(math.inf, {1}), "the loss of rank 1"),
    "NaN losses of two ranks": (break_loss(math.nan, {0, 2}), "the loss of rank 0, 2"),
    "infinite gradient": (break_gradient(math.inf, {2}), "the gradient"),
    "NaN gradient": (break_gradient(math.nan, {0}), "the gradient"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_stops_on_all_ranks_at_that_step_with_the_weights_before_it(name):
    change, what = CHANGES[name]
    sound = trained(case_of(3, OnNonfinite.stop))
    for rank, (error, weights, metrics, *_) in enumerate(trained(case_of(3, OnNonfinite.stop), change)):
        assert error == f"step {BROKEN}: {what} {ADVICE}"
        assert metrics == []
        assert len(weights) == BROKEN + 1
        assert exact(weights[BROKEN]) == exact(weights[BROKEN - 1]) == exact(sound[rank][1][BROKEN - 1])


@pytest.mark.parametrize("name", CHANGES)
def test_it_leaves_the_step_out_on_all_ranks_and_nothing_else(name):
    change, _ = CHANGES[name]
    case = case_of(3, OnNonfinite.skip)
    expected, losses = by_hand(case, leaves_out={BROKEN})
    ranks = trained(case, change)
    for error, weights, metrics, *_ in ranks:
        assert error is None
        assert exact(weights[BROKEN]) == exact(weights[BROKEN - 1]) != exact(weights[BROKEN + 1])
        assert exact(weights[-1]) == exact(ranks[0][1][-1])
        for key, tensor in expected.items():
            torch.testing.assert_close(weights[-1][key], tensor, rtol=0, atol=1e-12)
        first, second = metrics
        assert (first["skipped_steps"], "skipped_steps" in second) == (1.0, False)
        assert first["train/loss"] == pytest.approx(
            torch.cat([losses[0], losses[2]]).mean().item(), rel=1e-12
        )
        assert second["train/loss"] == pytest.approx(torch.cat(losses[3:]).mean().item(), rel=1e-12)
        for each in metrics:  # its rows were read all the same
            assert each["throughput/samples_per_second"] * each["seconds/training"] == pytest.approx(ROWS)


def test_the_statistics_of_batch_norm_are_those_before_a_step_that_was_left_out():
    case = case_of(1, OnNonfinite.skip, **{"model.target": NORMED})
    order = epoch_order(ROWS, SEED, 0)
    damaged = dataclasses.replace(
        case, damaged=int(order[GLOBAL_BATCH])
    )  # in the second step of the first epoch
    ((error, weights, *_),) = trained(damaged)
    assert error is None
    assert exact(weights[2]) == exact(weights[1])
    assert all(tensor.isfinite().all() for tensor in weights[3].values())
    ((_, weights, *_),) = trained(
        dataclasses.replace(damaged, settings={**case.settings, "trainer.on_nonfinite": OnNonfinite.ignore})
    )
    assert not weights[2]["layers.1.running_mean"].isfinite().any()


def test_norms_are_the_mean_of_those_steps_that_were_taken():
    case = case_of(1, OnNonfinite.skip, **{"trainer.log_norms": True, "trainer.validate_every_steps": 3})
    ((_, _, metrics, *_),) = trained(case, break_gradient(math.inf, {0}))
    each = case.with_settings(trainer__validate_every_steps=1)
    ((_, _, steps, *_),) = trained(each, break_gradient(math.inf, {0}))
    assert math.isnan(steps[1]["norm/gradient"])
    assert math.isnan(steps[1]["train/loss"])
    expected = (steps[0]["norm/gradient"] + steps[2]["norm/gradient"]) / 2
    assert metrics[0]["norm/gradient"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("workers", [1, 3])
def test_to_look_changes_no_bit_and_asks_the_ranks_nothing(workers):
    found = [trained(case_of(workers, policy)) for policy in OnNonfinite]
    for stopping, skipping, ignoring in zip(*found, strict=True):
        assert exact(stopping[1]) == exact(skipping[1]) == exact(ignoring[1])
        assert stopping[4] == skipping[4] == ignoring[4]


def test_ignore_does_not_look():
    ((error, weights, metrics, learner, _),) = trained(
        case_of(1, OnNonfinite.ignore), break_loss(math.nan, {0})
    )
    assert error is None
    assert all(tensor.isfinite().all() for tensor in weights[-1].values())  # the gradient was
    assert math.isnan(metrics[0]["train/loss"])
    assert "skipped_steps" not in metrics[0]
    assert (learner.clip(), learner.kept_buffers()) == (None, {})
    ((error, weights, *_),) = trained(case_of(1, OnNonfinite.ignore), break_gradient(math.inf, {0}))
    assert error is None
    assert not all(tensor.isfinite().all() for tensor in weights[-1].values())


def test_in_float16_a_loss_that_is_not_finite_is_no_overflow_of_the_scaler():
    """An overflow of the gradient alone is the scaler's own affair (see test_loop_options)."""
    batch = MicroBatch(torch.full((2, 4), 1e30), torch.zeros(2, 1), True, 2)
    for policy in (OnNonfinite.stop, OnNonfinite.skip):
        case = case_of(1, policy, **{"trainer.precision": Precision.fp16})

        def rank(communicator, case=case, policy=policy):
            learner, stretch = case.begin(communicator)[0].learner, Stretch()
            before, scale = exact(learner.model.state_dict()), learner.scaler.get_scale()
            if policy is OnNonfinite.stop:
                with pytest.raises(TrainingError, match=r"^step 7: the loss of rank 0 is not finite"):
                    step(learner, [batch], stretch, communicator, 7)
            else:
                step(learner, [batch], stretch, communicator, 7)
                assert (stretch.skipped, stretch.steps) == (1, 1)
                assert learner.scaler.get_scale() == scale / 2
            assert exact(learner.model.state_dict()) == before

        in_lockstep(1, rank)


def test_a_sparse_gradient_is_looked_at_too():
    def rank(communicator):
        learner = case_of(1, OnNonfinite.stop).begin(communicator)[0].learner
        communicator = SingleProcess()  # others would stack the gradients
        model = nn.Sequential(nn.Embedding(9, 1, sparse=True), nn.Flatten(), nn.Linear(2, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
        schedule = Schedule(optimizer, constant, Interval.step, 0, 1.0, 1)
        sparse = dataclasses.replace(learner, model=model, optimizer=optimizer, schedule=schedule)
        rows = torch.tensor([[1, 1], [2, 3]])
        targets = torch.ones(2, 1).double()
        before = model[0].weight.detach().clone()
        step(sparse, [MicroBatch(rows, targets, True, 2)], Stretch(), communicator)
        assert (model[0].weight != before).any(dim=1).tolist() == [False, True, True, True] + [False] * 5
        optimizer.zero_grad()
        loss = (model(rows) - targets).square().sum()
        loss.backward()
        dense = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()])
        assert sparse.clip().item() == pytest.approx(dense.norm().item(), rel=1e-12)
        with pytest.raises(TrainingError, match=r"^step 1: the loss of rank 0 is not finite"):
            step(sparse, [MicroBatch(rows, targets * math.nan, True, 2)], Stretch(), communicator)

    in_lockstep(1, rank)
