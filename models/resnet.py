"""The residual network for small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from models.image_shape import channels_height_width

MAX_GROUPS = 8


class ResNet(nn.Module):
    """[rows, channels, height, width] → [rows, out_features].

    He, Zhang, Ren and Sun 2016, "Deep Residual Learning for Image Recognition", sec. 4.2: a 3×3 convolution, three
    stages of n = (depth − 2) / 6 blocks with `width`, 2 × width and 4 × width channels, each later stage on images of
    half the side, and a linear layer on the mean over the image. Weights start as in He et al. 2015.

    `norm="batch"` is the paper's; its training batches need more than one value a channel, so it goes with
    dataset.drop_last=true. `norm="group"` (Wu and He 2018) treats each row alone and takes batches of any size.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        out_features: int,
        depth: int = 20,
        width: int = 16,
        norm: str = "group",
    ) -> None:
        super().__init__()
        channels, _, _ = channels_height_width(input_shape)
        blocks = _blocks_per_stage(depth)
        layers: list[nn.Module] = [_convolution(channels, width), _norm(norm, width), nn.ReLU()]
        channels = width
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Block(channels, width * 2**stage, stride, norm))
                channels = width * 2**stage
        self.layers = nn.Sequential(*layers)
        self.leave = nn.Linear(channels, out_features)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.leave(self.layers(images).mean(dim=(2, 3)))
        return outputs


class _Block(nn.Module):
    """relu(x + two normalised convolutions of x); x is subsampled and padded with zeros where the shapes differ.

    That shortcut without weights is the paper's option A. The second norm starts at 0 (Goyal et al. 2017, sec. 5.1), so
    that each block starts as the identity.
    """

    def __init__(self, channels: int, out_channels: int, stride: int, norm: str) -> None:
        super().__init__()
        last_norm = _norm(norm, out_channels)
        nn.init.zeros_(last_norm.weight)
        self.residual = nn.Sequential(
            _convolution(channels, out_channels, stride),
            _norm(norm, out_channels),
            nn.ReLU(),
            _convolution(out_channels, out_channels),
            last_norm,
        )
        self.stride, self.new_channels = stride, out_channels - channels

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        return functional.relu(shortcut + self.residual(images))


def _blocks_per_stage(depth: int) -> int:
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        nearest = 6 * max(1, round((depth - 2) / 6)) + 2
        raise ValueError(f"depth={depth} must be 6n + 2: 8, 14, 20, …; the nearest is depth={nearest}")
    return blocks


def _convolution(channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution


def _norm(norm: str, channels: int) -> nn.BatchNorm2d | nn.GroupNorm:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(MAX_GROUPS, channels), channels)
    raise ValueError(f"norm={norm} must be batch or group")
