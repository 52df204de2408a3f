"""A head on directions: s * (w / |w|) . (f / |f|), as in FedNH's equation 2."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import ModelError
from edge_sdk.models.base import COSINE_SCALE, NORM_LEAST
from edge_sdk.models.torch_nets.torch_arrays import array_of, to_tensor


class Unit(nn.Module):
    """Scales features to length 1: (n, d) -> (n, d); a feature of length 0 stays 0."""

    def forward(self, f: Tensor) -> Tensor:
        """Divide each by its length."""
        return nnf.normalize(f, eps=NORM_LEAST)


class TorchCosineHead(nn.Linear):
    """Maps unit features (n, d) to logits (n, k): the scale times the cosine to each row.

    Rows have any length, and only their direction counts.  The bias has no effect; it is there so that the last layer
    has the shape of every other one.
    """

    def __init__(self, features: int, classes: int, scale: float = COSINE_SCALE) -> None:
        super().__init__(features, classes)
        self.scale_trains = True
        """Whether fits that train the body change the scale."""
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        with torch.no_grad():
            self.bias.zero_()

    def scaled_rows(self) -> Tensor:
        """Return the factors of the features: (k, d)."""
        return self.scale * nnf.normalize(self.weight, eps=NORM_LEAST)

    def forward(self, f: Tensor) -> Tensor:
        """Multiply."""
        return nnf.linear(f, self.scaled_rows())


def linear_rows(head: nn.Linear) -> Tensor:
    """Return the factors of the features, without the bias: (k, d)."""
    return head.scaled_rows() if isinstance(head, TorchCosineHead) else head.weight


def write_rows(head: nn.Linear, classes: Ints, rows: Floats) -> None:
    """Overwrite the rows of some classes: classes (m,), rows (m, d + 1); a cosine head's bias stays 0."""
    parts = [(head.weight, rows[:, :-1])]
    if head.bias is not None and not isinstance(head, TorchCosineHead):
        parts.append((head.bias, rows[:, -1]))
    for parameter, values in parts:
        if parameter.is_cpu:
            array_of(parameter)[classes] = values
        else:
            with torch.no_grad():
                parameter[torch.tensor(classes, dtype=torch.int64)] = to_tensor(values, parameter.device)


def held(head: nn.Linear | None) -> set[int]:
    """Return the parameters that no fit changes, by identity."""
    return {id(head.scale)} if isinstance(head, TorchCosineHead) and not head.scale_trains else set()


def with_cosine_head(net: nn.Module, last: nn.Linear | None, classes: int, name: str) -> nn.Module:
    """Replace the nn.Linear that makes the logits; all in front of it stays, a ReLU too, as in FedNH's paper.

    Raises ModelError unless there is one that gives one number per class.
    """
    if last is None:
        raise ModelError(f"model {name!r}: no last nn.Linear with {classes} outputs that a cosine head could replace")
    if isinstance(last, TorchCosineHead):
        return net
    head = nn.Sequential(Unit(), TorchCosineHead(last.in_features, classes).to(last.weight.device))
    path = next(path for path, layer in net.named_modules() if layer is last)
    if not path:
        return head
    parent, _, own = path.rpartition(".")
    setattr(net.get_submodule(parent), own, head)
    return net
