"""What a run that goes on must agree with, and where its plan begins."""

import dataclasses
import json

import pytest

from runner import checkpoint, going_on
from runner.errors import ConfigError
from runner.plan import START, DataFacts, Position, make_plan
from runner.resources import ResourcePlan
from runner.saving import snapshot
from runner.schema import Ingest
from tests.fakes import make_experiment
from tests.goings_on import Case
from tests.lockstep import in_lockstep

DATA = DataFacts(100, 20, (4,), 3, class_counts=(50, 30, 20), class_names=("a", "b", "c"))


def manifest_of(**facts):
    """Of a run on 2 workers of 5 rows, by default after 2 of its 5 epochs of 10 steps; as JSON has it."""
    usual = {
        "epoch": 2,
        "step": 20,
        "rows": 0,
        "stale": 0,
        "num_workers": 2,
        "global_batch_size": 10,
        "data": DATA.identity(),
    }
    return json.loads(json.dumps({**usual, **facts}))


def checked(manifest, workers=2, data=DATA, is_finished=False, **settings):
    sizes = {"scaling.num_workers": workers, "trainer.batch_size": 5, "trainer.epochs": 5}
    experiment = make_experiment({**sizes, **{k.replace("__", "."): v for k, v in settings.items()}})
    resources = ResourcePlan(workers, 1.0, 0.0)
    plan = make_plan(experiment, data, resources, going_on.position(manifest))
    return going_on.check(manifest, experiment, plan, data, is_finished)


def refusal(*arguments, **settings):
    with pytest.raises(ConfigError) as refused:
        checked(*arguments, **settings)
    return str(refused.value)


def test_what_did_not_change_is_not_worth_a_word():
    assert checked(manifest_of()) is None
    assert checked(manifest_of(epoch=1, step=13, rows=30)) is None
    assert checked(manifest_of(), trainer__epochs=9, is_finished=True) is None


def test_a_run_without_a_checkpoint_begins_at_its_start():
    assert going_on.position(None) == START == Position(0, 0, 0)
    assert going_on.position(manifest_of(rows=30)) == Position(2, 20, 30)


@pytest.mark.parametrize(
    "change",
    [
        {"train_rows": 99},
        {"val_rows": 19},
        {"input_shape": (2, 2)},
        {"out_features": 4},
        {"class_counts": (50, 29, 21)},
    ],
)
def test_other_data_are_refused(change):
    data = dataclasses.replace(DATA, **change)
    line = refusal(manifest_of(), data=data)
    assert line == (
        f"dataset: the data changed since step 20: {manifest_of()['data']} then, {data.identity()} now; start a new run"
    )


def test_a_finished_run_says_what_makes_it_longer():
    done = manifest_of(epoch=5, step=50)
    assert refusal(done, is_finished=True) == (
        "trainer.epochs=5: the run has taken its 50 steps, 5 epochs; type trainer.epochs=6"
    )
    assert checked(done, is_finished=True, trainer__epochs=6) is None
    assert refusal(done, is_finished=True, trainer__max_steps=50) == (
        "trainer.max_steps=50: the run has taken its 50 steps, 5 epochs; type trainer.max_steps=60"
    )


def test_a_run_that_was_killed_after_its_last_step_goes_on_to_its_end():
    assert checked(manifest_of(epoch=5, step=50)) is None


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_does_not_get_shorter_than_it_is(is_finished):
    within = manifest_of(epoch=2, step=23, rows=30)
    for settings in ({"trainer__epochs": 2}, {"trainer__max_steps": 22}):
        key, value = next(iter(settings.items()))
        remedy = {"trainer__epochs": 3, "trainer__max_steps": 33}[key]
        dotted = key.replace("__", ".")
        assert refusal(within, is_finished=is_finished, **settings) == (
            f"{dotted}={value}: the run has taken its 23 steps, 2 epochs; type {dotted}={remedy}"
        )
        assert checked(within, is_finished=is_finished, **{key: remedy}) is None


def test_the_remedy_holds_where_the_epoch_that_has_begun_has_no_step_left():
    """drop_last: 10 rows are left, four workers take 20 a step."""
    within = manifest_of(epoch=4, step=49, rows=90)
    settings = {"workers": 4, "dataset__drop_last": True, "is_finished": True}
    assert refusal(within, **settings).endswith("; type trainer.epochs=6")
    assert ", 54 steps in all; " in checked(within, **settings, trainer__epochs=6)  # 49 and an epoch of 5


def test_a_run_that_stopped_early_says_what_makes_it_more_patient():
    stopped = manifest_of(stale=3)
    assert refusal(stopped, is_finished=True, trainer__patience=3) == (
        "trainer.patience=3: the run stopped early, after 3 validations without a better val/loss; "
        "type trainer.patience=4"
    )
    assert checked(stopped, is_finished=True, trainer__patience=4) is None
    assert checked(stopped, is_finished=True) is None  # null: to the end
    assert checked(stopped, trainer__patience=3) is None  # killed before it had ended: it ends now


def test_another_number_of_workers_is_told_with_its_batch_steps_and_lr():
    assert (
        checked(manifest_of(epoch=1, step=13, rows=30), workers=4)
        == (
            "from step 13 on 4 workers instead of 2: global batch 20 instead of 10, 32 steps in all; "  # 13 + 4 + 3 × 5
            "lr 0.1 (base, batch 5) × 4 (linear: 20/5) = 0.4"
        )
    )
    assert checked(manifest_of(), workers=1).startswith(
        "from step 20 on 1 worker instead of 2: global batch 5 instead of 10, 80 steps in all; "
    )


def test_ray_data_goes_on_with_other_workers_between_epochs_only():
    within = manifest_of(epoch=1, step=13, rows=30)
    assert refusal(within, workers=4, dataset__ingest=Ingest.ray_data) == (
        "scaling.num_workers=4: the checkpoint lies within an epoch that ray_data dealt to 2 workers; "
        "type scaling.num_workers=2"
    )
    assert checked(within, dataset__ingest=Ingest.ray_data) is None
    assert checked(manifest_of(), workers=4, dataset__ingest=Ingest.ray_data) is not None


def test_the_newest_sound_checkpoint_says_where_the_run_stands(tmp_path):
    assert going_on.newest(tmp_path) is None
    root = tmp_path / "checkpoints"
    case = Case({"checkpoint.every_steps": 1, "trainer.batch_size": 12, "trainer.epochs": 1})

    def rank(communicator):
        training, ingest = case.begin(communicator)
        begun = snapshot(training, communicator, {}, {})
        return [begun, *case.go(training, ingest, communicator)]

    (snapshots,) = in_lockstep(1, rank)
    for taken in snapshots[:3]:
        checkpoint.commit(root, taken.name, taken.weights, taken.state, taken.facts)
    assert going_on.position(going_on.newest(tmp_path)) == Position(0, 2, 24)
    (root / "step-00000002" / checkpoint.STATE).write_bytes(b"")
    assert going_on.position(going_on.newest(tmp_path)) == Position(0, 1, 12)
    assert set(manifest_of()) - {"data"} <= set(going_on.newest(tmp_path))
