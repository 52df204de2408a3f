"""Nets of torch that a given function makes, as models of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from edge_sdk.data import Preprocess
from edge_sdk.models.torch_model import TorchModel
from edge_sim.models.model_types import HeadKind, InputShape


def made_with_torch(
    make: Callable[..., Any],
    classes: int,
    input_shape: InputShape,
    seed: int,
    *,
    preprocess: Preprocess,
    head: HeadKind,
    device: str,
    name: str,
) -> Any:
    """Call the function with torch's generator seeded; a net becomes a TorchModel, what else it returns stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make(classes, input_shape, seed)
    if not isinstance(made, nn.Module):
        return made
    return TorchModel(
        made, classes, input_shape=input_shape, preprocess=preprocess, name=name, device=device, head=head
    )
