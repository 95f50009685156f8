"""What a convolutional network asks of its input's shape."""

from __future__ import annotations

from collections.abc import Sequence


def channels_height_width(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """The three sizes of one image. Raises ValueError for the shape of anything else."""
    if len(input_shape) != 3:
        raise ValueError(
            f"input_shape={list(input_shape)} must be [channels, height, width]; rows that are no images take model=mlp"
        )
    channels, height, width = input_shape
    return channels, height, width
