"""`python -m runner prove equivalence [key=value …]`: commands that show on your own experiment what runner promises.

Each ends with a verdict table, which is logged to MLflow too, and exits with 1 where a verdict is not "equal".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.errors import ConfigError, nearest
from runner.recording import finish_delivery
from runner.report.console import Screen
from runner.run_folder import locked
from runner.schema import OnOutage, Tracking
from runner.tracking import open_record
from runner.verbs import prove_determinism, prove_equivalence, prove_evaluation, prove_resume
from runner.verbs.proof import Compose, Proof

PROOFS: dict[str, Callable[[Sequence[str], Compose, Screen], Proof]] = {
    "equivalence": prove_equivalence.prove,
    "evaluation": prove_evaluation.prove,
    "determinism": prove_determinism.prove,
    "resume": prove_resume.prove,
}


def prove(arguments: list[str], compose: Compose, screen: Screen) -> int:
    """Returns the exit code. Raises ConfigError for a proof that there is not, RunnerError where a training fails."""
    if not arguments or arguments[0] not in PROOFS:
        said = arguments[0] if arguments else "nothing"
        close = nearest(said, PROOFS) or next(iter(PROOFS))
        raise ConfigError(f"prove: {said}: there are proofs of {', '.join(PROOFS)}; type prove {close}")
    name, *overrides = arguments
    proof = PROOFS[name](overrides, compose, screen)
    for line in proof.lines():
        screen.line(line)
    record(name, proof, screen)
    return 0 if proof.holds else 1


def record(name: str, proof: Proof, screen: Screen) -> None:
    """A run of its own beside those of the trainings."""
    if proof.tracking_uri is None:
        return
    with locked(proof.folder):
        settings = Tracking(uri=proof.tracking_uri, on_outage=OnOutage.spool)
        run = open_record(settings, proof.folder, proof.folder, f"prove {name}")
        run.set_tags({"runner.kind": "proof", "runner.proof": name, "runner.holds": str(proof.holds).lower()})
        run.log_text("\n".join(proof.lines()) + "\n", "verdict.txt")
        run.finish(
            "FINISHED" if proof.holds else "FAILED", None if proof.holds else f"prove {name}: not equal"
        )
        finish_delivery(run, proof.folder, screen.line)
