"""A batch through the model on the driver: what it refuses, and what it counts."""

from __future__ import annotations

import pytest
import torch

from runner.errors import ConfigError
from runner.plan import DataFacts, make_plan
from runner.rehearsal import rehearse
from runner.resources import plan_resources
from runner.schema import Task
from tests.fakes import LAPTOP, make_experiment
from tests.lightning_modules import Digits, LightningModule, node

FACTS = DataFacts(train_rows=100, val_rows=10, input_shape=(1, 8, 8), out_features=10)


class Silent(Digits):
    def training_step(self, batch, batch_idx):
        return None


def rehearsed(cls, inputs, targets):
    experiment = make_experiment(
        {"model.target": node(cls) | {"_target_": f"{cls.__module__}.{cls.__name__}"}}
    )
    experiment.dataset.task = Task.classification
    plan = make_plan(experiment, FACTS, plan_resources(experiment, LAPTOP))
    return rehearse(experiment, plan, FACTS, None, inputs, targets)


def test_a_lightning_module_takes_a_batch():
    assert issubclass(Digits, LightningModule)
    found = rehearsed(Digits, torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    assert found.gradients == sum(parameter.nbytes for parameter in Digits().parameters())


@pytest.mark.parametrize(
    ("cls", "rows", "line"),
    [
        (
            Digits,
            torch.zeros(4, 1, 9, 9),
            r"failed with RuntimeError: mat1 and mat2 shapes cannot be multiplied .*\.py:\d+\)$",
        ),
        (
            Silent,
            torch.zeros(4, 1, 8, 8),
            r"failed: training_step returned None: a mean loss, or a dict with 'loss', is ",
        ),
    ],
)
def test_a_lightning_module_that_does_not_is_refused(cls, rows, line):
    with pytest.raises(ConfigError, match=line) as refused:
        rehearsed(cls, rows, torch.zeros(4, dtype=torch.int64))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(
        f"model={cls.__module__}.{cls.__name__}: a batch with inputs (4, 1, "
    )
