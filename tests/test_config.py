"""The composed config: what it becomes, and each way in which it can be wrong, in one line."""

import dataclasses

import pytest

from runner import config, schema
from runner.errors import ConfigError
from tests.composed import compose, load

TRAINER = ", ".join(field.name for field in dataclasses.fields(schema.Trainer))


def load_and_check(*overrides):
    config.check_targets(load(*overrides))


def refusal(*overrides, targets=False):
    with pytest.raises(ConfigError) as refused:
        (load_and_check if targets else load)(*overrides)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_default_config_is_the_schema_s_defaults():
    experiment = load()
    assert experiment.trainer == schema.Trainer()
    assert experiment.checkpoint == schema.Checkpoint()
    assert experiment.horovod == schema.Horovod()
    assert experiment.tracking == schema.Tracking()
    assert experiment.scaling == schema.Scaling()
    assert (experiment.seed, experiment.dry_run, experiment.verbose) == (0, False, False)


def test_open_groups_split_their_own_keys_from_the_target_s():
    experiment = load("optimizer.momentum=0.9", "model.hidden=[7,5]", "+dataset.limit_rows=100")
    assert experiment.model == schema.Model(
        target={
            "_target_": "models.mlp.MLP",
            "in_features": None,
            "out_features": None,
            "hidden": [7, 5],
            "dropout": 0.0,
        }
    )
    assert experiment.optimizer == schema.Optimizer(
        lr=0.1,
        target={"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    )
    assert experiment.dataset == schema.Dataset(
        task=schema.Task.classification,
        limit_rows=100,
        target={"_target_": "datasets.tables.digits", "val_fraction": 0.2, "seed": 0},
    )


def test_values_arrive_typed():
    experiment = load("checkpoint.mode=max", "horovod.compression=fp16", "optimizer.lr=1", "seed=3")
    assert experiment.checkpoint.mode is schema.Mode.max
    assert experiment.horovod.compression is schema.Compression.fp16
    assert (experiment.optimizer.lr, type(experiment.optimizer.lr)) == (1.0, float)
    assert experiment.dataset.target["seed"] == 3  # an interpolation


def test_an_experiment_s_values_win_over_the_groups_and_the_command_line_over_both():
    experiment = load("experiment=quickstart")
    assert (experiment.trainer.epochs, experiment.trainer.batch_size) == (50, 4)
    assert experiment.dataset.target == {"_target_": "datasets.synthetic.line", "rows": 32}
    assert load("experiment=quickstart", "trainer.epochs=7").trainer.epochs == 7


def test_an_experiment_is_plain_data_that_pickles_without_omegaconf():
    def kinds(value):
        if dataclasses.is_dataclass(value):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {type(value)} | set().union(*(kinds(item) for item in value.values()), set())
        if isinstance(value, list):
            return {type(value)} | set().union(*(kinds(item) for item in value), set())
        return {type(value)}

    foreign = {
        kind
        for kind in kinds(load("horovod.nics=[lo]"))
        if kind.__module__.split(".")[0] not in ("builtins", "runner")
    }
    assert foreign == set()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+trainer.foo=1",
            f"trainer.foo: no such key in trainer, which has {TRAINER}",
        ),
        (
            "+trainer.epoch=1",
            f"trainer.epoch: no such key in trainer, which has {TRAINER}; did you mean trainer.epochs?",
        ),
        (
            "+scaling.resources_per_worker.GPUS=1",
            (
                "scaling.resources_per_worker.GPUS: no such key in scaling.resources_per_worker, "
                "which has CPU, GPU; did you mean scaling.resources_per_worker.GPU?"
            ),
        ),
    ],
)
def test_a_key_added_to_a_typed_group_is_refused(override, message):
    assert refusal(override) == message


def test_a_key_added_at_the_top_is_refused_with_the_nearest():
    message = refusal("+modle=mlp")
    assert message.startswith("modle: no such key in the config, which has model, dataset, loss, ")
    assert message.endswith("; did you mean model?")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+model.hiden=9",
            "model.hiden=9: models.mlp.MLP takes in_features, out_features, hidden, dropout; type model.hidden=9",
        ),
        (
            "+dataset.val_fractoin=0.1",
            (
                "dataset.val_fractoin=0.1: datasets.tables.digits takes val_fraction, seed; "
                "type dataset.val_fraction=0.1"
            ),
        ),
        (
            "lr_scaling._target_=runner.lr_scaling.liner",
            (
                "lr_scaling._target_=runner.lr_scaling.liner: runner.lr_scaling has no liner; "
                "type lr_scaling._target_=runner.lr_scaling.linear"
            ),
        ),
        (
            "+lr_scaling.kapa=2",
            "lr_scaling.kapa=2: runner.lr_scaling.linear takes no arguments; type ~lr_scaling.kapa",
        ),
    ],
)
def test_a_key_added_to_an_open_group_is_checked_against_its_target(override, message):
    assert refusal(override, targets=True) == message


