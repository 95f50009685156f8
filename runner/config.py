"""Composed Hydra config → Experiment. The only file that knows OmegaConf.

Typed groups are checked by OmegaConf against schema.py; open groups (a `_target_` and its arguments) have their own
keys split off here and the rest bound against the target's signature. Everything wrong is one ConfigError.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, cast, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner import schema, secrets
from runner.build import check
from runner.errors import ConfigError, nearest, refuse
from runner.plain_words import plainly
from runner.ranges import check_values
from runner.schema import Experiment

# What runner itself passes first: (parameters), (optimizer), (κ).
POSITIONAL = {
    "model": 0,
    "dataset": 0,
    "loss": 0,
    "metrics": 0,
    "optimizer": 1,
    "scheduler": 1,
    "lr_scaling": 1,
}
# Typed groups by their values. Most are the same in all jobs of a sweep, and OmegaConf takes 2 ms for one.
_objects: dict[tuple[type, str], Any] = {}


def register_schema() -> None:
    """Make `base_schema` known to Hydra; called once, before hydra.main."""
    fields: list[tuple[str, Any, Any]] = []
    for name, kind in _kinds(Experiment).items():
        if _is_open(kind):
            # The group's own keys are there from the start, so that they can be overridden without a `+`.
            default: Any = functools.partial(dict, _own_defaults(kind))
            fields.append((name, dict[str, Any], dataclasses.field(default_factory=default)))
        elif dataclasses.is_dataclass(kind):
            fields.append((name, kind, dataclasses.field(default_factory=cast(Any, kind))))
        else:
            fields.append((name, kind, _default(Experiment, name)))
    ConfigStore.instance().store(name="base_schema", node=dataclasses.make_dataclass("BaseSchema", fields))


def load(config: DictConfig) -> Experiment:
    """The typed Experiment of a composed config. Raises ConfigError; imports no `_target_` (see check_targets)."""
    secrets.learn(OmegaConf.to_container(config, resolve=False))  # before anything is said of their values
    kinds = _kinds(Experiment)
    _refuse_unknown(config, list(kinds), "")
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in config:
            raise ConfigError(f"{name}: cannot be deleted, only be given another value")
        node = cast(DictConfig, config._get_node(name))
        if _is_open(kind):
            values[name] = _split(node, name, kind)
        elif dataclasses.is_dataclass(kind):
            values[name] = _typed(node, name, cast(type, kind))
        else:
            values[name] = _resolved(config, name)
            if get_origin(kind) is list and not isinstance(
                values[name], list
            ):  # OmegaConf lets an interpolation through
                raise refuse(name, values[name], "must be a list", f"{name}=[…]")
    experiment = Experiment(**values)
    secrets.learn(experiment)
    check_values(experiment)
    return experiment


def check_targets(experiment: Experiment) -> None:
    """Locate every `_target_` and bind its arguments. Imports the user's code, and with it torch."""
    for name, positional in POSITIONAL.items():
        group = getattr(experiment, name)
        node = group if isinstance(group, dict) else group.target or {}
        if name == "optimizer":
            node = {**node, "lr": group.lr}
        check(node, name, positional, experiment.allowed_targets)


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, leaf) pairs of a plain container; lists of scalars are leaves."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key!s}" if prefix else str(key))
    else:
        yield prefix, node


def changed(stored: str, overrides: list[str]) -> DictConfig:
    """The config of an earlier run (its YAML) with overrides `key=value`. Keys that are newer than it have their defaults.

    Raises ConfigError.
    """
    try:
        base = ConfigStore.instance().load("base_schema.yaml").node
        composed = OmegaConf.merge(base, OmegaConf.create(stored))
    except (OmegaConfBaseException, YAMLError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"the run's stored config is none that this version of runner takes: {reason}"
        ) from error
    for each in overrides:
        try:
            (override,) = OverridesParser.create().parse_overrides([each])
            if override.is_sweep_override():
                raise ConfigError(f"{each}: a run goes on with one value for each key, not with a sweep")
            OmegaConf.update(composed, override.key_or_group, override.value())
        except (OmegaConfBaseException, OverrideParseException) as error:
            key = each.partition("=")[0]
            raise ConfigError(f"{each}: {plainly(str(error).splitlines()[0], key)}") from error
    return cast(DictConfig, composed)


