"""What a config may switch on in the loop: clipping, averages, precision, early stopping, validation by steps, norms."""

import math

import numpy as np
import pytest
import torch

from models.linear import Linear
from runner import build
from runner.communicator import SingleProcess
from runner.ingest.batches import MicroBatch, placement
from runner.ingest.tensors import TensorIngest
from runner.learner import AUTOCAST, build_learner
from runner.loop import judge, step
from runner.plan import DataFacts, Goal, make_plan
from runner.resources import plan_resources
from runner.schema import OnNonfinite, Precision
from runner.train_state import Stretch, TrainState
from tests.fakes import LAPTOP, make_experiment, metrics_of, on_ranks
from tests.test_loop import in_memory, regression

LR = 0.1
MLP_NODE = {"_target_": "models.mlp.MLP", "in_features": None, "out_features": None, "hidden": [8]}


def run(settings, workers=1, rows=50, after_step=None):
    """Rank 0's (learner, metrics, state) of a real training with those settings, global batch 24."""
    experiment = make_experiment(
        {
            "optimizer.lr": LR,
            "scaling.num_workers": workers,
            "trainer.batch_size": 24 // workers,
            "lr_scaling.base_batch_size": 24,
            "trainer.epochs": 2,
            "model.init_from": "the weights below",
            **settings,
        }
    )
    splits = {
        name: tuple(c.astype(np.float32) for c in columns) for name, columns in regression(rows).items()
    }
    data = DataFacts(rows, 7, (3,), 1)
    plan = make_plan(experiment, data, plan_resources(experiment, LAPTOP))

    torch.manual_seed(0)  # here, not on the ranks: they are threads of one process
    initial = build.build(experiment.model.target, facts=data.for_model()).state_dict()
    place = placement(experiment, torch.device("cpu"))

    def rank(communicator):
        learner = build_learner(experiment, plan, data, communicator, place.device, initial)
        ingest, state = TensorIngest(in_memory(splits), plan, 0, communicator.rank, place), TrainState()
        history = []
        for metrics in metrics_of(state, plan, learner, ingest, communicator):
            history.append(metrics)
            if after_step:
                after_step(learner)
        return learner, history, state

    return on_ranks(workers, rank)[0]


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def flat(settings, **more):
    return weights(run({**settings, **more})[0])


