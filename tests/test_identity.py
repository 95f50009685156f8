"""Which keys make another run of a config, and which a run that goes on may change."""

import dataclasses

import pytest

from runner import schema
from runner.config import to_container
from runner.errors import ConfigError
from runner.identity import CHANGEABLE, IMMATERIAL, check_changes, fingerprint
from tests.composed import compose

OPEN = "…"  # the group's other keys, which are its target's


def keys(text):
    return text.split()


# Every key of the schema. A new one must be put where it belongs: does another value change a weight, and may a run go on
# with another value?
SAME_RUN = keys("""
    verbose dry_run resume study allowed_targets skip_checks
    tracking.backend tracking.uri tracking.experiment tracking.run_name tracking.log_model tracking.plots
    tracking.flush_seconds tracking.on_outage
    executor.name executor.num_hosts executor.num_workers_per_host executor.min_workers
    search.method search.trials search.seed search.min_epochs search.reduction
    search.population search.perturb_every_epochs search.quantile search.resample
    sweep.isolation sweep.max_concurrent sweep.on_failure sweep.retry_failed sweep.cache sweep.dry_run sweep.models
    scaling.placement_strategy scaling.address scaling.custom_resources scaling.accelerator_type
    dataset.loader_workers
    trainer.max_failures trainer.watchdog_seconds trainer.profile_steps
    checkpoint.enabled checkpoint.every_epochs checkpoint.every_steps checkpoint.every_minutes checkpoint.keep
    checkpoint.keep_best
    horovod.nics horovod.timeout_s horovod.placement_group_timeout_s horovod.verbose horovod.key horovod.ssh_port
    horovod.ssh_identity_file horovod.ssh_str horovod.gloo_timeout_s horovod.stall_warning_s horovod.stall_shutdown_s
    horovod.timeline
""")
ANOTHER_RUN_OR_GOING_ON = keys("""
    trainer.epochs trainer.max_steps trainer.patience trainer.min_delta trainer.validate_every_epochs
    trainer.validate_every_steps trainer.on_nonfinite trainer.log_norms
    scaling.num_workers scaling.use_gpu scaling.resources_per_worker.CPU scaling.resources_per_worker.GPU
""")
ANOTHER_RUN = keys("""
    seed
    model.freeze model.init_from model.init_strict model.…
    dataset.task dataset.ingest dataset.shuffle_rows dataset.drop_last dataset.limit_rows dataset.val_split dataset.…
    loss.label_smoothing loss.class_weights loss.…
    metrics.…
    optimizer.lr optimizer.decay_norms_and_biases optimizer.param_groups optimizer.…
    scheduler.interval scheduler.warmup_epochs scheduler.warmup_steps scheduler.warmup_start scheduler.…
    lr_scaling.base_batch_size lr_scaling.…
    trainer.batch_size trainer.accumulation_steps trainer.deterministic trainer.limit_batches trainer.precision
    trainer.clip_norm trainer.clip_value trainer.ema_decay trainer.compile
    checkpoint.monitor checkpoint.mode
    horovod.op horovod.compression horovod.gradient_predivide_factor horovod.groups horovod.sparse_as_dense
    horovod.fusion_threshold_mb horovod.cycle_time_ms horovod.cache_capacity
""")


def keys_of(datatype, prefix=""):
    """Every key that the schema has, dotted."""
    for field in dataclasses.fields(datatype):
        kind, key = getattr(schema, str(field.type), None), prefix + field.name
        if dataclasses.is_dataclass(kind):
            yield from keys_of(kind, f"{key}.")
        elif field.name == "target":
            yield prefix + OPEN
        else:
            yield f"{key}.{OPEN}" if key == "metrics" else key


def differs(key, value="another value"):
    """Whether a config whose `key` has this value is another run."""
    plain, changed = {"seed": 0}, {"seed": 0}
    *path, last = key.split(".")
    for values, found in ((plain, 1), (changed, value)):
        for part in path:
            values = values.setdefault(part, {})
        values[last] = found
    return fingerprint(plain) != fingerprint(changed)


def may_change(key):
    try:
        check_changes([f"{key}=1"])
    except ConfigError:
        return False
    return True


def test_every_key_of_the_schema_is_in_the_table_once():
    known = list(keys_of(schema.Experiment))
    assert sorted(known) == sorted(SAME_RUN + ANOTHER_RUN_OR_GOING_ON + ANOTHER_RUN)


@pytest.mark.parametrize(
    ("keys", "makes_another", "can_change"),
    [(SAME_RUN, False, True), (ANOTHER_RUN_OR_GOING_ON, True, True), (ANOTHER_RUN, True, False)],
    ids=["same run", "another run or going on", "another run"],
)
def test_the_lists_say_what_the_table_says(keys, makes_another, can_change):
    assert {key: (differs(key), may_change(key)) for key in keys} == dict.fromkeys(
        keys, (makes_another, can_change)
    )


def test_no_entry_of_the_lists_is_without_a_key():
    known = list(keys_of(schema.Experiment))
    for entry in CHANGEABLE:
        fits = [key for key in known if key == entry or (entry[-1] in "._" and key.startswith(entry))]
        assert fits, entry
    assert set(IMMATERIAL) <= set(CHANGEABLE)


def of(*overrides):
    return fingerprint(to_container(compose(overrides)))


def test_the_same_config_written_in_another_way_is_the_same_run():
    plain = of()
    assert len(plain) == 64
    assert of("trainer.epochs=20", "seed=0") == plain  # the defaults, typed
    assert of("optimizer.lr=0.05", "seed=1") == of("seed=1", "optimizer.lr=0.05") != plain
    assert of("trainer.limit_batches=${trainer.batch_size}") == of("trainer.limit_batches=32") != plain
    assert of("checkpoint.every_steps=7", "tracking=none", "verbose=true", "+tracking.run_name=a") == plain


@pytest.mark.parametrize(
    "override",
    ["seed=1", "model=linear", "model.hidden=[7]", "optimizer=adamw", "trainer.epochs=21", "+metrics.f1.x=1"],
)
def test_what_changes_the_numbers_is_another_run(override):
    assert of(override) != of()


def test_keys_that_only_begin_like_a_listed_one_are_material():
    assert differs("verbosity")
    assert differs("checkpoint.keeper")
    assert not may_change("trainer.epochs_more")


# Going on


def test_allowed_changes_pass():
    check_changes([])
    check_changes(
        ["trainer.epochs=30", "scaling.num_workers=4", "tracking.run_name=a b", "checkpoint.every_minutes=1"]
    )


@pytest.mark.parametrize(
    ("override", "close"),
    [
        ("optimizer.lr=0.2", None),
        ("seed=2", None),
        ("model=mlp", None),
        ("trainer.epoch=30", "trainer.epochs"),
        ("trainer.max_stepss=30", "trainer.max_steps"),
        ("+trainer.epochs=30", "trainer.epochs"),
        ("~trainer.patience", "trainer.patience"),
        ("trainer.patience", "trainer.patience"),  # without a value
        ("scaling.num_worker=3", "scaling.num_workers"),
    ],
)
def test_a_change_that_makes_another_run_is_refused_with_what_may_change(override, close):
    with pytest.raises(ConfigError) as refused:
        check_changes(["trainer.epochs=30", override])
    line = str(refused.value)
    assert line.startswith(
        f"{override}: a run that goes on keeps its model, data, optimizer, seed and batch; what may change: "
        "trainer.epochs, trainer.max_steps, trainer.patience, "
    )
    assert "\n" not in line
    assert line.partition("; did you mean ")[2] == (f"{close}?" if close else "")
