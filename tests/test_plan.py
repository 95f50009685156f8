"""The arithmetic of a run, against numbers worked out by hand."""

import pytest

from runner.errors import ConfigError
from runner.plan import DataFacts, make_plan
from runner.resources import Machine, ResourcePlan, plan_resources
from runner.schema import Ingest, Interval
from tests.fakes import LAPTOP, make_experiment, plan_for, plan_of

GPU_MACHINE = Machine(cpus=8, gpus=2, horovod_gpu=True)


def ledger(**settings):
    return plan_of({key.replace("__", "."): value for key, value in settings.items()}).learning_rate.line()


def test_ledger_of_linear_scaling_with_warm_up():
    assert ledger(scaling__num_workers=4, scheduler__warmup_epochs=5.0) == (
        "lr 0.1 (base, batch 32) × 4 (linear: 128/32) = 0.4, warm-up 5 epochs from 0.1"
    )


def test_ledger_without_warm_up_and_with_accumulation():
    assert ledger(scaling__num_workers=2, trainer__accumulation_steps=3, optimizer__lr=0.02) == (
        "lr 0.02 (base, batch 32) × 6 (linear: 192/32) = 0.12"
    )


def test_ledger_of_sqrt_scaling():
    sqrt = {"_target_": "runner.lr_scaling.sqrt"}
    assert ledger(scaling__num_workers=4, lr_scaling__target=sqrt, scheduler__warmup_epochs=0.5) == (
        "lr 0.1 (base, batch 32) × 2 (sqrt: 128/32) = 0.2, warm-up 0.5 epochs from 0.1"
    )


def test_warm_up_from_a_given_fraction_of_the_scaled_lr():
    line = ledger(scaling__num_workers=4, scheduler__warmup_epochs=2.0, scheduler__warmup_start=0.05)
    assert line.endswith(" = 0.4, warm-up 2 epochs from 0.02")


def test_a_smaller_batch_than_the_base_scales_down_without_warm_up():
    plan = plan_of(
        {
            "scaling.num_workers": 1,
            "trainer.batch_size": 8,
            "lr_scaling.base_batch_size": 32,
            "scheduler.warmup_epochs": 5.0,
        }
    )
    assert plan.learning_rate.line() == "lr 0.1 (base, batch 32) × 0.25 (linear: 8/32) = 0.025"
    assert (plan.learning_rate.kappa, plan.learning_rate.scaled, plan.warmup_steps) == (0.25, 0.025, 0)


def test_kappa_of_one_warms_up_from_a_tenth():
    plan = plan_of({"scaling.num_workers": 1, "scheduler.warmup_epochs": 2.0})
    assert (plan.learning_rate.kappa, plan.learning_rate.warmup_start) == (1.0, 0.1)
    assert plan.warmup_steps == 2 * 32  # ⌈1000/32⌉ steps an epoch


@pytest.mark.parametrize(
    ("rows", "drop_last", "limit", "steps", "dropped"),
    [
        (1000, False, None, 8, 0),  # 7 full batches of 128 and one of 104
        (1024, False, None, 8, 0),
        (1025, False, None, 9, 0),
        (1, False, None, 1, 0),
        (1000, True, None, 7, 104),
        (1024, True, None, 8, 0),
        (1000, False, 3, 3, 616),
        (1000, False, 8, 8, 0),
        (1000, False, 99, 8, 0),
        (1000, True, 5, 5, 360),
    ],
)
def test_steps_and_dropped_rows(rows, drop_last, limit, steps, dropped):
    settings = {"scaling.num_workers": 4, "dataset.drop_last": drop_last, "trainer.limit_batches": limit}
    plan = plan_of(settings, rows=rows)
    assert (plan.global_batch_size, plan.steps_per_epoch, plan.dropped_rows) == (128, steps, dropped)
    assert plan.total_steps == 20 * steps


def test_drop_last_that_leaves_no_step_is_refused_and_the_remedy_works():
    settings = {"scaling.num_workers": 4, "dataset.drop_last": True}
    with pytest.raises(ConfigError) as refused:
        plan_of(settings, rows=100)
    assert str(refused.value) == (
        "trainer.batch_size=32: 100 training rows do not fill one global batch of 128 and "
        "dataset.drop_last=true; type trainer.batch_size=25"
    )
    assert plan_of({**settings, "trainer.batch_size": 25}, rows=100).steps_per_epoch == 1


def test_lines_of_the_plan():
    settings = {
        "scaling.num_workers": 4,
        "trainer.accumulation_steps": 2,
        "trainer.epochs": 3,
        "trainer.limit_batches": 2,
    }
    assert plan_of(settings).lines() == [
        "batch 256 = 4 workers × 32 rows × 2 accumulated",
        "steps 6 = 3 epochs × 2; 1000 training rows, 200 validation rows (488 dropped an epoch)",
        "resources 4 workers × 0.5 CPU",
        "lr 0.1 (base, batch 32) × 8 (linear: 256/32) = 0.8",
    ]


@pytest.mark.parametrize(
    ("machine", "workers", "cpus"),
    [
        (LAPTOP, 1, 1.0),
        (LAPTOP, 2, 1.0),
        (LAPTOP, 3, 0.66),  # rounded down: three of 0.67 would not fit
        (LAPTOP, 4, 0.5),
        (LAPTOP, 20, 0.1),
        (LAPTOP, 40, 0.1),  # the least share; preflight refuses it
        (Machine(cpus=8), 4, 1.0),
        (Machine(cpus=2, is_cluster=True), 4, 1.0),  # a cluster may grow
    ],
)
def test_cpus_of_a_worker(machine, workers, cpus):
    found = plan_resources(make_experiment({"scaling.num_workers": workers}), machine)
    assert (found.num_workers, found.cpus_per_worker, found.gpus_per_worker) == (workers, cpus, 0.0)
    assert workers == 40 or machine.is_cluster or workers * cpus <= machine.cpus


