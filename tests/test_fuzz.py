"""Whatever is typed, and whatever bytes a file holds: a plan, or one line that says what is wrong; never a traceback, and no
Ray. `make soak` tries other examples each time, RUNNER_SOAK_CONFIGS, RUNNER_SOAK_COMMANDS and RUNNER_SOAK_FILES of them."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import resource
import sys
from functools import partialmethod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file

from runner import __main__ as door
from runner import checkpoint, config, parameters, prepare, run_folder, schema, secrets
from runner.errors import RunnerError
from runner.executors import ray_cluster
from runner.ingest import arrays
from runner.run_folder import RunFile
from runner.sweep.sweep import Sweep
from runner.tracking import store
from runner.verbs import resume
from tests import fuzz

ROOM = 4 * 2**30  # bytes that an example may ask for, of addresses
SOAK_SECONDS = 6 * 3600


class LaunchedError(RunnerError):
    exit_code = 0


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder of one's own, from which nothing is launched and nothing is reached, with room for small things only."""
    folder = tmp_path_factory.mktemp("fuzz")
    prepare.prepare(door.request_of([], ()))  # imports torch and all that
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["runner"])
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(door, "train", planned)
        patch.setattr(resume, "train", planned)
        patch.setattr(ray_cluster, "start", launched)
        for name, nothing in (
            ("_known", set()),
            ("_uris", {}),
            ("_pattern", None),
        ):  # until the tests after these
            patch.setattr(secrets, name, nothing)
        patch.setattr(Sweep, "_start", launched)
        patch.setattr(door.Jobs, "sweep", partialmethod(swept, door.Jobs.sweep))
        for room in (ray_cluster, store):
            patch.setattr(room, "unreachable", lambda host, port: "Connection refused")
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, limits[1]))
        yield folder
        resource.setrlimit(resource.RLIMIT_AS, limits)


def planned(request, screen):
    prepare.prepare(request)
    return {"status": "FINISHED"}


def swept(jobs, sweep, *arguments):
    """All jobs of the sweep were looked at."""
    with contextlib.suppress(LaunchedError):
        sweep(jobs, *arguments)
    return {}


def launched(address, *_):
    if isinstance(address, str):
        ray_cluster.reach(address)
    raise LaunchedError("Ray would be started now")


def check_line(error: RunnerError, name: str = "", code: int | None = None) -> None:
    line = str(error)
    assert line.isprintable()
    assert line.strip()
    assert name in line, line
    assert code in (None, error.exit_code), line


def a_config_is_a_plan_or_refused(overrides):
    try:
        prepare.prepare(door.request_of(overrides, (str(door.PROJECT),)))
    except RunnerError as error:
        check_line(error, code=2)
        event("refused")
    else:
        event("planned")


@fuzz.tries("CONFIGS", 300)
@given(overrides=fuzz.OVERRIDES)
def test_a_config_is_a_plan_or_one_line(here, overrides):
    a_config_is_a_plan_or_refused(overrides)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@fuzz.tries("CONFIGS", 300, soak=10_000)
@given(overrides=fuzz.OVERRIDES)
def test_many_configs_are_a_plan_or_one_line(here, overrides):
    a_config_is_a_plan_or_refused(overrides)


def a_command_ends_with_one_line(capsys, arguments):
    os.environ.pop("HYDRA_FULL_ERROR", None)  # run() leaves it there
    arguments = [each for each in arguments if each != "verbose=true"]  # which asks for the full trace
    sys.argv[:] = ["runner", *arguments]
    try:
        code = door.command()
    except SystemExit as end:  # of argparse, after --help and --version
        code = end.code or 0
    said = capsys.readouterr().err
    assert code in (0, 1, 2)
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in said
    if code != 1 and "doctor" not in arguments:  # whose jobs and checks that failed have a line each
        assert len(lines) == (code != 0), said
    event(f"exit code {code}")


@fuzz.tries("COMMANDS", 40)
@given(arguments=fuzz.COMMAND_LINE)
def test_a_command_line_ends_with_one_line(here, capsys, arguments):
    a_command_ends_with_one_line(capsys, arguments)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@fuzz.tries("COMMANDS", 40, soak=1_000)
@given(arguments=fuzz.COMMAND_LINE)
def test_many_command_lines_end_with_one_line(here, capsys, arguments):
    a_command_ends_with_one_line(capsys, arguments)


ROWS = "a,b,label\n" + "".join(f"{row},{'xyz'[row % 3]},{row % 2}\n" for row in range(30))
OBJECTS = "".join(f'{{"a": {row}, "b": "{"xyz"[row % 3]}", "label": {row % 2}}}\n' for row in range(30))
TABLE = {"_target_": "datasets.table.read", "target": "label", "target_kind": "classification"}
NPY = {"_target_": "datasets.npy.read", "target_kind": "classification"}
DATASETS = {  # file → the target that reads it
    "rows.csv": {**TABLE, "path": "rows.csv"},
    "rows.jsonl": {**TABLE, "path": "rows.jsonl"},
    "rows.parquet": {**TABLE, "path": "rows.parquet"},
    "inputs.npy": {**NPY, "inputs": "inputs.npy", "targets": "targets.npy"},
    "targets.npy": {**NPY, "inputs": "inputs.npy", "targets": "targets.npy"},
    "both.npz": {**NPY, "inputs": "both.npz"},
    "images/a/0.png": {"_target_": "datasets.images.read", "path": "images", "size": 8, "channels": 1},
    "text.txt": {"_target_": "datasets.text.text", "path": "text.txt", "level": "char", "context_length": 8},
}
CHECKPOINT = "run/checkpoints/step-00000010"


