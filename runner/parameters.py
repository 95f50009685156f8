"""A model's parameters before training: their first values, which of them train, and the optimizer's groups."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from runner import build, checkpoint, schema
from runner.checkpoint import CheckpointError
from runner.errors import ConfigError, nearest, refuse
from runner.tracking.artifacts import RUNS, fetch

# Of a rule in optimizer.param_groups: which parameters it takes. Its other keys are options of the optimizer.
CONDITIONS = ("match", "min_ndim", "max_ndim")
Weights = Mapping[str, Tensor]  # by dotted name
Groups = list[dict[str, Any]]


def resolve(init_from: str, tracking_uri: str | None, into: Path) -> str:
    """On the driver: `model.init_from` as an absolute local path; `runs:/…` is downloaded to `into`.

    Workers have no store, and perhaps another working directory. Raises ConfigError.
    """
    if init_from.startswith(RUNS):
        path = fetch(init_from, tracking_uri, into, "model.init_from")
    else:
        path = Path(init_from)
    return str(path.expanduser().absolute())


def read_weights(path: str) -> Weights:
    """The weights of a checkpoint folder (verified) or of a .safetensors file; nothing is unpickled.

    Raises ConfigError.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            checkpoint.verify(file)
            file = file / checkpoint.WEIGHTS
        elif file.suffix != ".safetensors":
            raise refuse(
                "model.init_from",
                path,
                "a checkpoint folder, a .safetensors file or runs:/<run_id> is needed",
            )
        return load_file(file)
    except CheckpointError as error:
        inside = [*checkpoint.committed(file), *checkpoint.committed(file / "checkpoints")]
        instead = inside[-1] if inside else "<another checkpoint>"
        raise refuse("model.init_from", path, str(error), f"model.init_from={instead}") from error
    except (SafetensorError, OSError) as error:
        why = f"not a whole .safetensors file ({error})"
        raise refuse("model.init_from", path, why, "model.init_from=<another file>") from error


def initialise(model: nn.Module, settings: schema.Model, weights: Weights | None = None) -> str:
    """Give the model `weights`, by default those of `model.init_from`. Raises ConfigError.

    With `init_strict` names and shapes must be the model's; without it, what fits both is taken. Returns a line that
    says how much was; empty where nothing was asked for.
    """
    if settings.init_from is None:
        return ""
    given = read_weights(settings.init_from) if weights is None else weights
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    fitting = [name for name in own if name in given and given[name].shape == own[name].shape]
    if settings.init_strict:
        _require_all(settings.init_from, given, own, tied=_names(model).values())
    elif not fitting:
        raise refuse(
            "model.init_from",
            settings.init_from,
            f"nothing in it fits the model by name and shape: it has {_few(given)}, the model {_few(own)}",
        )
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(given[name])
    return f"{len(fitting)} of {len(own)} weights from {settings.init_from}"


def freeze(model: nn.Module, pattern: str | None) -> None:
    """Parameters whose dotted name the regular expression finds no longer train. Raises ConfigError.

    A tied weight has several names; each counts.
    """
    if pattern is None:
        return
    expression = _expression("model.freeze", pattern)
    names = _names(model)
    frozen = [p for p, own in names.items() if any(expression.search(name) for name in own)]
    if not frozen:
        modules = (name for name, _ in model.named_modules() if name)
        close = nearest(re.sub(r"[^\w.]", "", pattern).strip("."), chain(modules, *names.values()))
        has = _few(own[0] for own in names.values())
        raise refuse(
            "model.freeze",
            pattern,
            f"none of the {len(names)} parameters has such a name: {has}",
            f"model.freeze={close}" if close else None,
        )
    if not any(parameter.requires_grad for parameter in set(names) - set(frozen)):
        raise refuse(
            "model.freeze", pattern, f"all {len(names)} parameters would be frozen, none would train"
        )
    for parameter in frozen:
        parameter.requires_grad_(False)


def train_mode(model: nn.Module) -> None:
    """model.train(), but a module whose own parameters are all frozen stays in evaluation mode: a frozen batch norm
    keeps its statistics."""
    model.train()
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            module.training = False  # not module.eval(): its children may train


