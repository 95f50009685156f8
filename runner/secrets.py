"""Passwords, tokens and keys, which must not stay behind in anything that is printed or written.

Secret are: what stands at a key whose name looks so (`password`, `api_token`, `aws_secret_access_key`), the values of
environment variables with such names, and the user-info of a URI. A process learns them from its environment, its
command line and its config; from then on `mask` takes them out of any text. Text shorter than SHORTEST is not looked for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import quote

MASK = "<secret>"  # also a plain scalar of YAML
SHORTEST = 6  # characters: a shorter word may stand anywhere for something else
_NAMES = re.compile(
    r"(?:^|[^a-z])(?:password|passwd|passphrase|secret|token|credentials?|(?:api|access|private|secret|auth|account)_?key"
    r"|connection_string)$",
    re.IGNORECASE,
)
_OF_A_TEXT = re.compile(
    r"(?:pad|mask|cls|sep|unk|bos|eos|special|start|end)_token$", re.IGNORECASE
)  # a tokenizer's
_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_REFERRED_USER_INFO = re.compile(r"(?:[\w.%-]+:)?\$\{[^{},]+\}(?::\$\{[^{},]+\})?")
_ONLY_A_REFERENCE = re.compile(r"\$\{[^{},]+\}")  # an interpolation without a default of its own
_FORWARDED = (  # what rank 0 needs where its node has it not
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
Node = TypeVar("Node")
_known: set[str] = set()  # of this process, in every spelling that a file may have
_uris: dict[str, str] = {}  # masked URI: the URI
_pattern: re.Pattern[str] | None = None


def looks_secret(name: str) -> bool:
    """Whether a config's key, or an environment variable, has the name of a secret."""
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2]).replace("-", "_")
    return bool(_NAMES.search(last)) and not _OF_A_TEXT.search(last)


def learn_from_process(arguments: Iterable[str]) -> None:
    """Learn the secrets of the environment and of overrides (`key=value`), of which nobody has made a config yet."""
    for name, value in os.environ.items():
        _learn(value, looks_secret(name))
    for argument in arguments:
        key, _, value = argument.partition("=")
        is_secret = looks_secret(key.lstrip("+~"))
        for each in (value, *value.split(",")):  # a sweep
            _learn(each.strip("'\" "), is_secret)


def learn(node: Any) -> None:
    """Learn the secrets of a config, or of whatever is made of dataclasses, dicts and lists; interpolations resolved."""

    def seen(path: tuple[str, ...], leaf: Any) -> Any:
        _learn(str(leaf), any(map(looks_secret, path)))
        return leaf

    _mapped(node, seen)


def mask(text: str) -> str:
    """`text` without the secrets that this process knows."""
    found = _USER_INFO.sub(_mask_user_info, text) if "://" in text else text
    return _pattern.sub(MASK, found) if _pattern else found


def masked(node: Node) -> Node:
    """The same without secrets; an interpolation that only refers to one stays."""
    return _mapped(node, lambda path, leaf: MASK if _hides(path, leaf) else _mask_leaf(leaf))


def unmasked(uri: str) -> str:
    """The URI of this process's config or environment that `uri` is the masked form of; else `uri` itself."""
    return _uris.get(uri, uri)


@dataclass(frozen=True)
class Kept:
    """What `hide` took out."""

    leaves: tuple[Any, ...]
    environment: Mapping[str, str]


def hide(node: Node) -> tuple[Node, Kept]:
    """`node` without secrets, to be sent in the open, and what `reveal` needs to put them back."""
    leaves: list[Any] = []

    def hidden(path: tuple[str, ...], leaf: Any) -> Any:
        if not _hides(path, leaf) and _mask_leaf(leaf) is leaf:
            return leaf
        leaves.append(leaf)
        return f"{MASK}{len(leaves) - 1}"

    found = _mapped(node, hidden)
    return found, Kept(tuple(leaves), {name: os.environ[name] for name in _FORWARDED if name in os.environ})


def reveal(node: Node, kept: Kept) -> Node:
    """What was hidden, in the process that needs it; its environment gets the variables that it has not."""
    for name, value in kept.environment.items():
        os.environ.setdefault(name, value)
    leaves = {f"{MASK}{number}": leaf for number, leaf in enumerate(kept.leaves)}
    return _mapped(node, lambda _, leaf: leaves.get(leaf, leaf))


class MaskedStream:
    """A text stream that secrets do not get through."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mask_output() -> None:
    """From here on this process's stdout and stderr."""
    if not isinstance(sys.stdout, MaskedStream):
        sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr)


def _learn(value: str, is_secret: bool) -> None:
    found = [value, *value.splitlines()] if is_secret and "${" not in value else []
    for user_info in _USER_INFO.findall(value):
        found += [user_info, user_info.partition(":")[2]]
        _uris[_USER_INFO.sub(MASK, value)] = value
    spellings = {
        spelled
        for text in found
        if len(text) >= SHORTEST and MASK not in text
        for spelled in (
            text,
            repr(text)[1:-1],
            ascii(text)[1:-1],
            json.dumps(text)[1:-1],
            text.replace("'", "''"),  # YAML's
            quote(text, safe=""),
        )
    }
    if not spellings <= _known:
        global _pattern
        _known.update(spellings)
        _pattern = re.compile("|".join(map(re.escape, sorted(_known, key=len, reverse=True))))


def _mask_leaf(leaf: Any) -> Any:
    """The leaf itself where there is nothing to mask."""
    if not isinstance(leaf, str):
        return leaf
    key, has_value, _ = leaf.partition("=")
    text = f"{key}={MASK}" if has_value and looks_secret(key) else mask(leaf)
    return leaf if text == leaf else text


def _mask_user_info(found: re.Match[str]) -> str:
    return found[0] if _REFERRED_USER_INFO.fullmatch(found[0]) else MASK


def _hides(path: tuple[str, ...], leaf: Any) -> bool:
    """Whether the leaf at this path is a secret as a whole."""
    return any(map(looks_secret, path)) and str(leaf) != "" and not _ONLY_A_REFERENCE.fullmatch(str(leaf))


def _mapped(node: Node, change: Callable[[tuple[str, ...], Any], Any], path: tuple[str, ...] = ()) -> Node:
    """The same shape with each text and whole number at its path of keys changed; what has nothing to change is the object itself."""
    if type(node) in (str, int):
        return cast(Node, change(path, node))
    found: Any = node
    if isinstance(node, Mapping):
        found = {key: _mapped(value, change, (*path, str(key))) for key, value in node.items()}
        same = all(found[key] is node[key] for key in node)
    elif type(node) in (list, tuple):
        items = cast(Sequence[Any], node)
        found = [_mapped(value, change, path) for value in items]
        same = all(new is old for new, old in zip(found, items, strict=True))
        found = found if isinstance(node, list) else tuple(found)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        values = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        changed = {name: _mapped(value, change, (*path, name)) for name, value in values.items()}
        same = all(changed[name] is values[name] for name in values)
        found = node if same else dataclasses.replace(node, **changed)
    else:
        return node
    return node if same else cast(Node, found)
