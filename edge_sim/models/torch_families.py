"""Small nets for simulated devices, sized to any input (c, h, w) down to one pixel.

Residual nets have GroupNorm in place of BatchNorm: running statistics of devices that hold few classes mislead, and
must not be averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor, nn

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_nets.torch_width import WidthSwitch, narrowed
from edge_sim.models import torch_sequences
from edge_sim.models.model_types import HeadKind, InputShape
from edge_sim.models.torch_sequences import takes_sequences


def torch_model(
    name: str,
    classes: int,
    input_shape: InputShape,
    preprocess: Preprocess,
    seed: int,
    *,
    feature_dim: int = 0,
    head: HeadKind = "linear",
    device: str = "cpu",
) -> TorchModel:
    """Build a net of a family with weights drawn from `seed`; torch's own generators are not changed.

    feature_dim: width of the features, where it is not the family's own (0).
    """
    with seeded(seed):
        build = takes_sequences(name, preprocess) if name in torch_sequences.NETS else NETS[name]
        net = build(classes, input_shape)
        if feature_dim:
            net = _at_width(net, feature_dim)
        return TorchModel(
            net, classes, input_shape=input_shape, preprocess=preprocess, name=name, head=head, device=device
        )


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


def _at_width(net: nn.Module, width: int) -> nn.Module:
    """Return the net with `width` features; where it has another number, a hidden layer is added before the last."""
    name, last = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Linear)][-1]
    if last.in_features != width:
        parent, _, own = name.rpartition(".")
        deeper = nn.Sequential(nn.Linear(last.in_features, width), nn.ReLU(), nn.Linear(width, last.out_features))
        setattr(net.get_submodule(parent), own, deeper)
    return net


def _mlp(*widths: int) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder of a net with hidden layers of these widths."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for hidden in widths:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, classes))

    return build


def _cnn(*channels: int, hidden: int = 0) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder of 3 x 3 convolutions, each followed by a pool that halves the image, and a hidden layer."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        depth, h, w = input_shape
        layers: list[nn.Module] = []
        for wide in channels:
            layers += [nn.Conv2d(depth, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
            depth, h, w = wide, -(-h // 2), -(-w // 2)
        width = depth * h * w
        layers += [nn.Flatten()]
        if hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(hidden or width, classes))

    return build


class _Residual(WidthSwitch):
    """A block x + f(x) with two 3 x 3 convolutions and GroupNorm, which does not depend on other samples of a batch."""

    def __init__(self, depth: int, wide: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(depth, wide, 3, stride, padding=1, bias=False),
            nn.GroupNorm(4, wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
            nn.GroupNorm(4, wide),
        )
        self.short = nn.Identity() if (depth, stride) == (wide, 1) else nn.Conv2d(depth, wide, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.at_width(x, 1.0)

    def at_width(self, x: Tensor, share: float) -> Tensor:
        return nn.functional.relu(narrowed(self.body, x, share) + self.short(x))


def _resnet(classes: int, input_shape: InputShape) -> nn.Module:
    depth, h, w = input_shape
    stride = 2 if min(h, w) >= 16 else 1  # at full resolution a step on 28 x 28 pixels would cost four times as much
    return nn.Sequential(
        nn.Conv2d(depth, 16, 3, stride, padding=1),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def _from_torchvision(name: str) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder that loads torchvision only when a net is built."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        from edge_sim.models.torch_vision import NETS as TORCHVISION  # see above

        return TORCHVISION[name](classes, input_shape)

    return build


# -- The plain CNNs that papers compare on ----------------------------------------------------------------------------

UNPADDED_FROM = 10
"""Height and width from which a 5 x 5 convolution goes without padding: it leaves at least 6 x 6."""
LENET_SIDE = 32
"""Height and width for which LeNet-5 was made; MNIST's 28 x 28 pixels are padded to it."""


