"""Text files as next-token examples for a language model."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Text = TypeVar("Text", bytes, str)

PROJECT = Path(__file__).resolve().parents[1]
IGNORED = -100  # the target that torch's cross-entropy leaves out
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def text(
    path: str | Sequence[str] | None = None,
    level: str = "byte",
    context_length: int = 128,
    val_fraction: float = 0.1,
    stride: int | None = None,
) -> dict[str, Any]:
    """{"train": (inputs, targets), "val": …}, int64 [rows, context_length] each; a target is the token that follows.

    `path` is as in `read`. The last `val_fraction` of the text is held out in one piece: no training row reaches into
    it. Training rows start every `stride` tokens (null: half of context_length); a small one shows a short text's tokens
    at many places. Held-out rows do not overlap, so that each held-out token but the first is predicted exactly once.
    A last row that is not full has targets −100.

    `level="byte"`: the tokens are the 256 bytes. `level="char"`: the sorted characters of the training part, then one
    token for all others; they are also returned, as {"preprocessing": {"vocabulary": [character of each token]}}.
    """
    if context_length < 1:
        raise ValueError(f"context_length={context_length} must be at least 1")
    stride = max(1, context_length // 2) if stride is None else stride
    if not 1 <= stride <= context_length:
        raise ValueError(f"stride={stride} must be between 1 and context_length={context_length}")
    content = read(path)
    facts: dict[str, Any] = {}
    if level == "byte":
        parts = [np.frombuffer(part, np.uint8).astype(np.int64) for part in divide(content, val_fraction)]
        facts["out_features"] = 256
    elif level == "char":
        train, held_out = divide(_decoded(content), val_fraction)
        vocabulary = [*sorted(set(train) - {UNKNOWN}), UNKNOWN]
        parts = [encode(part, vocabulary) for part in (train, held_out)]
        facts |= {"out_features": len(vocabulary), "preprocessing": {"vocabulary": vocabulary}}
    else:
        raise ValueError(f"level={level} must be byte or char")
    train_rows = windows(parts[0], context_length, stride)
    return {"train": train_rows, "val": windows(parts[1], context_length, context_length), **facts}


def read(path: str | Sequence[str] | None = None) -> bytes:
    """The bytes of all files, joined. `path` is a file, a glob (its files by name) or a list of them, in its order;
    null: this project's own documentation, which a checkout has."""
    if path is None:
        files = [*sorted(PROJECT.glob("*.md")), *sorted(PROJECT.glob("docs/*.md"))]
        if not files:
            raise ValueError("path=null: an installed package has no documentation beside it; give a path")
    else:
        patterns = [path] if isinstance(path, str) else path
        files = [file for pattern in patterns for file in _files(pattern)]
    content = b"".join(_content(file) for file in files)
    if not content:
        raise ValueError(f"{files[0].absolute()}: is empty")
    return content


def divide(content: Text, val_fraction: float) -> tuple[Text, Text]:
    """The text up to the held-out part, and that part: the last round(length × val_fraction) bytes or characters."""
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction={val_fraction}: must be between 0 and 1")
    held_out = round(len(content) * val_fraction)
    if min(held_out, len(content) - held_out) < 2:
        raise ValueError(
            f"val_fraction={val_fraction} of a text of length {len(content)} is {held_out}: both parts need two tokens"
        )
    return content[:-held_out], content[-held_out:]


def encode(characters: str, vocabulary: Sequence[str]) -> Tokens:
    """Characters → tokens [length]; those that are not in the vocabulary become its last token."""
    token = {character: index for index, character in enumerate(vocabulary)}
    unknown = len(vocabulary) - 1
    return np.array([token.get(character, unknown) for character in characters], np.int64)


def windows(tokens: Tokens, context_length: int, stride: int) -> tuple[Tokens, Tokens]:
    """Rows of inputs and their next tokens [rows, context_length], `stride` apart, until every next token is in one.

    The last row ends with inputs 0 and targets −100 where the text is too short for it.
    """
    rows = 1 + max(0, -(-(len(tokens) - 1 - context_length) // stride))
    missing = (rows - 1) * stride + context_length + 1 - len(tokens)
    starts = stride * np.arange(rows)[:, None] + np.arange(context_length)
    inputs = np.pad(tokens[:-1], (0, missing))
    targets = np.pad(tokens[1:], (0, missing), constant_values=IGNORED)
    return inputs[starts], targets[starts]


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8 at byte {error.start}: type dataset.level=byte") from error


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file.absolute()}: cannot be read: {error.strerror}") from error


def _files(pattern: str) -> list[Path]:
    if Path(pattern).is_file():  # its name may have brackets
        return [Path(pattern)]
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    files = [Path(name) for name in found if Path(name).is_file()]
    if not files:
        what = "is a folder" if Path(pattern).is_dir() else "matches no file"
        raise ValueError(f"path={pattern}: {what}; a file or a glob such as 'texts/*.txt' is needed")
    return files
