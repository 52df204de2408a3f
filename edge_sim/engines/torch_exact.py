"""The engine `exact` where there are torch models: the trained parameters of each lie in one piece of memory.

They are then read, checked, overwritten and lent to an upload at once, in place of array by array.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import torch

from edge_sdk.device.workbench import Workbench
from edge_sdk.models.torch_model import TorchModel
from edge_sim.engines.base import ExactEngine
from edge_sim.engines.stack.torch_parameter_buffer import ALIGNED


class TorchExactEngine(ExactEngine):
    """Computes in this process, one request after the other."""

    def attach(self, number: int, bench: Workbench) -> None:  # noqa: ARG002  # of Engine
        """Implement Engine."""
        if isinstance(bench.model, TorchModel):
            unite(bench.model)


def unite(model: TorchModel) -> None:
    """Move a model's trained parameters into one piece; they stay where they are if that would change what they are.

    Each begins where torch's own allocator would let it begin, so that the same instructions run; parameters whose
    sizes leave gaps then, in another order in memory, or that share memory with others, are left alone.
    """
    trained = model.trained
    if not trained or any(size % ALIGNED for size in (p.nbytes for p in trained[:-1])) or not _apart(model):
        return
    flat = torch.empty(sum(p.numel() for p in trained), dtype=torch.float32, device=trained[0].device)
    ends = accumulate(p.numel() for p in trained)
    for parameter, end in zip(trained, ends, strict=True):
        place = flat[end - parameter.numel() : end].view(parameter.shape)
        parameter.data = place.copy_(parameter.detach())
    model.flat = flat


def _apart(model: TorchModel) -> bool:
    """Whether the trained parameters are plain arrays of f4 on one device, each in memory of its own."""
    trained, device = model.trained, model.trained[0].device
    used = Counter(each.untyped_storage().data_ptr() for each in (*model.net.parameters(), *model.net.buffers()))
    return all(
        p.dtype == torch.float32
        and p.is_contiguous()
        and p.device == device
        and used[p.untyped_storage().data_ptr()] == 1
        for p in trained
    )
