"""A run goes on with another number of workers: by the plan's arithmetic, and never silently."""

from __future__ import annotations

import math

import pytest

from runner import checkpoint
from runner.resources import workers_in_words

ROWS, BATCH, EPOCHS = 203, 16, 4


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.faults), 3])
def test_the_rest_of_an_epoch_is_cut_anew(here, measure, num_workers):
    measured = measure(22, f"from 2 workers to {num_workers}, within epoch 3")
    name = f"other-workers-{num_workers}"
    outcome = here(
        name,
        "model.kind=sigkill",
        "model.rank=1",
        "model.at=17",
        "model.after=step-00000015",
        "trainer.max_failures=0",
    )
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    newest = checkpoint.latest(outcome.run_dir / "checkpoints")
    assert newest is not None
    manifest = checkpoint.read_manifest(newest)
    assert (manifest["epoch"], manifest["step"], manifest["rows"]) == (2, 15, 2 * BATCH)
    resumed = here(name, f"scaling.num_workers={num_workers}", verb="resume")
    assert resumed.end == (0, "FINISHED", "FINISHED"), resumed.text
    batch = num_workers * BATCH
    rest, whole = math.ceil((ROWS - 2 * BATCH) / batch), math.ceil(ROWS / batch)
    total = 15 + rest + whole
    forwards = [resumed.forwards[rank][-1] for rank in range(num_workers)]
    assert forwards == [rest + whole] * num_workers
    metrics = resumed.metrics()
    assert sorted({step for key, step in metrics if key != "lr"}) == [7, 14, 15 + rest, total]
    assert sorted(step for key, step in metrics if key == "lr") == list(range(1, total + 1))  # a cosine's
    assert {len(values) for values in metrics.values()} == {1}
    measured.holds(f"{rest} + {whole} steps of {batch} rows; says so in MLflow")
    ledger = (
        f"from step 15 on {workers_in_words(num_workers)} instead of 2: global batch {batch} instead of 32, {total} steps in all; "
        f"lr 0.001 (base, batch 16) × {num_workers} (linear: {batch}/16) = {0.001 * num_workers:g}"
    )
    assert ledger in resumed.events


@pytest.mark.faults
def test_an_epoch_dealt_by_ray_data_keeps_its_workers(here, measure):
    measured = measure(22, "from 2 workers to 1 with ray_data, within epoch 3")
    outcome = here(
        "other-workers-ray-data",
        "dataset.ingest=ray_data",
        "model.kind=sigkill",
        "model.rank=1",
        "model.at=17",
        "model.after=step-00000015",
        "trainer.max_failures=0",
    )
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    before = outcome.checkpoints
    refused = here("other-workers-ray-data", "scaling.num_workers=1", verb="resume")
    assert refused.code == 2
    assert refused.error == (
        "scaling.num_workers=1: the checkpoint lies within an epoch that ray_data dealt to 2 workers; "
        "type scaling.num_workers=2"
    )
    assert outcome.checkpoints == before
    assert outcome.status == "FAILED"
    measured.holds("refused, with what fits")
