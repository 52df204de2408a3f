"""Nets of a run's devices for twins in plain autograd: body and head apart, in f8, and the samples as they take them."""

from __future__ import annotations

from typing import Any

import fleets
import numpy as np
import torch

from edge_sim.fleet.fleet import Device


class Naive:
    """One device: its net, cut in front of its last layer, and its private samples."""

    def __init__(self, run: fleets.Run, device: Device, model: Any = None) -> None:
        """model: another of the device's models than its own."""
        made = device.kit.model(None) if model is None else model
        self.run, self.device, self.net = run, device, made.net.double()
        layers = [layer for layer in self.net.modules() if not list(layer.children())]
        self.body, self.head = torch.nn.Sequential(*layers[:-1]), layers[-1]
        self.x = torch.tensor(made.spec.preprocess(device.data.train.x)).double()
        self.y = torch.tensor(device.data.train.y)

    def batches(self, round_: int) -> Any:
        """The mini-batches of a round, by index."""
        return fleets.private_batches(self.run, self.device, round_)

    def means(self) -> dict[int, Any]:
        """The mean feature of each class held."""
        return {c: self.body(self.x[self.y == c]).mean(dim=0).detach() for c in self.y.unique().tolist()}

    @property
    def weights(self) -> np.ndarray:
        """All weights: (p,)."""
        return flat(self.net)


def flat(net: Any) -> np.ndarray:
    """All weights of a net: (p,)."""
    return np.concatenate([each.detach().numpy().ravel() for each in net.parameters()])


def step(loss: Any, parameters: Any, rate: float) -> None:
    """One step of SGD."""
    parameters = list(parameters)
    slopes = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for each, slope in zip(parameters, slopes, strict=True):
            each.sub_(slope, alpha=rate)


def linear(rows: np.ndarray) -> Any:
    """A linear layer of these rows (k, d + 1), bias last, in f8."""
    layer = torch.nn.Linear(rows.shape[1] - 1, len(rows)).double()
    at = torch.tensor(rows).double()
    layer.weight.data, layer.bias.data = at[:, :-1].clone(), at[:, -1].clone()
    return layer
