"""`python -m runner prove …` through the door: exit codes and what MLflow keeps. (Those of the README end with 0.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from tests.end_to_end.conftest import Finished

CENTRED = """
from models.mlp import MLP

class Centred(MLP):
    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(dim=0))  # over the rows that this worker happens to have
"""


def test_a_model_whose_rows_see_each_other_fails_equivalence_with_exit_code_1(
    project: Path, command: Callable[..., Finished]
) -> None:
    (project / "models" / "centred.py").write_text(CENTRED)
    (project / "configs" / "model" / "centred.yaml").write_text(
        "_target_: models.centred.Centred\nin_features: null\nout_features: null\n"
    )
    overrides = ["--config-dir", "configs", "experiment=mine", "model=centred", "trainer.batch_size=6"]
    done = command("prove", "equivalence", "steps=4", *overrides)
    assert (done.code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "verdict: FAILS"
    verdicts = [line.split("  ")[-1].strip() for line in lines if line.startswith("tensors  ")]
    # One worker with the whole batch computes what the reference does.
    assert verdicts == ["reference", "equal", *["NOT equal"] * 4]
    client = MlflowClient(f"sqlite:///{project}/outputs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("runner").experiment_id])
    assert (run.info.status, run.data.tags["runner.kind"]) == ("FAILED", "proof")
    assert (run.data.tags["runner.proof"], run.data.tags["runner.holds"]) == ("equivalence", "false")
    kept = Path(client.download_artifacts(run.info.run_id, "verdict.txt")).read_text().splitlines()
    assert kept == lines[-len(kept) :]
