"""A training that goes on with another number of ranks in the middle of an epoch (FAULTS: 2 to 1, 3 and 4)."""

import dataclasses
import math

import pytest
import torch

from runner.checkpoint import CheckpointError
from runner.loop import fit
from runner.plan import Position
from runner.saving import resume, snapshot
from runner.schema import Precision
from tests.goings_on import SEED, Case, commit, end
from tests.lockstep import in_lockstep

ROWS, BATCH, EPOCHS, LR = 50, 5, 3, 0.02  # rows of a worker's batch; 10 of two workers': 5 steps an epoch
COSINE = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": None}


class Watched:
    """An ingest that notes the rows which were counted, by epoch."""

    def __init__(self, inner, seen):
        self._inner, self._seen = inner, seen

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def steps(self, epoch, done=0):
        for batches in self._inner.steps(epoch, done):
            rows = [round(100 * row) for b in batches if b.counted for row in b.inputs[:, 0].tolist()]
            self._seen.setdefault(epoch, []).extend(rows)
            yield batches


class Noting:
    """An objective that notes each row's loss with the weights at its step: {(epoch, row): loss}."""

    def __init__(self, inner, losses, state):
        self._inner, self._losses, self._state = inner, losses, state

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def losses(self, model, inputs, targets):
        found = self._inner.losses(model, inputs, targets)
        for row, loss in zip(inputs[:, 0].tolist(), found.tolist(), strict=True):
            self._losses[self._state.epoch, round(100 * row)] = loss
        return found


def case_of(workers, seen=None, **settings):
    sizes = {
        "trainer.epochs": EPOCHS,
        "trainer.batch_size": BATCH,
        "trainer.precision": Precision.float64,
        "checkpoint.every_steps": 1,
        "optimizer.lr": LR,
        "scheduler.target": COSINE,
    }
    watch = (lambda ingest: ingest) if seen is None else (lambda ingest: Watched(ingest, seen))
    return Case({**sizes, **settings}, workers, ROWS, watch=watch)


def training_of(case, communicator, losses):
    """A rank's (training, moments); the moments of all steps, for each is due."""
    training, ingest = case.begin(communicator)
    noting = Noting(training.learner.objective, losses, training.state)
    learner = training.learner = dataclasses.replace(training.learner, objective=noting)
    return training, fit(
        training.state, training.stretch, training.plan, learner, ingest, communicator, lambda state: True
    )


def until(case, steps, losses):
    """Rank 0's snapshot after so many steps, where the training ends."""

    def rank(communicator):
        training, moments = training_of(case, communicator, losses)
        next(moment for moment in moments if training.state.step == steps)
        return snapshot(training, communicator, {}, {})

    return in_lockstep(case.workers, rank)[0]


def position_of(taken):
    return Position(taken.facts["epoch"], taken.facts["step"], taken.facts["rows"])


def gone_on(case, root, losses):
    """Each rank's (metrics, end) from the checkpoint on."""

    def rank(communicator):
        training, moments = training_of(case, communicator, losses)
        assert resume(training, root, communicator, SEED) is not None
        return [moment.metrics for moment in moments if moment.metrics], end(training)

    return in_lockstep(case.workers, rank)


# By hand: 50 rows, of which 30 are left after 7 steps of 10 rows (one epoch and two steps of the second).
TO = {  # workers: (steps of an epoch, steps left of the broken one, all steps)
    1: (10, 6, 7 + 6 + 10),
    2: (5, 3, 15),
    3: (4, 2, 7 + 2 + 4),
    4: (3, 2, 7 + 2 + 3),
}


@pytest.mark.parametrize("to", TO)
def test_the_rest_is_trained_with_each_row_once_and_the_lr_of_the_new_size(to, tmp_path):
    seen_before, seen, losses = {}, {}, {}
    taken = until(case_of(2, seen_before), 7, losses)
    root = commit(tmp_path, taken)
    per_epoch, left, total = TO[to]
    case = dataclasses.replace(
        case_of(to, seen, **{"trainer.validate_every_steps": 1}), position=position_of(taken)
    )
    plan = case.plan
    assert (plan.steps_per_epoch, plan.steps_left(20), plan.total_steps) == (per_epoch, left, total)
    ranks = gone_on(case, root, losses)
    metrics = ranks[0][0]
    assert len(metrics) == total - 7
    assert [round(each["epoch"] * ROWS) for each in metrics][left - 1 :: per_epoch] == [100, 150]
    # As if the batch had always been today's: the linear rule's peak, and the cosine of so many steps.
    first = 2 * per_epoch - left
    peak, length = LR * to, EPOCHS * per_epoch
    expected = [
        peak * (1 + math.cos(math.pi * step / length)) / 2 for step in range(first, EPOCHS * per_epoch)
    ]
    assert [each["lr"] for each in metrics] == pytest.approx(expected, rel=1e-12)
    assert sorted(seen_before[1] + seen[1]) == sorted(seen[2]) == list(range(ROWS))
    for _, ended in ranks:  # all ranks agree
        assert ended["model"] == ranks[0][1]["model"]
        assert ended["history"] == ranks[0][1]["history"]