def to_container(config: DictConfig) -> dict[str, Any]:
    """The composed config as plain Python, interpolations resolved."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, enum_to_str=True))


def to_yaml(config: DictConfig) -> str:
    """The composed config as YAML: interpolations unresolved (so that `${oc.env:…}` keeps its secret), secrets masked."""
    return OmegaConf.to_yaml(secrets.masked(OmegaConf.to_container(config, resolve=False)))


def _kinds(datatype: type) -> dict[str, Any]:
    return get_type_hints(datatype)


def _is_open(kind: Any) -> bool:
    return kind == schema.Target or (dataclasses.is_dataclass(kind) and "target" in _kinds(cast(type, kind)))


def _own_defaults(kind: Any) -> dict[str, Any]:
    if kind == schema.Target:
        return {}
    defaults = dataclasses.asdict(kind())
    del defaults["target"]
    return {key: value.name if isinstance(value, Enum) else value for key, value in defaults.items()}


def _default(datatype: type, name: str) -> Any:
    found = next(field for field in dataclasses.fields(datatype) if field.name == name)
    if found.default is dataclasses.MISSING:
        return dataclasses.field(default_factory=cast(Any, found.default_factory))
    return dataclasses.field(default=found.default)


def _split(node: DictConfig, name: str, kind: Any) -> Any:
    """An open group: its own keys typed by the schema, `_target_` and the rest as the target's node."""
    plain = _resolved_node(node, name)
    if kind == schema.Target:
        return plain or {}
    own = [field for field in _kinds(kind) if field != "target"]
    if not isinstance(plain, dict) or plain.get("_target_") is None:
        if _kinds(kind)["target"] == schema.Target:
            raise refuse(
                f"{name}._target_", "???", "a dotted path is needed", f"{name}=<an option of conf/{name}>"
            )
        _refuse_unknown(node, [*own, "_target_"], name)
        return _typed(OmegaConf.create({key: plain[key] for key in own if key in plain}), name, kind)
    typed = _typed(OmegaConf.create({key: plain[key] for key in own if key in plain}), name, kind)
    typed.target = {key: value for key, value in plain.items() if key not in own}
    return typed


def _typed(node: DictConfig, name: str, kind: type) -> Any:
    _refuse_unknown(node, list(_kinds(kind)), name)
    for key, nested in _kinds(kind).items():
        if dataclasses.is_dataclass(nested) and key in node:
            _refuse_unknown(node._get_node(key), list(_kinds(cast(type, nested))), f"{name}.{key}")
    plain = _resolved_node(node, name)
    try:
        known = kind, repr(plain)
        if known not in _objects:
            _objects[known] = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), plain))
        return copy.deepcopy(_objects[known])
    except OmegaConfBaseException as error:
        key = f"{name}.{error.full_key}" if error.full_key else name
        value = OmegaConf.select(node, error.full_key, default="???") if error.full_key else node
        raise refuse(key, value, plainly(str(error.msg or error).splitlines()[0], key)) from error


def _refuse_unknown(node: Any, known: list[str], prefix: str) -> None:
    for key in node if isinstance(node, DictConfig) else ():
        if key not in known:
            path = f"{prefix}.{key!s}" if prefix else str(key)
            close = nearest(str(key), known)
            where = prefix or "the config"
            raise ConfigError(
                f"{path}: no such key in {where}, which has {', '.join(known)}"
                + (f"; did you mean {prefix + '.' if prefix else ''}{close}?" if close else "")
            )


def _resolved(config: DictConfig, name: str) -> Any:
    try:
        value = config[name]
        return OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value
    except OmegaConfBaseException as error:
        raise ConfigError(f"{name}: {plainly(str(error).splitlines()[0], name)}") from error


def _resolved_node(node: Any, name: str) -> Any:
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or name
        raise ConfigError(f"{key}: {plainly(str(error.msg or error).splitlines()[0], key)}") from error