class _Stack:
    """A net under construction: its layers so far, and the shape (c, h, w) of their output."""

    def __init__(self, shape: InputShape) -> None:
        self.layers: list[nn.Module] = []
        self._shape = shape

    def conv(self, channels: int, *, padded: bool = False) -> None:
        """Add a 5 x 5 convolution, ReLU, and a 2 x 2 max-pool that halves the picture, rounded up."""
        depth, h, w = self._shape
        padding = 2 if padded or min(h, w) < UNPADDED_FROM else 0
        self.layers += [nn.Conv2d(depth, channels, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        lost = 4 - 2 * padding
        self._shape = (channels, -(-(h - lost) // 2), -(-(w - lost) // 2))

    def linear(self, *widths: int, classes: int) -> nn.Module:
        """Return the net with hidden layers of these widths and a linear head."""
        channels, h, w = self._shape
        width = channels * h * w
        self.layers.append(nn.Flatten())
        for hidden in widths:
            self.layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*self.layers, nn.Linear(width, classes))


def _lenet5(classes: int, input_shape: InputShape) -> nn.Module:
    """Build LeNet-5 (LeCun et al., 1998) in today's form: ReLU, max-pooling, a linear head."""
    net = _Stack(input_shape)
    net.conv(6, padded=min(input_shape[1:]) < LENET_SIDE)
    net.conv(16)
    return net.linear(120, 84, classes=classes)


def _fedssa(second: int, hidden: int) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder of a CNN of FedSSA's table 4.  second: filters; hidden: width of the first hidden layer."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        net = _Stack(input_shape)
        net.conv(16)
        net.conv(second)
        return net.linear(hidden, 500, classes=classes)

    return build


def _fednh(classes: int, input_shape: InputShape) -> nn.Module:
    """Build the CNN of FedNH's listing 1; its head has a bias here, so that methods can exchange head rows."""
    net = _Stack(input_shape)
    net.conv(64)
    net.conv(64)
    return net.linear(384, 192, classes=classes)


class _PostActivation(WidthSwitch):
    """A block relu(short(x) + f(x)) with two 3 x 3 convolutions in f (He et al., 2016)."""

    def __init__(self, depth: int, wide: int, stride: int, per_group: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(depth, wide, 3, stride, padding=1, bias=False),
            nn.GroupNorm(wide // per_group, wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
            nn.GroupNorm(wide // per_group, wide),
        )
        same = (depth, stride) == (wide, 1)
        self.short: nn.Module = nn.Identity() if same else nn.Conv2d(depth, wide, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.at_width(x, 1.0)

    def at_width(self, x: Tensor, share: float) -> Tensor:
        return nn.functional.relu(narrowed(self.body, x, share) + self.short(x))


class _PreActivation(WidthSwitch):
    """A block short(x) + f(x) that normalises and activates before each convolution (Zagoruyko, Komodakis, 2016)."""

    def __init__(self, depth: int, wide: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.GroupNorm(WIDE_GROUPS, depth), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(depth, wide, 3, stride, padding=1, bias=False),
            nn.GroupNorm(WIDE_GROUPS, wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
        )
        self.short = None if (depth, stride) == (wide, 1) else nn.Conv2d(depth, wide, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.at_width(x, 1.0)

    def at_width(self, x: Tensor, share: float) -> Tensor:
        active: Tensor = self.enter(x)
        return narrowed(self.body, active, share) + (x if self.short is None else self.short(active))


def _resnet8(classes: int, input_shape: InputShape) -> nn.Module:
    """Build ResNet-8: a stem of 64 channels, one block each of 64, 128 and 256 channels, and a linear head.

    Every channel is a group of its own, as in FedKF, except for tiny pictures.
    """
    per_group = 1 if min(input_shape[1:]) >= TINY else 2
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False),
        nn.GroupNorm(64 // per_group, 64),
        nn.ReLU(),
        _PostActivation(64, 64, 1, per_group),
        _PostActivation(64, 128, 2, per_group),
        _PostActivation(128, 256, 2, per_group),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def _wresnet(depth: int, widen: int) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder of WResNet: 3 groups of (depth - 4) / 6 blocks with 16, 32, 64 times `widen` channels."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)]
        channels = 16
        for wide, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for block in range((depth - 4) // 6):
                layers.append(_PreActivation(channels, wide, stride if block == 0 else 1))
                channels = wide
        layers += [nn.GroupNorm(WIDE_GROUPS, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(channels, classes))

    return build


NETS: dict[str, Callable[[int, InputShape], nn.Module]] = {
    "mlp": _mlp(64),
    "mlp-wide": _mlp(128, 128),
    "cnn": _cnn(16, 32),
    "cnn-wide": _cnn(32, 64, hidden=128),
    "resnet": _resnet,
    "lenet5": _lenet5,
    "fedssa-cnn-1": _fedssa(32, 2000),
    "fedssa-cnn-2": _fedssa(16, 2000),
    "fedssa-cnn-3": _fedssa(32, 1000),
    "fedssa-cnn-4": _fedssa(32, 800),
    "fedssa-cnn-5": _fedssa(32, 500),
    "fednh-cnn": _fednh,
    "resnet8": _resnet8,
    "wresnet-10-1": _wresnet(10, 1),
    "wresnet-10-2": _wresnet(10, 2),
    "wresnet-16-1": _wresnet(16, 1),
    **{name: _from_torchvision(name) for name in ("mobilenet-v3-small", "shufflenet-v2", "resnet18", "resnet34")},
}


WIDE_GROUPS = 8
"""Groups of every GroupNorm in a wide residual net."""
TINY = 8
"""Pictures less high or wide than this shrink to one pixel, and a group of one value would become zero."""
