"""The plain CNNs that papers compare on, sized to any input (c, h, w) down to one pixel.

Where a picture is too small for an unpadded 5 x 5 convolution, it is padded by two pixels on each side.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from edge_sim.models.model_types import InputShape

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


NETS: dict[str, Callable[[int, InputShape], nn.Module]] = {
    "lenet5": _lenet5,
    "fedssa-cnn-1": _fedssa(32, 2000),
    "fedssa-cnn-2": _fedssa(16, 2000),
    "fedssa-cnn-3": _fedssa(32, 1000),
    "fedssa-cnn-4": _fedssa(32, 800),
    "fedssa-cnn-5": _fedssa(32, 500),
    "fednh-cnn": _fednh,
}
