"""The nets of the peers' measurements: MODULE:FACTORY of a fleet, and plain modules for the bare loop."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from edge_sdk.data import Preprocess
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_model import TorchModel

Shape = tuple[int, int, int]


def mlp_net(classes: int, shape: Shape) -> nn.Sequential:
    """Return a dense net with layers of pixels, 256, 256 and classes."""
    width = prod(shape)
    layers = (nn.Flatten(), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))
    return nn.Sequential(*layers)


def cnn_net(classes: int, shape: Shape, first: int = 32, second: int = 64) -> nn.Sequential:
    """Return a CNN with two padded 3 x 3 convolutions, a pool and 64 features."""
    depth, h, w = shape
    return nn.Sequential(
        nn.Conv2d(depth, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (h // 2) * (w // 2), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def narrow_net(classes: int, shape: Shape) -> nn.Sequential:
    """A CNN with fewer channels."""
    return cnn_net(classes, shape, 24, 48)


def wide_net(classes: int, shape: Shape) -> nn.Sequential:
    """A CNN with more channels."""
    return cnn_net(classes, shape, 48, 96)


NETS: dict[str, Callable[[int, Shape], nn.Sequential]] = {
    "mlp": mlp_net,
    "cnn": cnn_net,
    "narrow": narrow_net,
    "wide": wide_net,
}
FLEETS: dict[str, tuple[str, ...]] = {"mlp": ("mlp",), "cnn": ("cnn",), "mixed": ("cnn", "narrow", "wide")}
"""Families of a fleet, device by device in turn."""
FEATURES = {"mlp": 256, "cnn": 64, "mixed": 64}


def _model(
    family: str, classes: int, shape: Shape, seed: int, preprocess: Preprocess | None, *, device: str
) -> TorchModel:
    with seeded(seed):
        net = NETS[family](classes, shape)
    return TorchModel(net, classes, input_shape=shape, preprocess=preprocess, name=family, device=device)


def mlp(
    classes: int, shape: Shape, seed: int, preprocess: Preprocess | None = None, *, device: str = "cpu"
) -> TorchModel:
    """Build the net as a factory of edge_sim.models.families."""
    return _model("mlp", classes, shape, seed, preprocess, device=device)


def cnn(
    classes: int, shape: Shape, seed: int, preprocess: Preprocess | None = None, *, device: str = "cpu"
) -> TorchModel:
    """Build the net as a factory of edge_sim.models.families."""
    return _model("cnn", classes, shape, seed, preprocess, device=device)


def narrow(
    classes: int, shape: Shape, seed: int, preprocess: Preprocess | None = None, *, device: str = "cpu"
) -> TorchModel:
    """Build the net as a factory of edge_sim.models.families."""
    return _model("narrow", classes, shape, seed, preprocess, device=device)


def wide(
    classes: int, shape: Shape, seed: int, preprocess: Preprocess | None = None, *, device: str = "cpu"
) -> TorchModel:
    """Build the net as a factory of edge_sim.models.families."""
    return _model("wide", classes, shape, seed, preprocess, device=device)
