"""A small decoder-only language model."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

DEVIATION = 0.02  # of the initial weights


class Transformer(nn.Module):
    """Tokens int64 [rows, time ≤ context_length] → logits [rows, time, vocab_size] of the token after each.

    GPT-2 (Radford et al. 2019): learnt positions, `depth` pre-norm blocks of causal attention and a four times wider
    GELU network, and the embedding of the tokens again as the output layer. Weights start with deviation 0.02, those
    that write into the residual stream with 0.02 / √(2 depth), so that it starts with the same size at any depth.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} must be a multiple of heads={heads}")
        self.context_length = context_length
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context_length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self._initialise(depth)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        if time > self.context_length:
            raise ValueError(f"rows of {time} tokens are longer than context_length={self.context_length}")
        hidden = self.dropout(self.tokens(tokens) + self.positions.weight[:time])
        # The shared weight is used, not assigned to a second layer: a checkpoint then holds it once.
        return functional.linear(self.norm(self.blocks(hidden)), self.tokens.weight)

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
        self.attention = nn.Sequential(nn.LayerNorm(width), _Attention(width, heads, dropout))
        self.network = nn.Sequential(nn.LayerNorm(width), _Network(width, dropout))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(hidden)
        outputs: Tensor = hidden + self.network(hidden)
        return outputs


class _Attention(nn.Module):
    """Causal self-attention of `heads` heads, [rows, time, width] → the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        # [rows, time, 3 width] → three of [rows, heads, time, width / heads]
        query, key, value = self.enter(hidden).unflatten(2, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
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