@pytest.mark.parametrize("to", [1, 3, 4])
def test_the_loss_of_the_broken_epoch_is_the_mean_over_all_its_rows(to, tmp_path):
    losses = {}
    taken = until(case_of(2), 7, losses)
    case = dataclasses.replace(case_of(to), position=position_of(taken))
    assert len(losses) == 50 + 20
    ranks = gone_on(case, commit(tmp_path, taken), losses)
    metrics = ranks[0][0]
    for epoch, each in zip((1, 2), metrics, strict=True):
        mean = sum(losses[epoch, row] for row in range(ROWS)) / ROWS
        assert each["train/loss"] == pytest.approx(mean, rel=1e-12)
        assert each["throughput/samples_per_second"] * each["seconds/training"] == pytest.approx(ROWS)


def test_one_cycle_has_the_new_size_s_rates_and_momenta(tmp_path):
    cycle = {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": None, "total_steps": None}
    sgd = {"_target_": "torch.optim.SGD", "momentum": 0.9}
    settings = {"scheduler.target": cycle, "optimizer.target": sgd, "trainer.validate_every_steps": 1}
    taken = until(case_of(2, **settings), 7, {})
    case = dataclasses.replace(case_of(4, **settings), position=position_of(taken))

    def fresh(communicator):
        training, _ = case_of(4, **settings).begin(communicator)
        group, found = training.learner.optimizer.param_groups[0], []
        for _ in range(9):
            found.append((group["lr"], group["momentum"]))
            training.learner.optimizer.step()
            training.learner.schedule.advance()
        return found

    def rank(communicator):
        training, _ = case.begin(communicator)
        resume(training, commit(tmp_path, taken), communicator, SEED)
        group, found = training.learner.optimizer.param_groups[0], []
        for _ in range(5):  # 2 of the broken epoch, 3 of the last
            found.append((group["lr"], group["momentum"]))
            training.learner.optimizer.step()
            training.learner.schedule.advance()
        return found

    assert in_lockstep(4, rank)[0] == in_lockstep(4, fresh)[0][4:]


def test_an_epoch_with_too_few_rows_left_for_a_batch_is_over(tmp_path):
    """drop_last: 7 rows are left of the 47, the new batch has 15."""
    settings = {"dataset.drop_last": True}
    before = dataclasses.replace(case_of(2, **settings), rows=47)
    taken = until(before, 3, {})  # 30 of the 40 rows it uses
    assert taken.facts["rows"] == 30
    seen = {}
    case = dataclasses.replace(case_of(4, seen, **settings), rows=47, position=Position(0, 3, 30))
    assert (case.plan.steps_per_epoch, case.plan.steps_left(30), case.plan.total_steps) == (2, 0, 3 + 2 * 2)
    ranks = gone_on(case, commit(tmp_path, taken), {})
    assert [each["epoch"] for each in ranks[0][0]] == [2, 3]
    assert {epoch: len(rows) for epoch, rows in seen.items()} == {1: 40, 2: 40}


def test_new_ranks_draw_numbers_of_their_own(tmp_path):
    mlp = {
        "_target_": "models.mlp.MLP",
        "in_features": None,
        "out_features": None,
        "hidden": [3],
        "dropout": 0.5,
    }
    taken = until(case_of(2, **{"model.target": mlp}), 7, {})
    case = dataclasses.replace(case_of(3, **{"model.target": mlp}), position=position_of(taken))

    def rank(communicator):
        training, _ = case.begin(communicator)
        resume(training, commit(tmp_path, taken), communicator, SEED)
        return torch.rand(4).tolist()

    drawn = in_lockstep(3, rank)
    assert len({tuple(each) for each in drawn}) == 3
    assert in_lockstep(3, rank) == drawn  # and the same ones, when it is restarted from there


def test_a_plan_of_a_later_checkpoint_does_not_train_from_an_earlier_one(tmp_path):
    """All newer ones were damaged in between: its number of steps and LRs would be others than it says."""
    taken = until(case_of(2), 7, {})
    case = dataclasses.replace(case_of(3), position=Position(1, 9, 40))
    with pytest.raises(CheckpointError) as raised:
        gone_on(case, commit(tmp_path, taken), {})
    path = tmp_path / taken.name / taken.name
    assert str(raised.value) == (
        f"{path}: lies before the number of workers changed, the plan was made for a later one; resume the run"
    )
