"""The one line of each rule, what is refused, and whose warm-up holds."""

import io

import pytest
from mlflow import MlflowClient
from rich.console import Console

from runner.errors import ConfigError
from runner.ledger import plan_learning_rate
from runner.plan import DataFacts, make_plan
from runner.recording import describe_run
from runner.report.console import Screen
from runner.request import Request
from runner.resources import ResourcePlan
from runner.tracking import open_record
from runner.tracking.artifacts import read_text
from tests.composed import CONF, load
from tests.fakes import make_experiment, plan_of


def rate(name, workers=4, accumulation=1, batch=32, **settings):
    """The learning rate of a training of its size by a rule of conf/."""
    sizes = [
        f"scaling.num_workers={workers}",
        f"trainer.accumulation_steps={accumulation}",
        f"trainer.batch_size={batch}",
    ]
    more = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    return plan_learning_rate(load(f"lr_scaling={name}", *sizes, *more))


LINES = {
    "none": "lr 0.1 (base, batch 32) × 1 (none: 128/32) = 0.1",
    "linear": "lr 0.1 (base, batch 32) × 4 (linear: 128/32) = 0.4",
    "sqrt": "lr 0.1 (base, batch 32) × 2 (sqrt: 128/32) = 0.2",
    "linear_warmup": "lr 0.1 (base, batch 32) × 4 (linear_warmup: 128/32) = 0.4, warm-up 5 epochs from 0.1",
    "legw": "lr 0.1 (base, batch 32) × 2 (legw: 128/32) = 0.2, warm-up 1.25 epochs from 0",
    "adam_sde": "lr 0.001 (base, batch 32) × 2 (adam_sde: 128/32) = 0.002, betas (0.9, 0.999) → (0.6, 0.996), "
    "eps 1e-08 → 5e-09",
    "adascale": "lr 0.1 (base, batch 32) × 1 to 4 (adascale: gain measured each step) = 0.1 to 0.4",
}


def test_every_rule_of_conf_that_is_built_has_its_line():
    assert LINES.keys() | {"adasum"} == {path.stem for path in (CONF / "lr_scaling").glob("*.yaml")}


@pytest.mark.parametrize("name", LINES)
def test_the_line_of_a_rule_in_the_plan_and_among_the_parameters(name):
    overrides = [f"lr_scaling={name}", "scaling.num_workers=4"]
    experiment = load(*overrides, *(["optimizer=adamw"] if name == "adam_sde" else []))
    fields = {f"{key}.{own}": value for key in ("lr_scaling", "scheduler", "scaling", "optimizer")
              for own, value in vars(getattr(experiment, key)).items()}  # fmt: skip
    plan = plan_of(fields)
    assert plan.lines()[-1] == LINES[name]
    assert plan.flat()["plan/lr"] == LINES[name]
    assert all(isinstance(value, int | float | str | list | None) for value in plan.flat().values())


@pytest.mark.parametrize("name", LINES)
def test_accumulated_micro_batches_count_as_workers_do(name):
    adam = {"optimizer": "adam"} if name == "adam_sde" else {}
    layouts = [
        rate(name, workers, accumulation, **adam) for workers, accumulation in ((1, 6), (3, 2), (6, 1))
    ]
    assert layouts[0] == layouts[1] == layouts[2]
    assert layouts[0].kappa == 6


def test_a_line_with_a_warm_up_of_the_scheduler_s():
    own = {"scheduler": "warmup", "scheduler__warmup_epochs": 2}
    assert rate("linear_warmup", **own).line().endswith(" = 0.4, warm-up 2 epochs from 0.1")
    assert rate("legw", **own).line().endswith(" = 0.2, warm-up 2 epochs from 0")
    assert rate("legw", **own, scheduler__warmup_start=0.5).line().endswith(", warm-up 2 epochs from 0.1")
    assert rate("adascale", **own).line().endswith(" = 0.1 to 0.4, warm-up 2 epochs from 0.01")
    assert rate("legw", scheduler__warmup_epochs=0).line() == LINES["legw"].partition(", warm-up")[0]
    assert rate("legw", scheduler__warmup_steps=7).line().endswith(" = 0.2, warm-up 7 steps from 0")


@pytest.mark.parametrize("name", [name for name in LINES if name != "adascale"])
def test_a_smaller_batch_than_the_base_never_warms_up(name):
    adam = {"optimizer": "adamw"} if name == "adam_sde" else {}
    found = rate(name, 1, lr_scaling__base_batch_size=128, scheduler__warmup_epochs=3, **adam)
    assert (found.kappa, found.warmup_epochs, found.warmup_steps) == (0.25, 0.0, None)


