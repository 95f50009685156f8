"""What OmegaConf says about a value, in the words of who wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable

from runner.errors import nearest

Found = re.Match[str]


def _closest(found: Found) -> str:
    options = found["options"].split(", ")
    return f"{{key}}={nearest(found['value'], options) or options[0]}"


# What it says, what is allowed, and what to type; {key} is the key.
WORDS: tuple[tuple[str, str, str | Callable[[Found], str]], ...] = (
    (r"Value '.*' of type '\w+' could not be converted to Integer", "must be a whole number", "{key}=1"),
    (r"Value '.*' of type '\w+' could not be converted to Float", "must be a number", "{key}=0.1"),
    (r"Value '.*' is not a valid bool.*", "must be true or false", "{key}=true"),
    (r"Invalid value '(?P<value>.*)', expected one of \[(?P<options>.*)\]", r"must be one of \g<options>", _closest),
    (r"Invalid value assigned: \w+ is not a ListConfig, list or tuple\.", "must be a list", "{key}=[…]"),
    (r"Cannot merge DictConfig with ListConfig", "must hold keys and values, not a list", "{key}.<name>=…"),
    (r"field '.*' is not Optional", "must have a value", ""),
    (r"Missing mandatory value: .*", "has no value", "{key}=…"),
    (r"Interpolation key '(.*)' not found", r"refers to \1, which is no key of the config", ""),
    (r"Recursive interpolation detected", "refers to itself", ""),
    (r".*Environment variable '(.*)' not found.*", r"the environment variable \1 is not set", r"export \1=…"),
    (r"Could not append to config\. An item is already at '(.*?)'\..*", r"\1 is there already", r"\1=…"),
    (r"Could not delete from config\. '(.*)' does not exist\.", r"there is no \1 to delete", ""),
    (r".* does not support deletion", "cannot be deleted, only be given another value", ""),
    (r"In '(.*)': .*Cannot merge DictConfig with ListConfig.*", r"\1.yaml must hold keys and values, not a list", ""),
)  # fmt: skip


def plainly(message: str, key: str = "") -> str:
    """What is allowed and what to type, where `message` is one that we know; else the message."""
    message = " ".join(message.split())
    for pattern, allowed, instead in WORDS:
        if found := re.fullmatch(pattern, message):
            to_type = instead(found) if callable(instead) else found.expand(instead)
            if "{key}" in to_type and not key:
                to_type = ""
            line = found.expand(allowed)
            return f"{line}; type {to_type.replace('{key}', key)}" if to_type else line
    return message