def values(gradient: Tensor) -> Tensor:
    """What a norm is taken of; an embedding's gradient may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def optimizer(model: nn.Module, settings: schema.Optimizer, multiplier: float) -> Optimizer:
    """The config's optimizer over `groups`. Raises ConfigError.

    Horovod constructs an optimizer's class again from its groups alone. Arguments that are no option of a group would
    be lost by that (such as pre_norm of pytorch_optimizer's Lamb), so they are bound to a class of the same name.
    """
    parameters = groups(model, settings, multiplier)
    try:
        return _bound(settings, multiplier)(parameters)
    except Exception as error:  # an optimizer may raise anything about its arguments
        line = str(error).partition("\n")[0]
        raise ConfigError(
            f"optimizer={settings.target['_target_']}: {type(error).__name__}: {line}"
        ) from error


def groups(model: nn.Module, settings: schema.Optimizer, multiplier: float) -> Groups:
    """torch parameter groups: every trainable parameter once, in the model's order. Raises ConfigError.

    Each has its LR: optimizer.lr or its rule's own, × `multiplier`. Groups with optimizer.lr come first, because the
    first group's LR is the one that is reported.
    """
    trainable = {p: names for p, names in _names(model).items() if p.requires_grad}
    rules: Groups = [*settings.param_groups, {}]  # the last one takes what is left
    fits = [_condition(rule, f"optimizer.param_groups[{index}]") for index, rule in enumerate(rules)]
    members: list[list[nn.Parameter]] = [[] for _ in rules]
    for parameter, names in trainable.items():
        members[next(index for index, fit in enumerate(fits) if fit(parameter, names))].append(parameter)
    for index, rule in enumerate(settings.param_groups):
        _check_options(settings, index, members[index] or list(trainable))
        if not members[index] and rule.keys() & set(CONDITIONS):
            has = _few(f"{names[0]} {list(p.shape)}" for p, names in trainable.items())
            left = " that no rule before it takes" if index else ""
            raise refuse(
                f"optimizer.param_groups[{index}]", rule, f"fits no parameter{left}; there are {has}"
            )
    base: Groups = []
    own: Groups = []
    for rule, parameters in zip(rules, members, strict=True):
        options = {**_options(rule), "lr": rule.get("lr", settings.lr) * multiplier}
        decay_all = settings.decay_norms_and_biases or "weight_decay" in rule
        matrices = [parameter for parameter in parameters if decay_all or parameter.ndim >= 2]
        vectors = [parameter for parameter in parameters if not decay_all and parameter.ndim < 2]
        made = own if "lr" in rule else base
        made += [{"params": matrices, **options}, {"params": vectors, **options, "weight_decay": 0.0}]
    return [group for group in base + own if group["params"]]


def _bound(settings: schema.Optimizer, multiplier: float) -> Callable[[Groups], Optimizer]:
    """The `_target_` with all its arguments but the groups."""
    node = {**settings.target, "lr": settings.lr * multiplier, "_partial_": True}
    made: functools.partial[Optimizer] = build.build(node)
    target: Any = made.func
    if not isinstance(target, type):
        return lambda parameters: target(parameters, *made.args, **made.keywords)

    def construct(self: Optimizer, parameters: Groups) -> None:
        super(bound, self).__init__(parameters, *made.args, **made.keywords)

    bound: Any = type(target.__name__, (target,), {"__init__": construct})
    return cast(Callable[[Groups], Optimizer], bound)


def _check_options(settings: schema.Optimizer, index: int, parameters: list[nn.Parameter]) -> None:
    """Refuse an option of a rule that groups of the optimizer do not have.

    Whether they have it is seen by leaving it out: then the optimizer either puts the key into the group itself, or
    will not be constructed (a `use_muon` that it requires).
    """
    rule, name = settings.param_groups[index], settings.target["_target_"]
    for key in _options(rule):
        others = {other: value for other, value in _options(rule).items() if other != key}
        try:
            (group,) = _bound(settings, 1.0)([{**others, "params": parameters}]).param_groups
        except Exception:  # noqa: BLE001 (see above; whatever else is wrong will be raised when it is built)
            continue
        known = group.keys() - {"params"}
        if key not in known:
            allowed = sorted({*known, *CONDITIONS} - rule.keys())
            close = nearest(key, allowed)
            raise refuse(
                f"optimizer.param_groups[{index}].{key}",
                rule[key],
                f"{name} has no such option; a group has {', '.join(allowed)}",
                f"{close}: {rule[key]}" if close else None,
            )


def _condition(rule: Mapping[str, Any], key: str) -> Callable[[nn.Parameter, list[str]], bool]:
    """Whether a rule takes a parameter of these names; its own values are checked."""
    expression = _expression(f"{key}.match", rule.get("match", ".*"))
    low, high = rule.get("min_ndim", 0), rule.get("max_ndim", math.inf)
    for name, value in {"min_ndim": low, "max_ndim": high, "lr": rule.get("lr", 1.0)}.items():
        if not isinstance(value, int | float) or value < 0:
            raise refuse(f"{key}.{name}", value, "must be a number, 0 or more")

    def fits(parameter: nn.Parameter, names: list[str]) -> bool:
        return low <= parameter.ndim <= high and any(expression.search(name) for name in names)

    return fits


def _options(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if key not in CONDITIONS}


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Each parameter's dotted names, several where it is tied; in the model's order."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _require_all(
    path: str, given: Mapping[str, Tensor], own: Mapping[str, Tensor], tied: Iterable[list[str]]
) -> None:
    """Refuse the first difference. Of a tied weight, a file may hold one name only."""
    there = {name for names in tied if any(name in given for name in names) for name in names} | given.keys()
    for name in [*own, *given]:
        ours, theirs = (list(held[name].shape) if name in held else "missing" for held in (own, given))
        if ours != theirs and not (theirs == "missing" and name in there):
            raise refuse(
                "model.init_from",
                path,
                f"{name} is {ours} in the model and {theirs} in the file",
                "model.init_strict=false to take what fits",
            )


def _expression(key: str, pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise refuse(key, pattern, f"not a regular expression ({error})") from error


def _few(names: Iterable[str], count: int = 4) -> str:
    known = list(names)
    return ", ".join(known[:count]) + (", …" if len(known) > count else "") or "none"
