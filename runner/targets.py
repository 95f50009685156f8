"""Which callables a config may name. A config is trusted input and can still be a mistake, or somebody else's.

One's own code, which lies neither in the standard library nor among the installed packages, needs no permission.
"""

from __future__ import annotations

import functools
import importlib.util
import site
import sys
import sysconfig
import types
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from runner.errors import refuse

# Dotted prefixes. More of them: the config's `allowed_targets`.
ALLOWED = ("torch.nn", "torch.optim", "torch.utils.data", "torchmetrics", "pytorch_optimizer")
# Whatever is allowed: they download, unpickle or compile what they are given.
NEVER = (
    "torch.hub",
    "torch.load",
    "torch.serialization",
    "torch.utils.cpp_extension",
    "torch.utils.model_zoo",
)


def check_path(path: str, key: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a dotted path that a config may not name. Imports nothing."""
    if any(part.startswith("__") for part in path.split(".")):
        raise refuse(key, path, "leads through Python's own attributes; name a class or a function")
    if reason := _reason(path, allowed):
        raise refuse(key, path, *reason)


def check_object(found: Any, path: str, key: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError where the object at an allowed path is another module's that is not: modules import modules."""
    while isinstance(found, functools.partial):
        found = found.func
    module = getattr(found, "__module__", None) or type(found).__module__
    name = f"{module}.{getattr(found, '__qualname__', type(found).__qualname__)}"
    if isinstance(found, types.BuiltinFunctionType) and module.split(".")[:2] in (["torch"], ["torch", "_C"]):
        return  # those of torch.nn.functional say so
    if reason := _reason(name, allowed):
        raise refuse(key, path, f"this is {name}, which {reason[0]}", *reason[1:])


def _reason(path: str, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Why a config may not name it, and what to type instead, if something helps."""
    if _within(path, NEVER):
        return ("downloads, unpickles or compiles what it is given: no config may name it",)
    top = path.partition(".")[0]
    origin = _origin(top)
    if origin is Origin.own or _within(path, (*ALLOWED, *allowed)):
        return None
    may = f"a config may name your own code, and {', '.join((*ALLOWED, *allowed))}"
    if origin is Origin.standard:
        return (f"is of Python's standard library; {may}",)
    return (f"is of an installed package; {may}", f"allowed_targets=[{','.join((*allowed, top))}]")


class Origin(Enum):
    own = "own"
    standard = "standard"
    installed = "installed"


@functools.cache
def _origin(top: str) -> Origin:
    """Of a top-level module; one that is not there is nobody else's."""
    if top in sys.stdlib_module_names:
        return Origin.standard
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that was made without one
        spec = None
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    paths = [Path(place).resolve() for place in places if place]
    # Of a namespace package such as `models` a part may be one's own.
    own = [path for path in paths if not any(path.is_relative_to(folder) for folder in _installed())]
    return Origin.installed if paths and not own else Origin.own


@functools.cache
def _installed() -> frozenset[Path]:
    """Folders of installed packages."""
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
    return frozenset(Path(folder).resolve() for folder in folders)


def _within(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)
