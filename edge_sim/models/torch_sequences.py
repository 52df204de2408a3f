"""Small nets for series (b, t, d) and for ids of tokens (b, t), of any length; texts are padded with the id 0.

They normalise by GroupNorm and LayerNorm, which average where weights travel, and end in a linear head.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TypeAlias

import torch
from torch import Tensor, nn

from edge_sdk.data import Preprocess
from edge_sim.models.model_types import InputShape

Build: TypeAlias = Callable[[int, InputShape, int], nn.Module]
"""Makes a net for (classes, (1, t, d) or (1, 1, t), vocabulary)."""
GROUPS, HEADS = 4, 4
KERNEL = 5
"""Steps of a series, or tokens, that a filter sees; at the ends the others count as 0."""
WORD = 32
"""Width of the vector of a token."""


def takes_sequences(name: str, preprocess: Preprocess) -> Callable[[int, InputShape], nn.Module]:
    """Return the builder of a family for samples of this preprocessing."""
    return lambda classes, shape: NETS[name](classes, shape, preprocess.vocabulary or 0)


class WordVectors(nn.Module):
    """Vectors of tokens: ids (b, t) -> (b, t, width), 0 for the padding."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, WORD, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors."""
        found: Tensor = self.table(ids)
        return found


class OverTime(nn.Module):
    """A net of a body that answers at each step, whose mean over the steps that are no padding a head classifies."""

    def __init__(self, words: nn.Module | None, body: nn.Module, head: nn.Module) -> None:
        """words: of tokens, or None for series."""
        super().__init__()
        self.words, self.body, self.head = words, body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return logits: (b, t, d) or ids (b, t) -> (b, k)."""
        if self.words is None:
            features: Tensor = self.body(x).mean(dim=1)
        else:
            there = (x != 0).unsqueeze(2)  # (b, t, 1)
            steps = self.body(self.words(x)) * there
            features = steps.sum(dim=1) / there.sum(dim=1).clamp_min(1)
        logits: Tensor = self.head(features)
        return logits


class Filters(nn.Module):
    """Convolutions over time, each with GroupNorm and ReLU: (b, t, d) -> (b, t, width)."""

    def __init__(self, depth: int, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for wide in widths:
            layers += [
                nn.Conv1d(depth, wide, KERNEL, padding=KERNEL // 2),
                nn.GroupNorm(gcd(GROUPS, wide), wide),
                nn.ReLU(),
            ]
            depth = wide
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last convolution gives at each step."""
        found: Tensor = self.layers(x.transpose(1, 2)).transpose(1, 2)
        return found


class Recurrent(nn.Module):
    """An LSTM or a GRU, with LayerNorm behind: (b, t, d) -> (b, t, width)."""

    def __init__(self, cell: type[nn.LSTM | nn.GRU], depth: int, wide: int) -> None:
        super().__init__()
        self.cell, self.norm = cell(depth, wide, batch_first=True), nn.LayerNorm(wide)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the cell gives at each step."""
        found: Tensor = self.norm(self.cell(x)[0])
        return found


class Attention(nn.Module):
    """Blocks of a transformer's encoder (Vaswani et al., 2017) that normalise first: (b, t, d) -> (b, t, width)."""

    def __init__(self, depth: int, steps: int, wide: int, blocks: int) -> None:
        super().__init__()
        self.enter = nn.Linear(depth, wide)
        self.places = nn.Parameter(0.02 * torch.randn(steps, wide))
        self.blocks = nn.Sequential(*(AttentionBlock(wide) for _ in range(blocks)), nn.LayerNorm(wide))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last block gives at each step."""
        found: Tensor = self.blocks(self.enter(x) + self.places)
        return found


class AttentionBlock(nn.Module):
    """Self-attention and two dense layers, each added to its input: (b, t, d) -> (b, t, d)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.before, self.looks, self.out = nn.LayerNorm(wide), nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.dense = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 2 * wide), nn.ReLU(), nn.Linear(2 * wide, wide))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with what was added to it."""
        b, t, d = x.shape
        looks = self.looks(self.before(x)).reshape(b, t, 3, HEADS, d // HEADS)
        query, key, value = looks.permute(2, 0, 3, 1, 4).unbind()  # (b, heads, t, d / heads) each
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
        found: Tensor = x + self.dense(x)
        return found


def _over_time(body: Callable[[int, int], nn.Module], width: int, hidden: int = 0) -> Build:
    """Return a builder; body: makes (b, t, d) -> (b, t, width) of d and t; hidden: width of a layer before the head."""

    def build(classes: int, input_shape: InputShape, vocabulary: int) -> nn.Module:
        words = WordVectors(vocabulary) if vocabulary else None
        steps, depth = (input_shape[2], WORD) if vocabulary else input_shape[1:]
        head: nn.Module = nn.Linear(hidden or width, classes)
        if hidden:
            head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), head)
        return OverTime(words, body(depth, steps), head)

    return build


_BODIES: dict[str, Build] = {
    "cnn": _over_time(lambda depth, _: Filters(depth, 16, 32), 32),
    "cnn-wide": _over_time(lambda depth, _: Filters(depth, 32, 64, 64), 64, hidden=64),
    "gru": _over_time(lambda depth, _: Recurrent(nn.GRU, depth, 32), 32),
    "lstm": _over_time(lambda depth, _: Recurrent(nn.LSTM, depth, 64), 64),
    "transformer": _over_time(lambda depth, steps: Attention(depth, steps, 32, 2), 32),
}
NETS: dict[str, Build] = {
    **{f"series-{name}": build for name, build in _BODIES.items()},
    "text-bag": _over_time(lambda _depth, _steps: nn.Identity(), WORD, hidden=64),
    **{f"text-{name}": build for name, build in _BODIES.items()},
}
