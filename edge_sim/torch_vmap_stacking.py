"""Which nets stack through torch.func: tried on one sample, for no list of layers would be complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from edge_sdk.models.torch_cosine import CosineHead
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import Floats
from edge_sdk.workbench import Workbench
from edge_sim.torch_stack import PRIVATE, Stack, Stacking
from edge_sim.torch_vmap_stack import VmapStack


class VmapStacking(Stacking):
    """Stacks nets that say the same stacked as alone."""

    at_a_time = 128
    """At 32 samples each some 4,000 a step: work for the cores of a large GPU, which a few devices would leave idle;
    activations of small nets still fit into the memory of a small one."""

    def __init__(self) -> None:
        self._firsts: dict[str, TorchModel] = {}
        """By words: whose forward pass all others must have."""

    def words(self, bench: Workbench) -> str:
        """See Stacking."""
        model = bench.model
        if not isinstance(model, TorchModel) or not _only_weights(model):
            return ""
        words = f"{model.trained[0].device} {model.spec.layout.hex()} {model.net}"
        like = self._firsts.setdefault(words, model)
        return words if _agrees(model, like, bench.source(PRIVATE)[0][:1]) else ""

    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """See Stacking."""
        return VmapStack(models, train=train)


def _only_weights(model: TorchModel) -> bool:
    """Whether there is nothing but what is trained: no buffers, nothing frozen, no scale that may be held."""
    return (
        model.tap is not None
        and len(model.trained) == len([*model.net.parameters()])
        and next(model.net.buffers(), None) is None
        and not any(isinstance(layer, CosineHead) for layer in model.net.modules())
    )


def _agrees(model: TorchModel, like: TorchModel, sample: Floats) -> bool:
    """Whether a stack that begins with `like` gives what the model gives, for a sample (1, c, h, w), and goes back.

    Another sample stands beside it: a net that mixes them, as BatchNorm does, cannot be padded.  One that draws random
    numbers in training does not go through vmap.
    """
    x = torch.from_numpy(np.concatenate([sample, sample / 2])[None]).to(model.trained[0].device)  # (1, 2, c, h, w)
    try:
        stack = VmapStack([like, model], train=True)
        outcome = stack.outcome(x, 2)
        slopes = torch.ones_like(outcome.logits), torch.ones_like(outcome.features)
        stack.go_back(outcome, *slopes, lambda _at, _slope, _inputs: None)
    except (RuntimeError, ValueError, TypeError, IndexError):  # what torch raises where a net does not fit
        return False
    finally:
        like.net.eval()
    return np.allclose(outcome.logits[1, :1].cpu().numpy(), model.logits(sample), rtol=1e-4, atol=1e-5)
