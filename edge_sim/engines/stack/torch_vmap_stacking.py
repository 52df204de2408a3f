"""The choice of nets that torch.func can stack: each is tried on one sample, as no list of layers is complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from edge_sdk.arrays import Floats
from edge_sdk.device.workbench import Workbench
from edge_sdk.models.torch_cosine import TorchCosineHead
from edge_sdk.models.torch_model import TorchModel
from edge_sim.engines.stack.torch_stack import PRIVATE, Stack, Stacking
from edge_sim.engines.stack.torch_vmap_stack import VmapStack


class VmapStacking(Stacking):
    """Stacks nets whose outputs in a stack are the same as alone."""

    max_devices = 128
    """At 32 samples each some 4,000 a step: work for the cores of a large GPU, which a few devices would leave idle;
    activations of small nets still fit into the memory of a small one."""

    def __init__(self) -> None:
        self._firsts: dict[str, TorchModel] = {}
        """The first model of each key: its forward pass is run for all others."""

    def key(self, bench: Workbench) -> str:
        """Implement Stacking."""
        model = bench.model
        if not isinstance(model, TorchModel) or not _only_weights(model):
            return ""
        key = f"{model.trained[0].device} {model.spec.layout.hex()} {model.net}"
        like = self._firsts.setdefault(key, model)
        return key if _agrees(model, like, bench.source(PRIVATE)[0][:1]) else ""

    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """Implement Stacking."""
        return VmapStack(models, train=train)


def _only_weights(model: TorchModel) -> bool:
    """Whether all of a model is trained: it has no buffers, no frozen weights, and no scale of a cosine head."""
    return (
        model.tap is not None
        and len(model.trained) == len([*model.net.parameters()])
        and next(model.net.buffers(), None) is None
        and not any(isinstance(layer, TorchCosineHead) for layer in model.net.modules())
    )


def _agrees(model: TorchModel, like: TorchModel, sample: Floats) -> bool:
    """Whether a stack of `like` and the model gives the model's logits for a sample (1, c, h, w), and has gradients.

    Another sample stands in the same mini-batch: a net that mixes samples, as BatchNorm does, cannot be padded.  A net
    that draws random numbers in training does not pass through vmap.
    """
    x = torch.from_numpy(np.concatenate([sample, sample / 2])[None]).to(model.trained[0].device)  # (1, 2, c, h, w)
    try:
        stack = VmapStack([like, model], train=True)
        output = stack.forward(x, 2)
        gradients = torch.ones_like(output.logits), torch.ones_like(output.features)
        stack.backward(output, *gradients, lambda _at, _gradient, _inputs: None)
    except (RuntimeError, ValueError, TypeError, IndexError):  # what torch raises where a net does not fit
        return False
    finally:
        like.net.eval()
    return np.allclose(output.logits[1, :1].cpu().numpy(), model.logits(sample), rtol=1e-4, atol=1e-5)
