"""Nets of torch that a user's function makes, as models of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_nets.torch_seed import seeded
from edge_sim.models.model_types import HeadKind


def made_with_torch(
    make: Callable[[tuple[int, ...]], Any],
    shape: tuple[int, ...],
    run_shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    preprocess: Preprocess,
    head: HeadKind,
    device: str,
    takes_device: bool,
    name: str,
) -> Any:
    """Call a function with torch's generator seeded; a net becomes a TorchModel, what else it returns stays.

    run_shape: what the run's preprocessing makes, which a net is given.  Raises UsageError for a TorchModel of a
    function that could not know the compute device.
    """
    with seeded(seed):
        made = make(shape)
        if isinstance(made, TorchModel) and device != "cpu" and not takes_device:
            raise UsageError(f"{name} does not take `device`, so its models cannot be on {device}; add it")
        if not isinstance(made, nn.Module):
            return made
        net = made if shape == run_shape else make(run_shape)
        return TorchModel(
            net, classes, input_shape=run_shape, preprocess=preprocess, name=name, device=device, head=head
        )
