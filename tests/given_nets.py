"""Functions of an importable module that make nets, as users give them to `edge_sim.run(models=...)`."""

from __future__ import annotations

from functools import partial
from math import prod

from torch import nn

HIDDEN = 8


def net(classes: int, input_shape: tuple[int, int, int], _seed: int, hidden: int | None = None) -> nn.Module:
    hidden = hidden or HIDDEN
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


wide = partial(net, hidden=12)
