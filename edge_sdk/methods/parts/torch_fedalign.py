"""FedAlign in torch: Lipschitz constants of the last block at two widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from edge_sdk.methods.parts.fedalign_term import LEAST_GAP, Alignment
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_anatomy import count_cost
from edge_sdk.models.torch_nets.torch_forms import Host, Loss, Pass, StatefulForm
from edge_sdk.models.torch_nets.torch_width import last_switch
from edge_sdk.objectives import LABELS, needed

ITERATIONS = 10
"""Power iterations that find the largest singular value, as in the authors' code."""
_LEAST = 1e-12


def flow(before: Tensor, after: Tensor) -> Tensor:
    """Return F_in F_out^T / (h w) of each sample: (b, c, h, w), (b, c', h', w') -> (b, c, c').

    The input's maps are pooled to the size of the output's.
    """
    if before.shape[2:] != after.shape[2:]:
        before = nnf.adaptive_avg_pool2d(before, (after.shape[2], after.shape[3]))
    f, g = before.flatten(2), after.flatten(2)  # (b, c, hw), (b, c', hw)
    return f @ g.transpose(1, 2) / f.shape[2]


def largest_singular_value(x: Tensor) -> Tensor:
    """Return the largest singular value of each matrix by power iterations on X X^T from ones: (b, c, c') -> (b,)."""
    square = x @ x.transpose(1, 2)  # (b, c, c)
    v = torch.ones_like(square[:, :, :1])
    norm = torch.ones_like(v[:, :1])
    for _ in range(ITERATIONS):
        v = square @ (v / norm)
        norm = v.norm(dim=1, keepdim=True).clamp_min(_LEAST)  # (b, 1, 1)
    return norm.flatten().sqrt()


class Alignments(StatefulForm):
    """The form of Alignment for one model; it keeps nothing between fits."""

    prefix = "alignment."

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._block = needed(last_switch(host.net), "the net has no block with a width switch")
        self._handle: RemovableHandle | None = None
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._block_flops = 0

    @staticmethod
    def can(host: Host) -> bool:
        """Return whether the net has a block with a width switch."""
        return last_switch(host.net) is not None

    def loss(self, term: Alignment, batches: Batches) -> Loss:
        """Return the term; the block's input and output are those of the pass that is trained on."""
        self._stop()
        self._handle = self._block.register_forward_hook(self._note)
        steps = len(batches.indices)

        def align(done: Pass, step: int) -> Tensor:
            before, after = self._seen.pop()
            if step == steps - 1:
                self._stop()
            before = before.detach()
            with torch.no_grad():
                full = largest_singular_value(flow(before, after))
            sub = largest_singular_value(flow(before, self._block.at_width(before, term.width)))
            gap = nnf.mse_loss(sub, full)
            ce = nnf.cross_entropy(done.logits, needed(done.labels, LABELS))
            return term.weight * (ce / gap.clamp_min(LEAST_GAP)).detach() * gap

        return align

    def _note(self, _block: Any, args: tuple[Tensor, ...], out: Tensor) -> None:
        self._seen.append((args[0], out))
        if not self._block_flops:
            with torch.no_grad():
                zero = torch.zeros_like(args[0][:1])
                self._block_flops = count_cost(_Alone(self._block), zero)[1].flops

    def _stop(self) -> None:
        """Ignore further passes."""
        self._seen.clear()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def extra_flops(self, term: Alignment, batch: int) -> int:
        """Count a training pass of the block at its share; inner channels alone are cut, so it costs that share."""
        return batch * int(3 * term.width * self._block_flops)

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing."""
        return {}

    def prepare(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Do nothing."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Do nothing."""


class _Alone(torch.nn.Module):
    """A block, called without its own hooks."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block.forward(x)
        return out
