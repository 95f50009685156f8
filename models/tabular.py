"""A residual network for tables."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class TabularResNet(nn.Module):
    """[rows, *] → [rows, out_features]: inputs flattened to in_features, `depth` residual blocks, linear output.

    ResNet of Gorishniy, Rubachev, Khrulkov and Babenko 2021, "Revisiting Deep Learning Models for Tabular Data",
    sec. 3.2, with two hidden units a unit of `width`. It has LayerNorm where the paper has BatchNorm: a row's output
    then does not depend on which rows share its batch, so batches may be short, uneven or a single row.
    """

    def __init__(
        self, in_features: int, out_features: int, width: int = 64, depth: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(in_features, width)
        self.blocks = nn.Sequential(*(_Block(width, dropout) for _ in range(depth)))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, out_features))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.leave(self.blocks(self.enter(inputs.flatten(1))))
        return outputs


class _Block(nn.Module):
    """x + dropout(linear(dropout(relu(linear(norm(x))))))."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(functional.relu(self.expand(self.norm(inputs))))
        outputs: Tensor = inputs + self.dropout(self.contract(hidden))
        return outputs
