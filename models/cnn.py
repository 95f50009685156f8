"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from models.image_shape import channels_height_width


class CNN(nn.Module):
    """[rows, channels, height, width] → [rows, out_features].

    Each of `widths` is a 3×3 convolution, ReLU and a halving by max pooling (a side of odd length is rounded up, so
    that no image is too small); what is left is flattened, and a linear layer gives the outputs.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        out_features: int,
        widths: Sequence[int] = (32, 64),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = channels_height_width(input_shape)
        layers: list[nn.Module] = []
        for filters in widths:
            layers += [
                nn.Conv2d(channels, filters, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            ]
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        layers.append(nn.Flatten())
        if dropout:
            layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(channels * height * width, out_features))
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layers(images)
        return outputs
