"""The line about data that were refused: the config's key that means them, the file, the row."""

from __future__ import annotations

import numpy as np
import pytest

from runner.errors import ConfigError, TrainingError
from runner.ingest import arrays
from runner.schema import Dataset, Ingest


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"path": "a.csv"}, "dataset.path=a.csv"),
        ({"path": ["b.csv", "a.csv"]}, "dataset.path=['b.csv', 'a.csv']"),
        ({"path": "*.csv", "val_path": "b/*.csv"}, "dataset.path=*.csv"),
        ({"path": "b", "val_path": "a.csv"}, "dataset.val_path=a.csv"),
        ({"path": "s3://rows/a.csv"}, "dataset"),
        ({"path": None, "val_fraction": 0.2, "target": "label"}, "dataset"),
    ],
)
def test_a_file_at_fault_is_named_with_the_key_that_means_it(tmp_path, monkeypatch, settings, key):
    monkeypatch.chdir(tmp_path)
    said = f"rows 0 to 9 of split train: {tmp_path}/a.csv: row 3: 'x' is not a number"
    assert arrays._at_fault({"_target_": "datasets.table.read", **settings}, said) == key


def test_an_argument_at_fault_is_named_as_the_config_s_key():
    target = {"_target_": "datasets.tables.digits", "val_fraction": 2}
    with pytest.raises(ConfigError) as refused:
        arrays.load(Dataset(target=target))
    assert str(refused.value) == "dataset.val_fraction=2: must be between 0 and 1"


@pytest.mark.parametrize("ingest", [Ingest.ray_data, Ingest.dataloader])
def test_a_bad_row_behind_the_first_ones_stops_the_training_with_file_and_row(tmp_path, ingest):
    """The first 10,000 are checked before the launch, the others when they are read."""
    inputs = np.zeros((16_000, 2), np.float32)
    inputs[15_000, 1] = np.nan
    np.save(tmp_path / "inputs.npy", inputs)
    np.save(tmp_path / "targets.npy", np.arange(16_000) % 2)
    target = {"_target_": "datasets.npy.read", "stream": True, "val_fraction": 0.01}
    files = {name: str(tmp_path / f"{name}.npy") for name in ("inputs", "targets")}
    rows = arrays.load(Dataset(ingest=ingest, target={**target, **files})).splits["train"]
    assert rows.found.rows.numbers(14_840, 14_841) == 15_000  # the others before it are validation rows
    start = 14_000
    with pytest.raises(TrainingError) as stopped:
        rows.read(start, start + 1000)
    end = f": {tmp_path}/inputs.npy: row 15000: nan is not finite"
    assert str(stopped.value) == f"dataset: rows {start} to {start + 999} of split train{end}"
