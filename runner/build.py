"""`_target_` → object: locate, check the arguments against the signature, fill what the run decides, call.

A node is a plain dict: {"_target_": "package.module.name", argument: value, …}. `_args_` holds positional
arguments, `_partial_: true` returns a functools.partial, and nodes nest. An argument left at null is filled with the
fact of the same name where the run knows one (`in_features` from the data, `T_max` from the plan).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner import targets
from runner.errors import ConfigError, nearest, refuse

RESERVED = ("_target_", "_args_", "_partial_")


def build(node: Any, *positional: Any, facts: Mapping[str, Any] | None = None) -> Any:
    """Build the object that a node describes; `positional` go before the node's own arguments.

    Lists and dicts are walked, other values are returned as they are. Errors of the callable itself pass through.
    """
    if isinstance(node, list):
        return [build(item, facts=facts) for item in node]
    if not isinstance(node, dict):
        return node
    if "_target_" not in node:
        return {key: build(value, facts=facts) for key, value in node.items()}
    target = locate(node["_target_"])
    filled = _fill(node, facts or {})
    arguments = [*positional, *build(filled.get("_args_", []), facts=facts)]
    keywords = {key: build(value, facts=facts) for key, value in filled.items() if key not in RESERVED}
    if node.get("_partial_"):
        return functools.partial(target, *arguments, **keywords)
    return target(*arguments, **keywords)


def check(node: Any, key: str, positional: int = 0, allowed: Sequence[str] = ()) -> None:
    """Raise ConfigError unless every `_target_` under `node` exists, may be named and takes the arguments given to it.

    `key` is the node's path in the config, `positional` the number of arguments that runner itself passes first,
    `allowed` are prefixes besides those of targets.py.
    """
    if isinstance(node, list):
        for index, item in enumerate(node):
            check(item, f"{key}[{index}]", allowed=allowed)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        check(value, f"{key}.{name}", allowed=allowed)
    if "_target_" not in node:
        return
    given = node.get("_args_", [])
    if not isinstance(given, list):
        raise refuse(f"{key}._args_", given, "must be a list", f"{key}._args_=[…]")
    path, where = node["_target_"], f"{key}._target_"
    if isinstance(path, str):
        targets.check_path(path, where, allowed)  # before it is imported
    target = locate(path, where)
    if not callable(target):
        raise refuse(where, path, f"a {type(target).__name__} cannot be called")
    targets.check_object(target, path, where, allowed)
    _check_arguments(target, node, key, positional + len(given))


def locate(path: Any, key: str = "_target_") -> Any:
    """Import the object at a dotted path. Raises ConfigError, with the nearest name where there is one."""
    if (
        not isinstance(path, str)
        or not all(part.isidentifier() for part in path.split("."))
        or "." not in path
    ):
        raise refuse(key, path, "a dotted path such as torch.nn.Linear is needed")
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:depth])
        if not _exists(module_name, key, path):
            continue
        found: Any = _import(module_name, key, path)
        for position, part in enumerate(parts[depth:], start=depth):
            if not hasattr(found, part):
                known = [name for name in dir(found) if not name.startswith("_")] + _submodules(found)
                raise _missing(key, path, parts, position, known)
            found = getattr(found, part)
        return found
    top = [module.name for module in pkgutil.iter_modules()]
    raise _missing(key, path, parts, 0, top)


def arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node without `_target_`, `_args_` and `_partial_`."""
    return {key: value for key, value in node.items() if key not in RESERVED}


def options(node: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments that the target will be called with, its own defaults among them."""
    given = arguments(node)
    try:
        parameters = inspect.signature(locate(node["_target_"])).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return given
    return {**{each.name: each.default for each in parameters if each.default is not each.empty}, **given}


def _fill(node: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: facts.get(key) if value is None else value for key, value in node.items()}


def _check_arguments(target: Callable[..., Any], node: Mapping[str, Any], key: str, positional: int) -> None:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # a builtin without a signature: the dry batch will tell
        return
    parameters = list(signature.parameters.values())
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken_already = by_position[:positional]
    many = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    parameters = [parameter for parameter in parameters if parameter not in taken_already]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = arguments(node)
    taken = f"{node['_target_']} takes {', '.join(named) or 'no arguments'}"
    if positional > len(by_position) and not many:
        raise refuse(f"{key}._args_", node.get("_args_", []), f"too many: {taken}")
    for name, value in given.items():
        if name not in named and not open_ended:
            close = nearest(name, named)
            raise refuse(
                f"{key}.{name}", value, taken, f"{key}.{close}={value}" if close else f"~{key}.{name}"
            )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in given and not node.get("_partial_"):
            raise refuse(f"{key}.{name}", "???", f"needed: {taken}", f"+{key}.{name}=…")


def _exists(module_name: str, key: str, path: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, AttributeError, ValueError):  # a parent is missing, or is no package
        return False
    except Exception as error:  # a parent package raises while it is imported
        parent = module_name.rpartition(".")[0]
        raise ConfigError(
            f"{key}={path}: importing {parent} failed with {type(error).__name__}: {error}"
        ) from error


def _import(module_name: str, key: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(
            f"{key}={path}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error


def _submodules(module: Any) -> list[str]:
    return [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))]


def _missing(key: str, path: str, parts: list[str], position: int, known: list[str]) -> ConfigError:
    where = ".".join(parts[:position]) or "the import path"
    close = nearest(parts[position], known)
    instead = f"{key}={'.'.join([*parts[:position], close, *parts[position + 1 :]])}" if close else None
    return refuse(key, path, f"{where} has no {parts[position]}", instead)