@pytest.fixture(scope="module")
def files(here):
    """Whole files of every kind that is read, by name."""
    (here / "rows.csv").write_text(ROWS)
    (here / "rows.jsonl").write_text(OBJECTS)
    columns = {"a": range(30), "b": list("xyz") * 10, "label": [0, 1] * 15}
    parquet.write_table(pa.table(columns), here / "rows.parquet", row_group_size=8)
    inputs, targets = np.arange(120, dtype=np.float32).reshape(30, 4), np.arange(30) % 3
    np.save(here / "inputs.npy", inputs)
    np.save(here / "targets.npy", targets)
    np.savez_compressed(here / "both.npz", inputs=inputs, targets=targets)
    for name in ("a/0.png", "a/1.png", "a/2.png", "b/3.png", "b/4.png", "b/5.png"):
        path = here / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(path)
    (here / "text.txt").write_text("the quick brown fox jumps over the lazy dog, é\n" * 5)
    weights = {"linear.weight": torch.ones(3, 4), "linear.bias": torch.zeros(3)}
    save_file(weights, here / "weights.safetensors")
    facts = {"epoch": 1, "step": 10, "rows": 0, "metrics": {"val/loss": 0.5}}
    state = {"optimizer": {"momentum": torch.ones(12), "lr": 0.1}, "rank": [1, "two", None, 3.0]}
    checkpoint.commit(here / "run" / "checkpoints", "step-00000010", weights, state, facts)
    request = door.request_of(["tracking=none"], ())
    stored = RunFile(None, None, "f" * 64, request.yaml, ["tracking=none"], str(here), [], run_folder.now())
    stored.write(here / "run")
    run_folder.write_result(here / "run", {"status": "FINISHED", "metrics": {"val/loss": 0.5}})
    (here / "configs" / "model").mkdir(parents=True)
    (here / "configs" / "model" / "mine.yaml").write_text(
        "# one's own\n_target_: models.mlp.MLP\nin_features: null\nout_features: null\nhidden: [8, 4]\ndropout: ${oc.env:NO,0.5}\n"
    )
    names = [path for path in here.rglob("*") if path.is_file() and "outputs" not in path.parts]
    return {str(path.relative_to(here)): path.read_bytes() for path in names}


def read(name):
    """What the project makes of the file, in a form that can be compared; where that cannot be known, None."""
    if name in DATASETS:
        task = schema.Task.language_modeling if name == "text.txt" else schema.Task.classification
        data = arrays.load(schema.Dataset(task, target=copy.deepcopy(DATASETS[name])))
        return [column.tolist() for rows in data.splits.values() for column in rows.read(0, len(rows))]
    if name == "weights.safetensors":
        return {key: value.tolist() for key, value in parameters.read_weights(name).items()}
    if name.startswith(CHECKPOINT):
        manifest, state = checkpoint.load(Path(CHECKPOINT))
        return [manifest["files"], str(state)]
    if name == "run/run.json":
        return resume.request_of(Path("run").absolute(), [], ()).values
    if name == "run/result.json":
        return run_folder.read_result(Path("run"))
    request = door.request_of(["--config-dir", "configs", "model=mine", "tracking=none"], ())
    config.check_targets(request.experiment)
    return request.values


READ = (
    *DATASETS,
    "weights.safetensors",
    *(f"{CHECKPOINT}/{name}" for name in (checkpoint.MANIFEST, checkpoint.STATE, checkpoint.WEIGHTS)),
    "run/run.json",
    "run/result.json",
    "configs/model/mine.yaml",
)


def a_file_is_read_or_named(here, files, data):
    name = data.draw(st.sampled_from(READ), "file")
    other = data.draw(fuzz.damaged(files[name]), "bytes")
    in_checkpoint = name in READ and name.startswith(CHECKPOINT) and not name.endswith(checkpoint.MANIFEST)
    is_sealed = in_checkpoint and data.draw(st.booleans(), "with its sha256")
    event(name)
    (here / name).write_bytes(other)
    if is_sealed:
        seal(here / CHECKPOINT, Path(name).name)
    try:
        read(name)
    except RunnerError as error:
        # What a group's YAML says is known by its keys.
        check_line(error, "model" if name.endswith(".yaml") else Path(name).stem)
        event("refused")
    else:
        assert other == files[name] or not name.startswith(CHECKPOINT) or is_sealed
    finally:
        for changed in {name, f"{CHECKPOINT}/{checkpoint.MANIFEST}"}:
            (here / changed).write_bytes(files[changed])


def seal(folder, name):
    """Make the manifest say of the file what is true of it, as somebody would who plants one."""
    manifest = json.loads((folder / checkpoint.MANIFEST).read_bytes())
    content = (folder / name).read_bytes()
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    del manifest[checkpoint.SEAL]
    (folder / checkpoint.MANIFEST).write_bytes(checkpoint._sealed(manifest))


@fuzz.tries("FILES", 100)
@given(data=st.data())
def test_a_damaged_file_is_named_or_read(here, files, data):
    a_file_is_read_or_named(here, files, data)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@fuzz.tries("FILES", 100, soak=1_000)
@given(data=st.data())
def test_many_damaged_files_are_named_or_read(here, files, data):
    a_file_is_read_or_named(here, files, data)


@pytest.mark.parametrize("name", READ)
def test_the_whole_files_are_read(here, files, name):
    assert read(name)
