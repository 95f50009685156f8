"""A multirun's own run, where the store of the first job is none."""

from __future__ import annotations

import pytest

from runner.errors import RunnerError
from runner.report.console import Screen
from runner.run_folder import is_free
from runner.schema import Tracking
from runner.sweep.grid import Grid
from tests.fakes import make_experiment


def test_a_job_whose_store_is_none_does_not_keep_the_others_from_theirs(tmp_path):
    grid = Grid(tmp_path, tmp_path / "multirun", Screen())
    experiment = make_experiment()
    experiment.tracking = Tracking(uri=f"sqlite:///{tmp_path}/no/such/folder.db")
    (tmp_path / "no").write_text("a file")
    with pytest.raises(RunnerError, match="MLflow cannot be used"):
        grid.parent_run_id(experiment)
    assert is_free(tmp_path / "multirun")
    experiment.tracking = Tracking()
    assert grid.parent_run_id(experiment) is not None
    assert not is_free(tmp_path / "multirun")
    assert grid.finish() == 0
    assert is_free(tmp_path / "multirun")
