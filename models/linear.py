"""Linear (or, with cross-entropy, logistic) regression."""

from __future__ import annotations

from torch import Tensor, nn


class Linear(nn.Module):
    """[rows, *] → [rows, out_features]: inputs flattened to in_features, one affine map."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(in_features, out_features, bias=bias))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs
