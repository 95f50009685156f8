"""Which code a job runs: the version that its results belong to."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "horovod", "numpy")  # whose releases may change a number
OURS = Path(__file__).resolve().parent


def code_version(values: Mapping[str, Any], roots: Sequence[str]) -> str:
    """sha256, in hexadecimal, of runner, of PACKAGES' versions, and of the modules under `roots` that the config's `_target_`s
    need: their own and those that these import, as far as their text says so."""
    files: dict[str, Path] = {}
    waiting = [name for target in _targets(values) for name in _prefixes(target)]
    while waiting:
        name = waiting.pop()
        path = None if name in files else _file(name, tuple(roots))
        if path is not None:
            files[name] = path
            waiting += _imported(path, name)
    hashed = hashlib.sha256(_tool().encode())
    for name in sorted(files):
        hashed.update(f"{name} {_digest(files[name])}\n".encode())
    return hashed.hexdigest()


@cache
def _tool() -> str:
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return " ".join([python, *versions, *(_digest(path) for path in sorted(OURS.rglob("*.py")))])


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _prefixes(name: str) -> list[str]:
    """A dotted name and the packages it lies in: which of them are modules, the files say."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


@cache
def _file(module: str, roots: tuple[str, ...]) -> Path | None:
    """Of a module under `roots`, the first that has it; runner itself is counted as a whole."""
    if module.split(".", maxsplit=1)[0] == OURS.name:
        return None
    relative = Path(*module.split("."))
    for root in roots:
        for path in (Path(root) / relative.with_suffix(".py"), Path(root) / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def _imported(path: Path, module: str) -> tuple[str, ...]:
    """All that a module's text may import."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names: Iterable[str] = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [prefix for name in names for prefix in _prefixes(name)]
    return tuple(dict.fromkeys(found))


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
