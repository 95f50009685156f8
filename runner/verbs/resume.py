"""`python -m runner resume run_id=… [key=value …]`: go on with a run whose training was interrupted, or make it longer.

The stored config is the base; an override may change how long the training is, how it is watched and how many workers
it has (see identity.py), not what is trained. The run keeps its folder and its MLflow run.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from runner import checkpoint, config, run_folder
from runner.checkpoint import CheckpointError
from runner.errors import ConfigError, first_line, refuse
from runner.identity import check_changes
from runner.recording import how_to_go_on
from runner.report.console import Screen, relative
from runner.request import Request
from runner.run_folder import Result, RunFile
from runner.schema import Experiment, Resume, Tracking
from runner.secrets import MASK, unmasked
from runner.tracking import store_uri
from runner.tracking.artifacts import fetch_checkpoints
from runner.tracking.earlier import stored_run
from runner.verbs.train import train

USAGE = "python -m runner resume run_id=<MLflow run> (or run_dir=<folder of the run>) [key=value …]"


def resume(arguments: list[str], roots: tuple[str, ...], screen: Screen) -> Result:
    """Raises ConfigError where there is no such run, it is still being trained, or an override would change it."""
    named = [argument for argument in arguments if argument.startswith(("run_id=", "run_dir="))]
    if len(named) != 1:
        raise ConfigError(f"resume: which run? {USAGE}")
    overrides = [argument for argument in arguments if argument not in named]
    check_changes(overrides)
    key, _, value = named[0].partition("=")
    run_dir = Path(value).absolute() if key == "run_dir" else find(value, overrides)
    return train(request_of(run_dir, overrides, roots), screen)


def request_of(run_dir: Path, overrides: list[str], roots: tuple[str, ...]) -> Request:
    """The stored run with `overrides`, as train takes it; enters the folder it was started from."""
    stored = RunFile.read(run_dir)
    if Path(stored.working_dir).is_dir():
        os.chdir(stored.working_dir)
    roots = tuple(dict.fromkeys([*roots, *stored.import_roots]))
    sys.path[:] = [*roots, *(path for path in sys.path if path not in roots)]
    try:
        config.load(config.changed(stored.config, []))
    except ConfigError as error:
        raise ConfigError(f"{run_dir / run_folder.RUN}: {error}") from error
    composed = config.changed(stored.config, overrides)
    request = Request.of(composed, (*stored.overrides, *overrides), run_dir, roots, stored)
    hidden = [key for key, value in config.flatten(request.values) if MASK in str(value)]
    if hidden:
        instead = " ".join(f"{key}=…" for key in hidden)
        raise refuse(hidden[0], MASK, "a secret, which the run's folder does not hold", instead)
    return replace(request, experiment=in_its_store(request.experiment, stored))


def find(run_id: str, overrides: list[str]) -> Path:
    """The folder of a run, from its MLflow run; made anew, with the checkpoint it has uploaded, where it is gone."""
    outputs = Path.cwd() / "outputs"
    named = [override.partition("=")[2] for override in overrides if override.startswith("tracking.uri=")]
    uri = store_uri(Tracking(uri=named[-1] if named else None), outputs)
    run = stored_run(uri, run_id)
    run_dir = Path(run.tags.get("runner.run_dir", ""))
    if (run_dir / run_folder.RUN).exists():
        return run_dir
    run_dir = outputs / "runs" / "fetched" / run_id
    if not (run_dir / run_folder.RUN).exists():
        RunFile(
            run_id=run_id,
            tracking_uri=uri,
            fingerprint=run.tags.get("runner.fingerprint", ""),
            config=run.config_yaml,
            overrides=run.files.get("overrides.txt", "").splitlines(),
            working_dir=str(Path.cwd()),
            import_roots=[],
            created=run_folder.now(),
        ).write(run_dir)
    if uri is not None:
        fetch_newest(uri, run_id, run_dir)
    return run_dir


def fetch_newest(uri: str, run_id: str, run_dir: Path) -> None:
    """The newest sound checkpoint of the store, into the folder of a run that has none. Raises ConfigError."""
    checkpoints = run_dir / "checkpoints"
    if checkpoint.committed(checkpoints):
        return
    try:
        for fetched in fetch_checkpoints(uri, run_id, run_dir / "fetched"):
            with suppress(CheckpointError):
                checkpoint.verify(fetched)
                checkpoints.mkdir(parents=True, exist_ok=True)
                shutil.move(fetched, checkpoints / fetched.name)
                return
    except Exception as error:  # MLflow's clients raise many types
        reason = first_line(error)
        raise ConfigError(
            f"run_id={run_id}: its checkpoint could not be fetched from {uri} ({reason})"
        ) from error


def continued(request: Request, screen: Screen) -> Request:
    """resume=auto: the newest unfinished run of the same config in place of a new one, if there is one; else say how to go
    on with it."""
    if (request.run_dir / run_folder.RUN).exists():
        is_same = RunFile.read(request.run_dir).fingerprint == request.fingerprint
        is_finished = (run_folder.read_result(request.run_dir) or {}).get("status") == "FINISHED"
        found = [request.run_dir] if is_same and not is_finished else []
    else:
        found = run_folder.unfinished(request.outputs, request.fingerprint)
    if not found:
        return request  # a folder that holds another run is refused by prepare
    unfinished = RunFile.read(found[0])
    if request.experiment.resume is not Resume.auto:
        which = how_to_go_on(unfinished.run_id, found[0])
        screen.line(
            f"this is a new run; there is an unfinished one of this config, {which} (or type resume=auto)"
        )
        return request
    screen.line(f"resume=auto: goes on with the unfinished run in {relative(found[0])}")
    if [path.name for path in request.run_dir.glob("*")] == [".hydra"]:
        shutil.rmtree(request.run_dir)  # Hydra's, for the run that is not needed
    experiment = in_its_store(request.experiment, unfinished)
    return replace(request, experiment=experiment, run_dir=found[0], resumes=unfinished)


def in_its_store(experiment: Experiment, stored: RunFile) -> Experiment:
    """With the tracking store that has the run, whatever today's default is."""
    if stored.tracking_uri is None:
        return experiment
    uri = unmasked(stored.tracking_uri)
    if MASK in uri:  # neither the environment nor an override has its user and password
        raise refuse(
            "tracking.uri",
            uri,
            "who may write there is not stored",
            "tracking.uri=… with its user and password",
        )
    return replace(experiment, tracking=replace(experiment.tracking, uri=uri))