def start_weights():
    torch.manual_seed(0)
    return torch.cat([p.detach().flatten() for p in Linear(3, 1).parameters()])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_averaged_gradient_is_clipped_by_its_norm(workers):
    learner, _, _ = run({"trainer.max_steps": 1, "trainer.clip_norm": 0.01}, workers)
    moved = weights(learner) - start_weights()
    assert moved.norm().item() == pytest.approx(LR * 0.01, rel=1e-4)
    free, _, _ = run({"trainer.max_steps": 1}, workers)
    whole = weights(free) - start_weights()
    torch.testing.assert_close(moved / moved.norm(), whole / whole.norm(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_averaged_gradient_is_clipped_by_value(workers):
    whole = weights(run({"trainer.max_steps": 1}, workers)[0]) - start_weights()
    learner, _, _ = run({"trainer.max_steps": 1, "trainer.clip_value": 0.2}, workers)
    expected = (whole / LR).clamp(-0.2, 0.2) * LR
    assert (whole / LR).abs().max() > 0.2
    torch.testing.assert_close(weights(learner) - start_weights(), expected, rtol=0, atol=1e-6)


def test_norms_are_the_mean_gradient_s_before_clipping_and_the_parameters_now():
    learner, history, _ = run({"trainer.max_steps": 1, "trainer.log_norms": True, "trainer.clip_norm": 0.01})
    free, _, _ = run({"trainer.max_steps": 1})
    gradient = (weights(free) - start_weights()) / LR
    assert history[0]["norm/gradient"] == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert history[0]["norm/parameters"] == pytest.approx(weights(learner).norm().item(), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_moving_average_of_the_weights_is_what_is_evaluated(workers):
    seen = []
    settings = {"trainer.ema_decay": 0.5, "trainer.validate_every_steps": 1, "trainer.max_steps": 4}
    learner, history, _ = run(settings, workers, after_step=lambda learner: seen.append(weights(learner)))
    if workers > 1:
        seen = seen[::workers]  # equal on all ranks
    average = seen[0]
    for after in seen[1:]:
        average = 0.5 * average + 0.5 * after
    found = torch.cat([p.detach().flatten() for p in learner.evaluated_model().parameters()])
    torch.testing.assert_close(found, average, rtol=0, atol=1e-6)
    inputs, targets = (torch.from_numpy(column).float() for column in regression(50)["val"])
    with torch.no_grad():
        loss = (learner.evaluated_model()(inputs) - targets).square().mean().item()
    assert history[-1]["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert set(learner.state_dict()) >= {"optimizer", "schedule", "model"}


def test_float64_trains_in_float64():
    learner, _, _ = run({"trainer.precision": Precision.float64})
    assert {p.dtype for p in learner.model.parameters()} == {torch.float64}
    torch.testing.assert_close(weights(learner).float(), flat({}), rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])
def test_autocast_computes_in_half_precision_and_keeps_float32_weights(precision):
    seen = set()
    settings = {"trainer.precision": precision, "model.target": MLP_NODE}

    def watch(learner):
        learner.model.layers[1].register_forward_hook(lambda module, given, made: seen.add(made.dtype))

    learner, history, _ = run(settings, after_step=watch)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert seen == {AUTOCAST[precision]}
    full = run({"model.target": MLP_NODE})[1]
    assert history[-1]["val/loss"] == pytest.approx(
        full[-1]["val/loss"], rel=0.1
    )  # fp16 skips its first step
    assert history[-1]["val/loss"] != full[-1]["val/loss"]


@pytest.mark.parametrize("on_nonfinite", list(OnNonfinite))
def test_fp16_skips_a_step_whose_gradients_overflow_and_halves_the_scale(on_nonfinite):
    learner, _, _ = run(
        {
            "trainer.precision": Precision.fp16,
            "trainer.max_steps": 1,
            "trainer.on_nonfinite": on_nonfinite,
        }
    )
    scale, before = learner.scaler.get_scale(), weights(learner).clone()
    batch = MicroBatch(torch.full((2, 3), 1e3), torch.zeros(2, 1), True, 2)  # its loss is finite
    step(learner, [batch], Stretch(), SingleProcess())
    assert torch.equal(weights(learner), before)
    assert learner.scaler.get_scale() == scale / 2


def test_validation_every_few_steps_and_a_report_at_each_epoch_s_end():
    _, history, state = run(
        {"trainer.validate_every_steps": 2, "trainer.epochs": 3}, rows=72
    )  # 3 steps an epoch
    assert [metrics["epoch"] * 3 for metrics in history] == [2, 3, 4, 6, 8, 9]
    assert ["val/loss" in metrics for metrics in history] == [True, False, True, True, True, True]
    assert (state.step, state.epoch) == (9, 3)


def test_validation_every_few_epochs_and_at_the_end():
    _, history, _ = run({"trainer.validate_every_epochs": 2, "trainer.epochs": 3})
    assert ["val/loss" in metrics for metrics in history] == [False, True, True]


def test_max_steps_ends_within_an_epoch_and_goes_beyond_the_epochs():
    _, history, state = run({"trainer.max_steps": 7})  # 3 steps an epoch, 2 epochs
    assert [metrics["epoch"] for metrics in history] == [1, 2, 2 + 24 / 50]  # by rows
    assert (state.step, state.epoch) == (7, 2)


def test_a_training_stops_when_patience_is_over():
    settings = {"trainer.epochs": 9, "trainer.patience": 2, "trainer.min_delta": 1e9}
    _, history, state = run(settings)
    assert len(history) == 3  # the first is the best so far, two are no better
    assert state.stopped


def test_judge_keeps_the_best_and_counts_what_is_not_better_by_min_delta():
    state, goal = TrainState(), Goal("val/accuracy", maximise=True, patience=3, min_delta=0.1)
    for step_number, (value, best, stale) in enumerate(
        [(0.5, 0.5, 0), (0.55, 0.55, 1), (0.61, 0.61, 0), (math.nan, 0.61, 1), (0.6, 0.61, 2)], start=1
    ):
        state.step = step_number
        judge(state, value, goal)
        assert (state.best, state.stale) == (best, stale)
    assert (state.best_step, state.stopped) == (3, False)
    judge(state, 0.7, goal)  # better than the best, but not by min_delta than 0.61
    assert (state.best, state.stale, state.stopped) == (0.7, 3, True)


def test_a_plateau_lowers_the_lr_after_the_validations_that_did_not_improve():
    plateau = {
        "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "factor": 0.1,
        "patience": 0,
        "threshold": 1e9,
        "threshold_mode": "abs",
    }
    _, history, _ = run({"scheduler.target": plateau, "trainer.epochs": 4})
    assert [metrics["lr"] for metrics in history] == pytest.approx([0.1, 0.1, 0.01, 0.001])
