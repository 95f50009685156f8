"""Hydra's and OmegaConf's errors, which take several lines, as one line a user can act on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.errors import (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from yaml import Mark, MarkedYAMLError, YAMLError

from runner.errors import ConfigError, nearest
from runner.plain_words import plainly

EXPECTED = (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
    OmegaConfBaseException,
    SearchPathException,
    YAMLError,
    OSError,  # the run's folder cannot be made
    TypeError,  # of Hydra itself, where a group is given a value that is no name
    ValueError,
    AssertionError,  # of Hydra itself, where there is no name at all
    RecursionError,  # a YAML node that holds itself
    OverflowError,  # a number of hundreds of digits
)
UNREADABLE = (UnicodeDecodeError, RecursionError, GrammarParseError)  # of an option's file


def flags_and_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of a command line and its overrides; Hydra knows no flag behind an override. Raises ConfigError for a flag
    that it has not."""
    parser = get_args_parser()
    parser.error = _refuse_flag  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.experimental_rerun is not None:  # Hydra's drops the overrides, and knows nothing of checkpoints
        raise ConfigError(
            "--experimental-rerun: not here; type python -m runner resume run_dir=<folder of the run>"
        )
    overrides = parsed.overrides
    flags, rest = [], list(overrides)
    for argument in arguments:
        if rest and argument == rest[0]:
            del rest[0]
        else:
            flags.append(argument)
    if overrides and flags and flags[-1] in ("--info", "-i"):
        # It would take an override for its own value.
        flags.append("--")
    return flags, overrides


def _refuse_flag(message: str) -> NoReturn:
    raise ConfigError(f"{message.removeprefix('argument ')}; type python -m runner --help")


def reword(error: BaseException, overrides: Sequence[str], compose: Any) -> ConfigError:
    """The ConfigError that says the same as Hydra's `error`.

    `compose(overrides)` composes a config, so that the keys next to an unknown one can be named.
    """
    if isinstance(error, OverrideParseException):
        return ConfigError(f"{error.override}: not an override; type key=value, or python -m runner --help")
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return _broken_yaml(error, error.problem_mark)
    if isinstance(error, SearchPathException | YAMLError):
        return ConfigError(" ".join(str(error).split()))
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    if isinstance(error, OSError):
        return ConfigError(
            f"hydra.run.dir={error.filename}: cannot be made ({error.strerror}); type another folder"
        )
    if isinstance(error.__cause__, GrammarParseError):
        error = error.__cause__
    is_plain = isinstance(error, TypeError | ValueError | AssertionError | OverflowError) and not isinstance(
        error, OmegaConfBaseException
    )
    if is_plain or isinstance(error, UNREADABLE):
        return _option(error, overrides, compose)
    text = str(error)
    unknown = re.search(r"Could not (?:override|delete|append).*?'([^']+)'", text)
    if unknown and "defaults list" in text:
        return _unknown_group(unknown.group(1), compose)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None) or (unknown.group(1) if unknown else None)
    if key and "not in" in str(cause):
        return _unknown_key(key, overrides, compose)
    wrong = next(
        (override for override in overrides if key and override.lstrip("+~").startswith(f"{key}=")), key
    )
    message = " ".join(str(getattr(cause, "msg", None) or cause).split("full_key:")[0].split())
    plain = plainly(message, key or "")
    return ConfigError(f"{wrong}: {plain}" if wrong else plain)


def _broken_yaml(error: MarkedYAMLError, mark: Mark) -> ConfigError:
    problem = " ".join(str(error.problem).split())
    instead = "; indent with spaces" if "'\\t'" in problem else ""
    return ConfigError(f"{mark.name}:{mark.line + 1}: no valid YAML ({problem}){instead}")


def _missing_option(error: MissingConfigException) -> ConfigError:
    options = list(error.options or ())
    missing = str(error.missing_cfg_file or "")
    group, _, name = missing.rpartition("/")
    if not options:
        return ConfigError(" ".join(str(error).split("\n")[0].split()))
    close = nearest(name, options)
    line = f"{group}={name}: no such option; conf/{group} has {', '.join(options)}"
    return ConfigError(f"{line}; type {group}={close}" if close else line)


def _option(error: BaseException, overrides: Sequence[str], compose: Any) -> ConfigError:
    for override in overrides:
        try:
            compose([override])
        except EXPECTED as again:
            if type(error) not in (type(again), type(again.__cause__)):
                continue
            if isinstance(error, OverflowError):
                return ConfigError(f"{override}: too large a number")
            if isinstance(error, UNREADABLE):
                return ConfigError(f"{override}: its file is no valid YAML ({str(error).splitlines()[0]})")
            group = override.lstrip("+~").partition("=")[0]
            if not group:
                return ConfigError(f"{override}: not an override; type key=value, or python -m runner --help")
            return ConfigError(
                f"{override}: a group takes the name of an option; type {group}=<an option of conf/{group}>"
            )
    return ConfigError(" ".join(str(error).split()))


def _unknown_group(name: str, compose: Any) -> ConfigError:
    config = compose([])
    groups = sorted(str(key) for key in config) if isinstance(config, DictConfig) else []
    close = nearest(name.split("@", maxsplit=1)[0], groups)
    line = f"{name}: no such group or key; there are {', '.join(groups)}"
    return ConfigError(f"{line}; did you mean {close}?" if close else line)


def _unknown_key(key: str, overrides: Sequence[str], compose: Any) -> ConfigError:
    """Compose again without the override at fault, and look at the keys beside it."""
    at_fault = [o for o in overrides if f"{o.lstrip('+~').partition('=')[0]}.".startswith(f"{key}.")]
    others = [override for override in overrides if override not in at_fault]
    parent, _, name = key.rpartition(".")
    try:
        node = compose(others)
        for part in parent.split(".") if parent else ():
            node = node[part]
        known = [str(found) for found in node]
    except Exception:  # noqa: BLE001 (a second error beside the first: report the first without the neighbours)
        known = []
    rest = next((o.lstrip("+~").removeprefix(key) for o in at_fault), "")  # "=value" or ".more=value"
    close = nearest(name, known)
    line = f"{key}: no such key" + (f"; {parent or 'the config'} has {', '.join(known)}" if known else "")
    if not close:
        return ConfigError(line)
    return ConfigError(f"{line}; type {parent + '.' if parent else ''}{close}{rest}")
