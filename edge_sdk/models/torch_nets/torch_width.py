"""Blocks of torch nets that can compute with some of their channels alone."""

from __future__ import annotations

from abc import abstractmethod

import torch.nn.functional as nnf
from torch import Tensor, nn

CONVOLUTIONS = 4
"""The layers of a body that are narrowed: convolution, norm, activation, convolution."""


class WidthSwitch(nn.Module):
    """A block with a width switch.  A net with one has the capability `width`, which is that of its last such block."""

    @abstractmethod
    def at_width(self, x: Tensor, share: float) -> Tensor:
        """Return the output of the block with this share of its inner channels, the first ones; 1: all of them.

        x: (b, c, h, w) -> (b, c', h', w'), the same shape at any width.
        """


def last_switch(net: nn.Module) -> WidthSwitch | None:
    """Return the last block of a net that has a width switch, in order of registration."""
    found = [module for module in net.modules() if isinstance(module, WidthSwitch)]
    return found[-1] if found else None


def narrowed(body: nn.Sequential, x: Tensor, share: float) -> Tensor:
    """Return the output of a body (convolution, GroupNorm, activation, convolution, ...) at a share of its inner width.

    Whole groups of the norm are kept, at least one.  Layers after the second convolution have their full width.
    """
    if share >= 1:
        whole: Tensor = body(x)
        return whole
    first, norm, activation, second = (body[i] for i in range(CONVOLUTIONS))
    if not (isinstance(first, nn.Conv2d) and isinstance(norm, nn.GroupNorm) and isinstance(second, nn.Conv2d)):
        raise TypeError(f"a body of {type(first).__name__}, {type(norm).__name__} ... cannot be narrowed")
    size = norm.num_channels // norm.num_groups
    groups = max(1, round(share * norm.num_groups))
    inner = groups * size
    bias = None if first.bias is None else first.bias[:inner]
    h = nnf.conv2d(x, first.weight[:inner], bias, first.stride, first.padding)
    h = activation(nnf.group_norm(h, groups, norm.weight[:inner], norm.bias[:inner], norm.eps))
    h = nnf.conv2d(h, second.weight[:, :inner], second.bias, second.stride, second.padding)
    for at in range(CONVOLUTIONS, len(body)):
        h = body[at](h)
    return h
