"""Small residual nets with GroupNorm, for any input (c, h, w) down to one pixel.

GroupNorm replaces BatchNorm: running statistics of devices that hold few classes mislead, and must not be averaged.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from edge_sdk.models.torch_nets.torch_width import WidthSwitch, narrowed
from edge_sim.models.model_types import InputShape

WIDE_GROUPS = 8
"""Groups of every GroupNorm in a wide residual net."""
TINY = 8
"""Pictures less high or wide than this shrink to one pixel, and a group of one value would become zero."""


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
    "resnet8": _resnet8,
    "wresnet-10-1": _wresnet(10, 1),
    "wresnet-10-2": _wresnet(10, 2),
    "wresnet-16-1": _wresnet(16, 1),
}