@pytest.mark.parametrize("group", ["optimizer", "scheduler"])
def test_a_key_unknown_to_the_optimizer_or_the_scheduler_is_refused(group):
    message = refusal(f"+{group}.xyzzy=1", targets=True)
    assert message.startswith(f"{group}.xyzzy=1: torch.optim.")
    assert message.endswith(f"; type ~{group}.xyzzy")


def test_an_optimizer_that_takes_no_lr_is_refused():
    others = [f"~optimizer.{key}" for key in ("momentum", "weight_decay", "nesterov")]
    assert refusal("optimizer._target_=torch.optim.Optimizer", *others, targets=True) == (
        "optimizer.lr=0.1: torch.optim.Optimizer takes defaults; type ~optimizer.lr"
    )


def test_the_default_targets_take_their_arguments():
    config.check_targets(load())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(
            ("optimizer.lr", value, f"optimizer.lr={shown}: must be a finite number above 0; type optimizer.lr=0.1")
            for value, shown in (("-1", "-1.0"), ("0", "0.0"), ("nan", "nan"), ("inf", "inf"))
        ),
        *(
            (key, "0", f"{key}=0: must be 1 or more; type {key}=1")
            for key in (
                "scaling.num_workers",
                "trainer.epochs",
                "trainer.batch_size",
                "trainer.accumulation_steps",
                "trainer.limit_batches",
                "checkpoint.every_epochs",
                "checkpoint.every_steps",
                "checkpoint.keep_best",
                "lr_scaling.base_batch_size",
                "+dataset.limit_rows",
                "horovod.groups",
            )
        ),
        ("checkpoint.keep", "1", "checkpoint.keep=1: must be 2 or more; type checkpoint.keep=2"),
        ("trainer.max_failures", "-1", "trainer.max_failures=-1: must be 0 or more; type trainer.max_failures=0"),
        *(
            (key, "0", f"{key}=0.0: must be a finite number above 0; type {key}={remedy}")
            for key, remedy in (("trainer.watchdog_seconds", 300), ("checkpoint.every_minutes", 10))
        ),
        ("trainer.batch_size", "-4", "trainer.batch_size=-4: must be 1 or more; type trainer.batch_size=1"),
        (
            "scaling.resources_per_worker.CPU",
            "-1",
            "scaling.resources_per_worker.CPU=-1.0: must be a finite number above 0; type scaling.resources_per_worker.CPU=1",
        ),
        (
            "scheduler.warmup_epochs",
            "-1",
            "scheduler.warmup_epochs=-1.0: must be 0 or more; type scheduler.warmup_epochs=0",
        ),
        (
            "scheduler.warmup_epochs",
            "nan",
            "scheduler.warmup_epochs=nan: must be 0 or more; type scheduler.warmup_epochs=0",
        ),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_and_the_remedy_is_accepted(key, value, message):
    assert refusal(f"{key}={value}") == message.replace("+", "")
    key, _, remedy = message.rpartition("; type ")[2].partition("=")
    load(f"{key}={remedy}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=abc", "optimizer.lr=abc: must be a number; type optimizer.lr=0.1"),
        ("dataset.task=foo", "dataset.task=foo: must be one of classification, multilabel, regression, language_modeling; type dataset.task=classification"),
        ("trainer.batch_size=???", "trainer.batch_size: has no value; type trainer.batch_size=…"),
        ("model._target_=???", "model._target_: has no value; type model._target_=…"),
        ("optimizer.lr=${optimizer.lr}", "optimizer.lr: refers to itself"),
        ("optimizer.lr=${nope}", "optimizer.lr: refers to nope, which is no key of the config"),
        ("trainer.epochs=${optimizer.lrr}", "trainer.epochs: refers to optimizer.lrr, which is no key of the config"),
        (
            "tracking.uri=${oc.env:RUNNER_NOT_SET}",
            "tracking.uri: the environment variable RUNNER_NOT_SET is not set; type export RUNNER_NOT_SET=…",
        ),
        ("~model._target_", "model._target_=???: a dotted path is needed; type model=<an option of conf/model>"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_is_one_line_with_its_key(override, message):
    assert refusal(override) == message


def test_a_top_level_interpolation_that_fails_names_its_own_key():
    assert refusal("verbose=${nope}") == "verbose: refers to nope, which is no key of the config"


def test_flatten_keeps_lists_and_empty_dicts_as_leaves():
    node = {"a": {"b": 1, "c": {"d": None}}, "e": [1, {"x": 2}], "f": {}, "g": "s"}
    assert dict(config.flatten(node)) == {"a.b": 1, "a.c.d": None, "e": [1, {"x": 2}], "f": {}, "g": "s"}


def test_yaml_keeps_interpolations_and_the_container_resolves_them(monkeypatch):
    monkeypatch.setenv("RUNNER_TOKEN", "planted-canary")
    composed = compose(["tracking.uri=http://${oc.env:RUNNER_TOKEN}@host"])
    assert "planted-canary" not in config.to_yaml(composed)
    assert "uri: http://${oc.env:RUNNER_TOKEN}@host" in config.to_yaml(composed)
    assert config.to_container(composed)["tracking"]["uri"] == "http://planted-canary@host"
    assert config.to_container(composed)["checkpoint"]["mode"] == "min"
