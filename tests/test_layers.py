"""The shape of the house: who imports whom, and how long a file may be."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
RUNNER = PROJECT / "runner"

# Each room imports only from the rooms of the lines above its own.
LAYERS = [
    {"secrets"},
    {"json_file", "executor_schema", "sweep_schema", "sources"},
    {"errors", "schema", "lr_scaling", "rank_log", "provenance", "reach", "interrupts", "train_state"},
    {"targets", "plain_words", "checks"},
    {"resources", "build", "communicator", "checkpoint", "snapshot", "run_folder", "stacks", "tracking"},
    {"ranges", "retention", "rank_state", "ledger", "watchdog"},
    {"config", "plan", "reword", "checkpoint_writer", "diagnosis"},
    {"identity", "going_on", "memory", "process_state", "options", "take_over"},
    {"request", "ingest", "losses", "metrics", "parameters", "schedule"},
    {"known", "job", "adascale", "objective", "examine"},
    {"lightning"},
    {"learner"},
    {"loop", "profile", "rehearsal"},
    {"saving"},
    {"worker"},
    {"executors"},
    {"preflight"},
    {"report"},
    {"prepare"},
    {"recording", "dry_run"},
    {"verbs"},
    {"sweep"},  # trains its jobs as the verb does
    {"__main__"},
    {"replicas"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FOREIGN = {
    "ray": ("executors/", "sweep/", "ingest/ray_data.py", "preflight.py", "replicas.py"),
    "hydra": ("config.py", "reword.py", "__main__.py", "sweep/"),
    "omegaconf": ("config.py", "request.py", "reword.py", "__main__.py", "sweep/"),
    "mlflow": ("tracking/",),
    "optuna": ("sweep/",),
    "horovod": ("communicator.py", "preflight.py", "executors/"),
    "lightning": (),  # LightningModules are known by their methods
}
VAGUE = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers", "handler", "handlers"}
SOURCES = sorted(
    path
    for folder in ("runner", "tests", "models", "datasets", "tools", "benchmarks")
    for path in (PROJECT / folder).rglob("*.py")
)


def room_of(path):
    return path.relative_to(RUNNER).parts[0].removesuffix(".py")


def imports(path, top_level_only=False):
    """Dotted names that a file imports, at its top and inside functions."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def short(path):
    return str(path.relative_to(PROJECT))


MODULES = sorted(path for path in RUNNER.rglob("*.py") if path != RUNNER / "__init__.py")


def test_every_room_has_a_layer():
    assert {room_of(path) for path in MODULES} <= set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_a_room_imports_only_from_those_before_it(path):
    room = room_of(path)
    rooms = {name.split(".")[1] for name in imports(path) if name.split(".")[0] == "runner" and "." in name}
    above = {other for other in rooms - {room, "__version__"} if LEVEL[other] >= LEVEL[room]}
    assert above == set()


@pytest.mark.parametrize("folder", ["executors", "ingest", "report", "sweep", "verbs"])
def test_the_files_of_a_room_import_each_other_one_way(folder):
    prefix = f"runner.{folder}."
    known = {
        path.stem: {name.removeprefix(prefix).split(".")[0] for name in imports(path) if prefix in name}
        for path in (RUNNER / folder).glob("*.py")
    }
    graph = {name: others & set(known) for name, others in known.items()}
    assert sorted(TopologicalSorter(graph).static_order()) == sorted(known)  # raises CycleError


@pytest.mark.parametrize("package", FOREIGN)
def test_a_package_is_known_in_its_own_rooms_only(package):
    users = {
        path.relative_to(RUNNER).as_posix()
        for path in MODULES
        if any(name.split(".")[0] == package for name in imports(path))
    }
    assert {user for user in users if not user.startswith(FOREIGN[package])} == set()


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_what_takes_seconds_to_import_is_imported_where_it_is_used(path):
    slow = {name.split(".")[0] for name in imports(path, top_level_only=True)} & {
        "ray",
        "mlflow",
        "horovod",
        "optuna",
    }
    # What they define has a base class of Ray's; they are imported inside the executors' functions.
    of_ray = ("receiver.py", "local_trainer.py", "exploits.py", "v2_trainer.py", "horovod_backend.py")
    assert slow <= ({"ray", "horovod"} if path.name in of_ray else set())


@pytest.mark.parametrize("folder", ["models", "datasets"])
def test_models_and_datasets_know_nothing_of_runner(folder):
    for path in (PROJECT / folder).rglob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} & {"runner", "hydra", "ray", "mlflow"} == set()


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_no_file_is_long_or_vaguely_named(path):
    lines = len(path.read_text().splitlines())
    assert lines <= (250 if short(path) == "runner/loop.py" else 300)
    assert path.stem not in VAGUE
    assert path.parent.name not in VAGUE


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_every_file_says_at_its_top_what_it_is(path):
    source = path.read_text()
    assert not source or ast.get_docstring(ast.parse(source))
