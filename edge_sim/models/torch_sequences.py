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
from edge_sdk.sample_kind import RAGGED
from edge_sim.models.model_types import InputShape

Build: TypeAlias = Callable[[int, InputShape, int, bool], nn.Module]
"""Makes a net for (classes, (1, t, d) or (1, 1, t), vocabulary, whether series have several lengths)."""
GROUPS, HEADS = 4, 4
KERNEL = 5
"""Steps of a series, or tokens, that a filter sees; at the ends the others count as 0."""
_NOWHERE = -1e9
"""Added to what attention gives to padding: nothing is left of it."""
WORD = 32
"""Width of the vector of a token."""


def takes_sequences(name: str, preprocess: Preprocess) -> Callable[[int, InputShape], nn.Module]:
    """Return the builder of a family for samples of this preprocessing."""
    ragged = preprocess.kind == RAGGED
    return lambda classes, shape: NETS[name](classes, shape, preprocess.vocabulary or 0, ragged)


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
    """A body that answers at each step, and a head that classifies the mean over the steps that are not padding."""

    def __init__(self, words: nn.Module | None, body: nn.Module, head: nn.Module, *, ragged: bool) -> None:
        """words: of tokens, or None for series.  ragged: whether series end in padding."""
        super().__init__()
        self.words, self.body, self.head, self.ragged = words, body, head, ragged

    def forward(self, x: Tensor) -> Tensor:
        """Return logits: (b, t, d) or ids (b, t) -> (b, k)."""
        if self.words is None and not self.ragged:
            features: Tensor = self.body(x, None).mean(dim=1)
        else:
            there = (x != 0).unsqueeze(2).float() if self.words is not None else _steps_there(x)  # (b, t, 1)
            steps = self.body(x if self.words is None else self.words(x), there) * there
            features = steps.sum(dim=1) / there.sum(dim=1).clamp_min(1)
        logits: Tensor = self.head(features)
        return logits


def _steps_there(x: Tensor) -> Tensor:
    """Return 1 up to the last step of each series that is not 0 in every sensor: (b, t, d) -> (b, t, 1)."""
    filled = (x != 0).any(dim=2, keepdim=True).float()
    return filled.flip(1).cumsum(1).flip(1).clamp_max(1)


class WordsAsTheyAre(nn.Module):
    """Vectors of tokens as they are: (b, t, d) -> (b, t, d)."""

    def forward(self, x: Tensor, there: Tensor | None) -> Tensor:  # noqa: ARG002  # as other bodies
        """Return them."""
        return x


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

    def forward(self, x: Tensor, there: Tensor | None) -> Tensor:
        """Return what the last convolution gives at each step; there (b, t, 1): 0 at padding, which nothing sees."""
        x = x.transpose(1, 2)
        if there is None:
            found: Tensor = self.layers(x)
            return found.transpose(1, 2)
        there = there.transpose(1, 2)
        for layer in self.layers:
            x = _normalised(layer, x, there) if isinstance(layer, nn.GroupNorm) else layer(x * there)
        return x.transpose(1, 2)


def _normalised(norm: nn.GroupNorm, x: Tensor, there: Tensor) -> Tensor:
    """Return what GroupNorm gives for series (b, c, t) without their padding; there: (b, 1, t)."""
    b, c, t = x.shape
    parts, seen = x.reshape(b, norm.num_groups, -1, t), there.unsqueeze(1)  # (b, g, c / g, t), (b, 1, 1, t)
    count = seen.sum(dim=(2, 3), keepdim=True).clamp_min(1) * (c // norm.num_groups)
    centred = (parts - (parts * seen).sum(dim=(2, 3), keepdim=True) / count) * seen
    spread = (centred * centred).sum(dim=(2, 3), keepdim=True) / count
    scaled = (centred / (spread + norm.eps).sqrt()).reshape(b, c, t)
    return scaled * norm.weight.unsqueeze(1) + norm.bias.unsqueeze(1)


class Recurrent(nn.Module):
    """An LSTM or a GRU, with LayerNorm behind: (b, t, d) -> (b, t, width)."""

    def __init__(self, cell: type[nn.LSTM | nn.GRU], depth: int, wide: int) -> None:
        super().__init__()
        self.cell, self.norm = cell(depth, wide, batch_first=True), nn.LayerNorm(wide)

    def forward(self, x: Tensor, there: Tensor | None) -> Tensor:  # noqa: ARG002  # padding comes last: no step sees it
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

    def forward(self, x: Tensor, there: Tensor | None) -> Tensor:
        """Return what the last block gives at each step; there (b, t, 1): 0 at padding, which nothing looks at."""
        x = self.enter(x) + self.places
        hidden = None if there is None else (_NOWHERE * (1 - there)).transpose(1, 2).unsqueeze(1)  # (b, 1, 1, t)
        for block in self.blocks:
            x = block(x, hidden) if isinstance(block, AttentionBlock) else block(x)
        return x


class AttentionBlock(nn.Module):
    """Self-attention and two dense layers, each added to its input: (b, t, d) -> (b, t, d)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.before, self.looks, self.out = nn.LayerNorm(wide), nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.dense = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 2 * wide), nn.ReLU(), nn.Linear(2 * wide, wide))

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the input with what was added to it; hidden: what is added to what a step looks at, or None."""
        b, t, d = x.shape
        looks = self.looks(self.before(x)).reshape(b, t, 3, HEADS, d // HEADS)
        query, key, value = looks.permute(2, 0, 3, 1, 4).unbind()  # (b, heads, t, d / heads) each
        seen = nn.functional.scaled_dot_product_attention(query, key, value, hidden)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
        found: Tensor = x + self.dense(x)
        return found


def _over_time(body: Callable[[int, int], nn.Module], width: int, hidden: int = 0) -> Build:
    """Return a builder; body: makes (b, t, d) -> (b, t, width) of d and t; hidden: width of a layer before the head."""

    def build(classes: int, input_shape: InputShape, vocabulary: int, ragged: bool) -> nn.Module:
        words = WordVectors(vocabulary) if vocabulary else None
        steps, depth = (input_shape[2], WORD) if vocabulary else input_shape[1:]
        head: nn.Module = nn.Linear(hidden or width, classes)
        if hidden:
            head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), head)
        return OverTime(words, body(depth, steps), head, ragged=ragged)

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
    "text-bag": _over_time(lambda _depth, _steps: WordsAsTheyAre(), WORD, hidden=64),
    **{f"text-{name}": build for name, build in _BODIES.items()},
}
