"""A small decoder-only language model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVIATION = 0.02  # of the initial weights
LONGEST_WAVE = 10_000  # of the rotary positions, in units of 2π tokens


class Transformer(nn.Module):
    """Tokens int64 [rows, time ≤ context_length] → logits [rows, time, vocab_size] of the token after each.

    As GPT-2 (Radford et al. 2019): `depth` pre-norm blocks of causal attention and a GELU network four times as wide,
    and the embedding of the tokens again as the output layer. Weights start with deviation 0.02, those that write
    into the residual stream with 0.02 / √(2 depth), so that it starts with the same size at any depth. Positions are
    rotary (Su et al. 2021, "RoFormer"): distances are learnt at all places at once, which a short text needs.
    """

    turns: Tensor

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        width: int = 96,
        depth: int = 3,
        heads: int = 4,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width={width} must be a multiple of 2 × heads={heads}")
        self.context_length = context_length
        self.tokens = nn.Embedding(vocab_size, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        angles = _angles(context_length, width // heads)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        self._initialise(depth)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        if time > self.context_length:
            raise ValueError(f"rows of {time} tokens are longer than context_length={self.context_length}")
        hidden = self.dropout(self.tokens(tokens))
        for block in self.blocks:
            hidden = block(hidden, self.turns[:, :time])
        # The weight is used again, not assigned to a second layer: a checkpoint then holds it once.
        return functional.linear(self.norm(hidden), self.tokens.weight)

    def _initialise(self, depth: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("leave.weight"):
                nn.init.normal_(parameter, std=DEVIATION / math.sqrt(2 * depth))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class _Block(nn.Module):
    """x + attention(norm(x)), then x + network(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), _Attention(width, heads, dropout)
        self.network_norm, self.network = nn.LayerNorm(width), _Network(width, dropout)

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), turns)
        outputs: Tensor = hidden + self.network(self.network_norm(hidden))
        return outputs


class _Attention(nn.Module):
    """Causal self-attention with rotary positions, [rows, time, width] → the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        # [rows, time, 3 width] → three of [rows, heads, time, width / heads]
        query, key, value = self.enter(hidden).unflatten(2, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(
            _turn(query, turns),
            _turn(key, turns),
            value,
            dropout_p=self.dropout.p if self.training else 0.0,
            is_causal=True,
        )
        outputs: Tensor = self.dropout(self.leave(mixed.transpose(1, 2).flatten(2)))
        return outputs


class _Network(nn.Module):
    """Two linear layers with GELU between, each token for itself."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        outputs: Tensor = self.dropout(self.leave(functional.gelu(self.enter(hidden))))
        return outputs


def _angles(time: int, size: int) -> Tensor:
    """Radians [time, size / 2]: pair j of a head's features turns by LONGEST_WAVE^(−2j / size) a token."""
    speeds = LONGEST_WAVE ** (-torch.arange(0, size, 2) / size)
    return torch.outer(torch.arange(time), speeds)


def _turn(features: Tensor, turns: Tensor) -> Tensor:
    """Rotate each pair (feature j, feature j + size / 2) of [rows, heads, time, size]; turns: cosines and sines."""
    cosine, sine = turns
    first, second = features.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
