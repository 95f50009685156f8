"""Image folders: one folder a class, in memory or decoded as they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datasets.files import Files, find, nearest, reason
from datasets.source import chosen, splits
from datasets.split import Array

ENDINGS = ("png", "jpg", "jpeg", "bmp", "gif", "tif", "tiff", "webp")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read(
    path: str,
    size: int | Sequence[int] = 32,
    channels: int = 3,
    normalise: bool = True,
    val_fraction: float = 0.2,
    seed: int = 0,
    stream: bool | None = None,
) -> dict[str, Any]:
    """{"train": …, "val": …, "preprocessing": dict, "out_features": classes, "class_names": folder names, sorted}.

    Inputs are float32 [rows, channels, height, width] of path/class/…/image.png: scaled to `size` (height and width;
    proportions are not kept), in [0, 1], and with `normalise` (x − mean) / standard deviation by channel of the
    training pixels, which "preprocessing" holds. Targets are int64 [rows].

    A folder that holds `train` and `val` is split so; else rows are held out by `val_fraction` and `seed`. Files sorted
    by name are sorted by class, so rows are numbered in the order of a shuffle by `seed`. Raises ValueError with the
    file for an image that cannot be read: when streamed, at once with `normalise`, else as it is read.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if channels not in MODES:
        raise ValueError(f"channels={channels}: must be one of {', '.join(map(str, MODES))}")
    files = find(path, ENDINGS)
    labelled = _labelled(files.names)
    classes = sorted({label for _, label in labelled["train"]})
    order = np.random.default_rng(seed)
    sides = {}
    for side, named in labelled.items():
        for name, label in named:
            if label not in classes:
                raise ValueError(f"{name}: no training image is of class {label!r}{nearest(label, classes)}")
        shuffled = [named[index] for index in order.permutation(len(named))]
        labels = np.array([classes.index(label) for _, label in shuffled], np.int64)
        sides[side] = Images(files, [name for name, _ in shuffled], labels, channels, (height, width))
    train, val = sides["train"], sides.get("val", sides["train"])
    rows = chosen(len(train), len(val) if "val" in sides else None, val_fraction, seed, stream=False)
    facts: dict[str, Any] = {"size": [height, width], "channels": channels}
    if normalise:
        mean, deviation = train.moments(rows["train"].numbers(0, len(train)))
        facts |= {"mean": mean.tolist(), "std": deviation.tolist()}
        train, val = (replace(side, mean=mean, deviation=deviation) for side in (train, val))
    found = splits(train, val, rows, stream)
    return {**found, "preprocessing": facts, "out_features": len(classes), "class_names": classes}


@dataclass(frozen=True)
class Images:
    """Image files and their class ids."""

    files: Files
    names: list[str]
    labels: Array  # int64 [rows]
    channels: int
    size: tuple[int, int]  # height, width
    mean: Array | float = 0.0  # [channels], subtracted from values in [0, 1]
    deviation: Array | float = 1.0

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Inputs float32 [rows, channels, height, width] and class ids of row numbers."""
        inputs = np.empty((len(rows), self.channels, *self.size), np.float32)
        for at, row in enumerate(rows):
            pixels = (self._pixels(self.names[row]) / 255.0 - self.mean) / self.deviation
            inputs[at] = pixels.transpose(2, 0, 1)
        return inputs, self.labels[rows]

    def moments(self, rows: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of each channel, in [0, 1]; sums are whole numbers, so any order gives the same."""
        total = squares = np.zeros(self.channels, np.int64)
        for row in rows:
            pixels = self._pixels(self.names[row]).astype(np.int64)
            total = total + pixels.sum(axis=(0, 1))
            squares = squares + np.square(pixels).sum(axis=(0, 1))
        count = len(rows) * self.size[0] * self.size[1]
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        return mean / 255.0, np.where(deviation > 0, deviation, 255.0) / 255.0

    def _pixels(self, name: str) -> Array:
        """uint8 [height, width, channels]."""
        from PIL import Image, UnidentifiedImageError

        try:
            with self.files.open(name) as file, Image.open(file) as image:
                if image.mode not in EIGHT_BIT:
                    raise ValueError(f"pixels are {image.mode}, and 8 bits a channel can be read")
                found = image.convert(MODES[self.channels])
                if found.size != self.size[::-1]:
                    found = found.resize(self.size[::-1], Image.Resampling.BILINEAR)
                return np.asarray(found).reshape(*self.size, self.channels)
        except UnidentifiedImageError as error:  # whose words name Python's object for the file
            raise ValueError(f"{name}: cannot be read: is no image, or none of a known format") from error
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
            raise ValueError(f"{name}: cannot be read: {reason(error)}") from error


def _labelled(names: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """(file, class) pairs: under train and val where these are the folders above the class folders, else all in train."""
    parts = {name: name.split("/") for name in names}
    depth = max(len(found) for found in parts.values())
    for name, found in parts.items():
        if len(found) < depth:
            raise ValueError(f"{name}: lies in no class folder, where {names[0]} lies in one")
    if {found[-3] for found in parts.values()} == {"train", "val"}:
        return {
            side: [(name, found[-2]) for name, found in parts.items() if found[-3] == side]
            for side in ("train", "val")
        }
    labelled = [(name, found[-2]) for name, found in parts.items()]
    if len({label for _, label in labelled}) == 1:
        raise ValueError(f"{names[0]}: all images lie in one folder; a folder a class is needed")
    return {"train": labelled}
