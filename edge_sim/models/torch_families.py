"""Small nets for simulated devices, sized to any input (c, h, w) down to one pixel."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import Tensor, nn

from edge_sdk.data import Preprocess
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_nets.torch_seed import seeded
from edge_sdk.models.torch_nets.torch_width import WidthSwitch, narrowed
from edge_sim.models import torch_paper_cnns, torch_resnets
from edge_sim.models.model_types import HeadKind, InputShape


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
        net = NETS[name](classes, input_shape)
        if feature_dim:
            net = _at_width(net, feature_dim)
        return TorchModel(
            net, classes, input_shape=input_shape, preprocess=preprocess, name=name, head=head, device=device
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
        from edge_sim.models.torch_vision_nets import NETS as TORCHVISION  # see above

        return TORCHVISION[name](classes, input_shape)

    return build


NETS: dict[str, Callable[[int, InputShape], nn.Module]] = {
    "mlp": _mlp(64),
    "mlp-wide": _mlp(128, 128),
    "cnn": _cnn(16, 32),
    "cnn-wide": _cnn(32, 64, hidden=128),
    "resnet": _resnet,
    **torch_paper_cnns.NETS,
    **torch_resnets.NETS,
    **{name: _from_torchvision(name) for name in ("mobilenet-v3-small", "shufflenet-v2", "resnet18", "resnet34")},
}