@pytest.mark.parametrize(
    ("machine", "use_gpu", "gpus"),
    [
        (GPU_MACHINE, None, 1.0),
        (GPU_MACHINE, False, 0.0),
        (GPU_MACHINE, True, 1.0),
        (Machine(cpus=8, gpus=2, horovod_gpu=False), None, 0.0),
        (LAPTOP, None, 0.0),
        (LAPTOP, True, 1.0),  # asked for: preflight refuses it, the plan does not look away
    ],
)
def test_gpus_of_a_worker(machine, use_gpu, gpus):
    found = plan_resources(make_experiment({"scaling.use_gpu": use_gpu}), machine)
    assert (found.gpus_per_worker, found.use_gpu) == (gpus, gpus > 0)


def test_given_resources_are_taken_as_they_are():
    settings = {"scaling.resources_per_worker.CPU": 3.5, "scaling.resources_per_worker.GPU": 0.25}
    found = plan_resources(make_experiment(settings), GPU_MACHINE)
    assert (found.cpus_per_worker, found.gpus_per_worker) == (3.5, 0.25)
    assert found.line() == "2 workers × 3.5 CPU + 0.25 GPU"


def test_use_gpu_false_wins_over_a_gpu_share():
    settings = {"scaling.use_gpu": False, "scaling.resources_per_worker.GPU": 1.0}
    assert plan_resources(make_experiment(settings), GPU_MACHINE).gpus_per_worker == 0.0


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, 1), (0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (4.0, 4)])
def test_threads_are_the_whole_cpus_of_a_worker(cpus, threads):
    assert ResourcePlan(2, cpus, 0.0).threads == threads


@pytest.mark.parametrize(
    ("interval", "warmup", "length"),
    [
        (Interval.step, 0.0, 80),
        (Interval.step, 2.0, 64),
        (Interval.step, 0.5, 76),
        (Interval.step, 99.0, 1),  # longer than the run
        (Interval.epoch, 0.0, 10),
        (Interval.epoch, 3.0, 7),
        (Interval.epoch, 99.0, 1),
    ],
)
def test_lengths_left_to_the_plan_by_a_scheduler(interval, warmup, length):
    settings = {
        "scaling.num_workers": 4,
        "trainer.epochs": 10,
        "scheduler.warmup_epochs": warmup,
        "scheduler.interval": interval,
    }
    plan = plan_of(settings)  # 8 steps an epoch
    found = plan.for_scheduler(make_experiment(settings).scheduler)
    assert found == {"T_max": length, "total_iters": length, "total_steps": length}


def test_flat_is_one_level_of_numbers_and_strings():
    plan = plan_of({"scaling.num_workers": 4, "scheduler.warmup_epochs": 5.0})
    assert plan.flat() == {
        "plan/batch_size": 32,
        "plan/accumulation_steps": 1,
        "plan/global_batch_size": 128,
        "plan/epochs": 20,
        "plan/steps_per_epoch": 8,
        "plan/train_rows": 1000,
        "plan/val_rows": 200,
        "plan/dropped_rows": 0,
        "plan/in_features": 1,
        "plan/out_features": 1,
        "plan/num_workers": 4,
        "plan/cpus_per_worker": 0.5,
        "plan/gpus_per_worker": 0.0,
        "plan/reserved_cpus": 0.0,
        "plan/lr": "lr 0.1 (base, batch 32) × 4 (linear: 128/32) = 0.4, warm-up 5 epochs from 0.1",
        "plan/lr_base": 0.1,
        "plan/lr_base_batch_size": 32,
        "plan/lr_global_batch_size": 128,
        "plan/lr_rule": "linear",
        "plan/lr_multiplier": 4.0,
        "plan/lr_warmup_epochs": 5.0,
        "plan/lr_warmup_start": 0.25,
        "plan/lr_scaled": 0.4,
        "plan/lr_warmup_steps": None,
        "plan/total_steps": 160,
        "plan/validate_every_epochs": 1,
        "plan/validate_every_steps": None,
    }


def test_facts_for_the_model():
    facts = DataFacts(10, 5, (1, 8, 8), 10)
    assert facts.for_model() == {
        "in_features": 64,
        "out_features": 10,
        "input_shape": (1, 8, 8),
        "context_length": 1,
        "vocab_size": 10,
        "num_classes": 10,
        "num_labels": 10,
        "num_outputs": 10,
    }


def test_the_plan_takes_its_data_sizes_from_the_data():
    plan = make_plan(make_experiment(), DataFacts(70, 30, (3, 4), 7), ResourcePlan(2, 1.0, 0.0))
    assert (plan.train_rows, plan.val_rows, plan.in_features, plan.out_features) == (70, 30, 12, 7)


def test_global_batch_is_workers_times_rows_times_accumulation():
    assert plan_for(workers=3, batch=5, accumulation=7).global_batch_size == 105


def test_ray_data_keeps_a_cpu_free():
    laptop = plan_resources(
        make_experiment({"dataset.ingest": Ingest.ray_data, "scaling.num_workers": 2}), LAPTOP
    )
    assert (laptop.cpus_per_worker, laptop.reserved_cpus) == (0.5, 1.0)
    assert laptop.line() == "2 workers × 0.5 CPU, 1 CPU free for Ray Data"
    server = plan_resources(make_experiment({"dataset.ingest": Ingest.ray_data}), Machine(cpus=16))
    assert (server.cpus_per_worker, server.reserved_cpus) == (1.0, 1.0)
