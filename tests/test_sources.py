"""Which code a job runs: the version changes with every file that its targets need, and with no other."""

import importlib.metadata
from pathlib import Path

import pytest

from runner import sources
from runner.sources import code_version

PROJECT = str(Path(__file__).resolve().parents[1])
FILES = {
    "own/__init__.py": "",
    "own/net.py": "import torch\nfrom own import parts\nfrom . import layers\nfrom .blocks.deep import Block\n",
    "own/parts.py": "import tools_of_mine.shapes as shapes\n",
    "own/layers.py": "def late():\n    from ..own import lazily\n",
    "own/lazily.py": "",
    "own/blocks/__init__.py": "from .. import above\n",
    "own/blocks/deep.py": "from .beside import *\n",
    "own/blocks/beside.py": "",
    "own/above.py": "",
    "tools_of_mine/__init__.py": "",
    "tools_of_mine/shapes.py": "",
    "own/unrelated.py": "import own.net\n",
    "own/blocks/other.py": "",
    "tools_of_mine/other.py": "",
    "data_of_mine.py": "",
    "inner.py": "",
}
NEEDED = [
    "own/__init__.py",
    "own/net.py",
    "own/parts.py",  # from package import submodule
    "own/layers.py",  # relative
    "own/blocks/__init__.py",  # on the way to a module
    "own/blocks/deep.py",
    "own/blocks/beside.py",  # what that imports
    "own/above.py",  # what an __init__ imports, relative to itself
    "tools_of_mine/__init__.py",
    "tools_of_mine/shapes.py",  # absolute
    "data_of_mine.py",  # another target
    "inner.py",  # a target within a list within another target's arguments
]
CONFIG = {
    "model": {"_target_": "own.net.Net", "width": 3},
    "dataset": {
        "_target_": "data_of_mine.load",
        "steps": [1, {"_target_": "inner.Step"}],
    },
    "seed": 0,
}


@pytest.fixture(autouse=True)
def as_in_another_command():
    """Within one command a file is read once."""
    yield
    for cached in (sources._tool, sources._file, sources._imported, sources._digest):
        cached.cache_clear()


def version(root, config=CONFIG, *before):
    as_new = (sources._tool, sources._file, sources._imported, sources._digest)
    for cached in as_new:
        cached.cache_clear()
    return code_version(config, [*map(str, before), str(root)])


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", NEEDED)
def test_a_file_that_a_target_needs_changes_the_version(root, name):
    before = version(root)
    (root / name).write_text(FILES[name] + "# changed\n")
    changed = version(root)
    assert changed != before
    (root / name).write_text(FILES[name])
    assert version(root) == before


@pytest.mark.parametrize("name", sorted(set(FILES) - set(NEEDED) - {"own/lazily.py"}))
def test_a_file_that_none_needs_does_not(root, name):
    before = version(root)
    (root / name).write_text("changed = True\n")
    assert version(root) == before


def test_an_import_within_a_function_counts(root):
    (root / "own/layers.py").write_text("def late():\n    from own import lazily\n")
    before = version(root)
    (root / "own/lazily.py").write_text("changed = True\n")
    assert version(root) != before


def test_the_version_is_that_of_texts_not_of_times_or_places(root, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for path in root.rglob("*.py"):
        (copy / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        (copy / path.relative_to(root)).write_bytes(path.read_bytes())
    assert version(copy) == version(root)
    assert len(version(root)) == 64


def test_arguments_are_no_code(root):
    other = {**CONFIG, "model": {"_target_": "own.net.Net", "width": 4}, "seed": 1}
    assert version(root, other) == version(root)
    assert version(root, {**CONFIG, "model": {"_target_": "own.parts.Net"}}) != version(root)


def test_a_user_s_models_beside_ours_count_and_ours_are_found_first(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.py").write_text("from models.mlp import MLP\n")
    mine, ours = {"model": {"_target_": "models.mine.Net"}}, {"model": {"_target_": "models.mlp.MLP"}}

    def of(config):
        return version(tmp_path, config, PROJECT)

    before = of(mine), of(ours)
    assert before[0] != before[1]
    (tmp_path / "models/mine.py").write_text("from models.mlp import MLP  # changed\n")
    assert of(mine) != before[0]
    assert of(ours) == before[1]
    (tmp_path / "models/mlp.py").write_text("hides ours: no\n")  # not even parsed
    assert of(ours) == before[1]


def test_runner_itself_and_the_releases_of_what_computes_count(root, monkeypatch, tmp_path_factory):
    before = version(root)
    found = importlib.metadata.version
    for package in ("torch", "horovod", "numpy"):
        with monkeypatch.context() as changed:
            changed.setattr(
                sources.importlib.metadata,
                "version",
                lambda name, one=package: "0.0" if name == one else found(name),
            )
            assert version(root) != before
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "runner"
    elsewhere.mkdir()
    monkeypatch.setattr(sources, "OURS", elsewhere)
    (elsewhere / "loop.py").write_text("")
    empty = version(root)
    (elsewhere / "loop.py").write_text("pass\n")
    assert len({before, empty, version(root)}) == 3