def test_an_explicit_base_batch_size_beats_the_batch_of_a_worker():
    found = rate("linear", 4, lr_scaling__base_batch_size=64)
    assert (found.base_batch_size, found.kappa, found.scaled) == (64, 2.0, 0.2)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["lr_scaling=adam_sde"],
            "lr_scaling=adam_sde: the optimizer has no betas to scale; type optimizer=adamw or lr_scaling=sqrt",
        ),
        (
            ["lr_scaling=adam_sde", "optimizer=lion"],
            "lr_scaling=adam_sde: the optimizer has no eps to scale; type optimizer=adamw or lr_scaling=sqrt",
        ),
        (
            ["lr_scaling=adam_sde", "optimizer=adam", "scaling.num_workers=10"],
            (
                "lr_scaling=adam_sde: κ(1 − β) must be below 1, β is 0.9 and κ 10; the largest global batch is 319; "
                "type scaling.num_workers=9"
            ),
        ),
        (
            [
                "lr_scaling=adam_sde",
                "optimizer=adam",
                "scaling.num_workers=5",
                "trainer.accumulation_steps=4",
            ],
            (
                "lr_scaling=adam_sde: κ(1 − β) must be below 1, β is 0.9 and κ 20; the largest global batch is 319; "
                "type scaling.num_workers=2"
            ),
        ),
        (
            ["lr_scaling=adam_sde", "optimizer=adam", "lr_scaling.base_batch_size=2"],
            (
                "lr_scaling=adam_sde: κ(1 − β) must be below 1, β is 0.9 and κ 32; the largest global batch is 19; "
                "type lr_scaling=sqrt"
            ),
        ),
        (
            [
                "lr_scaling=adam_sde",
                "optimizer=adam",
                "optimizer.param_groups=[{match: a, betas: [0.5, 0.9]}]",
            ],
            (
                "optimizer.param_groups[0].betas=[0.5, 0.9]: adam_sde scales the optimizer's betas, which a group may not "
                "have of its own; type lr_scaling=sqrt"
            ),
        ),
        (
            ["lr_scaling=adascale", "lr_scaling.base_batch_size=64"],
            (
                "lr_scaling.base_batch_size=64: adascale measures the gain over the batch of one worker, "
                "trainer.batch_size=32; type lr_scaling.base_batch_size=null, or trainer.batch_size=64"
            ),
        ),
        (
            ["lr_scaling=legw", "lr_scaling.warmup_epochs=null"],
            "lr_scaling=legw: TypeError: unsupported operand type(s) for *: 'float' and 'NoneType'",
        ),
        (
            ["lr_scaling._target_=builtins.str"],
            "lr_scaling=str: gives a str; a number or a runner.lr_scaling.Scaled is needed",
        ),
    ],
)
def test_a_rule_that_does_not_hold_is_refused_in_a_line(overrides, line):
    with pytest.raises(ConfigError) as refused:
        plan_learning_rate(load(*overrides))
    assert str(refused.value) == line


@pytest.mark.parametrize(("workers", "accumulation", "batch"), [(9, 1, 32), (2, 4, 32)])
def test_the_remedy_for_too_large_a_batch_holds(workers, accumulation, batch):
    found = rate("adam_sde", workers, accumulation, batch, optimizer="adam")
    assert min(found.scaled_options()["betas"]) > 0


@pytest.mark.parametrize(
    ("override", "instead"),
    [("lr_scaling=adasum", "lr_scaling=sqrt"), ("horovod.op=adasum", "horovod.op=average")],
)
def test_adasum_is_refused_as_long_as_horovod_has_none(override, instead):
    with pytest.raises(ConfigError) as refused:
        load(override)
    why = "Adasum needs a Horovod with MPI, this one uses Gloo or NCCL"
    assert str(refused.value) == f"{override}: {why}; type {instead}"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"trainer.epochs": 4},
            (
                "lr_scaling=linear_warmup: its warm-up of 5 epochs is longer than the training of 4; "
                "type scheduler.warmup_epochs=4"
            ),
        ),
        (
            {"trainer.max_steps": 20},
            (
                "lr_scaling=linear_warmup: its warm-up of 5 epochs is longer than the training of 2.5; "
                "type scheduler.warmup_epochs=2.5"
            ),
        ),
    ],
)
def test_a_rule_s_warm_up_that_is_longer_than_the_training_is_refused_and_the_remedy_works(settings, line):
    rule = {"lr_scaling.target": {"_target_": "runner.lr_scaling.linear_warmup"}, "scaling.num_workers": 4}
    with pytest.raises(ConfigError) as refused:
        plan_of({**rule, **settings})  # 8 steps an epoch
    assert str(refused.value) == line
    key, value = line.rpartition("type ")[2].split("=")
    plan = plan_of({**rule, **settings, key: float(value)})
    assert plan.warmup_steps == plan.total_steps
    plan_of({**rule, "trainer.epochs": 5})


def test_the_line_is_on_screen_and_in_mlflow(tmp_path):
    """A parameter of the run, and in plan.txt."""
    for name, line in LINES.items():
        more = ["optimizer=adamw"] if name == "adam_sde" else []
        experiment = load(f"lr_scaling={name}", "scaling.num_workers=4", *more)
        plan = make_plan(experiment, DataFacts(1000, 200, (1,), 1), ResourcePlan(4, 0.5, 0.0))
        record = open_record(experiment.tracking, tmp_path, tmp_path / name, name)
        describe_run(record, Request(experiment, "", {"seed": 0}, (), tmp_path, tmp_path, (), ""), plan)
        record.finish("FINISHED")
        record.close()
        client = MlflowClient(record.uri)
        assert client.get_run(record.run_id).data.params["plan/lr"] == line
        text = read_text(client, record.run_id, "plan.txt")
        assert text.splitlines()[-1] == line
        output = io.StringIO()
        Screen(Console(file=output, highlight=False, soft_wrap=True)).banner(tmp_path, plan)
        assert line in output.getvalue().splitlines()


def test_a_user_s_rule_is_a_function_of_kappa():
    experiment = make_experiment({"lr_scaling.target": {"_target_": "math.log2"}, "scaling.num_workers": 8})
    assert plan_learning_rate(experiment).line() == "lr 0.1 (base, batch 32) × 3 (log2: 256/32) = 0.3"
