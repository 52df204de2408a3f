"""The backward pass of layers: convolutions, pooling and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.emitter import Emitter, Shape, floats_of
from edge_sdk.models.onnx_training.rules import NotDifferentiable, Slopes, _first, rule

Sizes = tuple[int, ...]


class KernelWindow:
    """How a convolution or a pool moves over its input: sizes for each axis of space."""

    def __init__(self, node: Node, size: Shape, kernel: Sizes, output: Shape) -> None:
        """size, output: of the axes of space.  Raises NotDifferentiable for what is not laid out so."""
        rank = len(size)
        self.size, self.kernel, self.output = size, kernel, output
        self.strides = node.ints("strides", [1] * rank)
        self.dilations = node.ints("dilations", [1] * rank)
        pads = node.ints("pads", [0] * 2 * rank)
        self.before, self.after = pads[:rank], pads[rank:]
        auto = node.text("auto_pad")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = [max(0, need - own) for need, own in zip(self.reach, size, strict=True)]
            less, more = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
            self.before, self.after = (less, more) if auto == "SAME_UPPER" else (more, less)

    @property
    def reach(self) -> Sizes:
        """The padded input that all windows together cover."""
        return tuple(
            (n - 1) * stride + (k - 1) * dilation + 1
            for n, stride, k, dilation in zip(self.output, self.strides, self.kernel, self.dilations, strict=True)
        )

    @property
    def left_over(self) -> Sizes:
        """Input behind the last window, on each axis; below 0: padding behind it that is used."""
        padded = (b + n + a for b, n, a in zip(self.before, self.size, self.after, strict=True))
        return tuple(n - reach for n, reach in zip(padded, self.reach, strict=True))

    @property
    def disjoint(self) -> bool:
        """Whether no two windows share an input and none is padded."""
        apart = all(stride >= k for stride, k in zip(self.strides, self.kernel, strict=True))
        return apart and not any((*self.before, *self.after)) and set(self.dilations) == {1}


@rule("Conv")
def _conv(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, w = node.inputs[:2]
    slope = _first(slopes)
    window = KernelWindow(node, to.shape(x)[2:], to.shape(w)[2:], to.shape(slope)[2:])
    group = int(node.number("group", 1))
    found: list[str | None] = [
        _conv_input(to, slope, w, to.shape(x), window, group) if x in to.trained else None,
        _conv_weight(to, slope, x, to.shape(w), window, group) if w in to.trained else None,
    ]
    if len(node.inputs) > 2:
        space = range(2, len(to.shape(slope)))
        found.append(to.sum(slope, [0, *space]) if node.inputs[2] in to.trained else None)
    return found


def _conv_input(to: Emitter, slope: str, w: str, shape: Shape, window: KernelWindow, group: int) -> str:  # noqa: PLR0917
    """Emit the slope of a convolution's input (n, c, ...): a transposed convolution with the same weights."""
    return to.emit(
        "ConvTranspose",
        [slope, w],
        shape,
        strides=window.strides,
        dilations=window.dilations,
        pads=(*window.before, *window.after),
        output_padding=window.left_over,
        group=group,
    )


def _conv_weight(to: Emitter, slope: str, x: str, shape: Shape, window: KernelWindow, group: int) -> str:  # noqa: PLR0917
    """Emit the slope of a convolution's weights (o, i, ...): a convolution over batch and channels exchanged.

    Strides and dilations change places.  Where the last window ends before the input does, more comes out than the
    kernel has, and is cut off.
    """
    n, space = to.shape(x)[0], [*range(2, len(shape))]
    o, i = shape[:2]
    grouped = to.reshape(x, (n, group, i, *window.size))
    turned = to.transpose(grouped, [2, 1, 0, *(axis + 1 for axis in space)])
    inputs = to.reshape(turned, (i, group * n, *window.size))  # (i, g n, ...)
    kernel = to.transpose(slope, [1, 0, *space])  # (o, n, ...)
    more = tuple(left // dilation for left, dilation in zip(window.left_over, window.dilations, strict=True))
    found = to.emit(
        "Conv",
        [inputs, kernel],
        (i, o, *(k + m for k, m in zip(window.kernel, more, strict=True))),
        strides=window.dilations,
        dilations=window.strides,
        pads=(*window.before, *window.after),
        group=group,
    )
    for axis, k in zip(space, window.kernel, strict=True):
        found = to.sliced(found, axis, 0, k)
    return to.transpose(found, [1, 0, *space])


# -- pools ----------------------------------------------------------------------------------------------------------


@rule("MaxPool")
def _max_pool(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Give each slope back to the place of the largest number, which the pool's second output names."""
    slope, (places,) = _first(slopes), node.outputs[1:]
    return [to.scattered(slope, places, to.shape(node.inputs[0]))]


@rule("AveragePool")
def _average_pool(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    slope, shape = _first(slopes), to.shape(node.inputs[0])
    window = KernelWindow(node, shape[2:], node.ints("kernel_shape"), to.shape(slope)[2:])
    counts = _counts(window, whole=bool(node.number("count_include_pad", 0)))  # (...)
    shares = to.mul(slope, to.constant(floats_of(1 / counts)[None, None]))
    ones = to.constant(np.ones((shape[1], 1, *window.kernel), np.float32))
    if any(left < 0 for left in window.left_over):
        raise NotDifferentiable("a pool with ceil_mode")
    return [_conv_input(to, shares, ones, shape, window, shape[1])]


def _counts(window: KernelWindow, *, whole: bool) -> Floats:
    """Return how many inputs each window averages: (...)."""
    if whole:
        return np.full(window.output, prod(window.kernel), np.float32)
    found = np.ones((), np.float32)
    for axis, n in enumerate(window.size):
        begins = np.arange(window.output[axis]) * window.strides[axis] - window.before[axis]
        places = begins[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        found = np.multiply.outer(found, ((places >= 0) & (places < n)).sum(1).astype(np.float32))
    return found


@rule("GlobalAveragePool")
def _global_average(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    shape = to.shape(node.inputs[0])
    return [to.broadcast(to.scaled(_first(slopes), 1 / prod(shape[2:])), shape)]


@rule("GlobalMaxPool")
def _global_max(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, y = node.inputs[0], node.outputs[0]
    largest = to.emit("Cast", [to.emit("Equal", [x, y], to.shape(x))], to.shape(x), to=1)
    count = to.sum(largest, range(2, len(to.shape(x))), keep=True)  # equal ones share, as nothing says which it was
    return [to.mul(largest, to.binary("Div", _first(slopes), count))]


# -- normalisation --------------------------------------------------------------------------------------------------


@rule("BatchNormalization")
def _batch_norm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """As in inference: the statistics are constants, scale and bias learn."""
    x, scale, bias, mean, variance = node.inputs
    statistics = to.value(mean), to.value(variance)
    if statistics[0] is None or statistics[1] is None or node.number("training_mode", 0):
        raise NotDifferentiable("statistics of the batch")
    slope, shape = _first(slopes), to.shape(x)
    column = (-1, *[1] * (len(shape) - 2))
    wide = (shape[1], *column[1:])
    inverse = floats_of(1 / np.sqrt(statistics[1] + node.number("epsilon", 1e-5)))
    others = [0, *range(2, len(shape))]
    found: list[str | None] = [None] * 5
    if x in to.trained:
        factor = to.mul(to.reshape(scale, wide), to.constant(inverse.reshape(column)))
        found[0] = to.mul(slope, factor)
    if scale in to.trained:
        centred = to.binary("Sub", x, to.constant(floats_of(statistics[0]).reshape(column)))
        unit = to.mul(centred, to.constant(inverse.reshape(column)))
        found[1] = to.sum(to.mul(slope, unit), others)
    if bias in to.trained:
        found[2] = to.sum(slope, others)
    return found


def _normalised(to: Emitter, x: str, slope: str, axes: Sequence[int], epsilon: float) -> tuple[str, str]:
    """Emit the slope of x, and x brought to mean 0 and deviation 1 over some axes.  slope: of the latter."""
    share = 1 / prod(to.shape(x)[axis] for axis in axes)

    def mean(a: str) -> str:
        return to.scaled(to.sum(a, axes, keep=True), share)

    centred = to.binary("Sub", x, mean(x))
    deviation = to.unary("Sqrt", to.add(mean(to.mul(centred, centred)), to.constant(epsilon)))
    unit = to.binary("Div", centred, deviation)
    inner = to.binary("Sub", slope, mean(slope))
    return to.binary("Div", to.binary("Sub", inner, to.mul(unit, mean(to.mul(slope, unit)))), deviation), unit


@rule("LayerNormalization")
def _layer_norm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, scale = node.inputs[:2]
    slope, rank = _first(slopes), len(to.shape(x))
    axis = int(node.number("axis", -1)) % rank
    back, unit = _normalised(to, x, to.mul(slope, scale), range(axis, rank), node.number("epsilon", 1e-5))
    return [
        back if x in to.trained else None,
        to.reduced(to.mul(slope, unit), to.shape(scale)) if scale in to.trained else None,
        *(to.reduced(slope, to.shape(name)) if name in to.trained else None for name in node.inputs[2:]),
    ]


@rule("InstanceNormalization")
def _instance_norm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, scale, bias = node.inputs
    slope, shape = _first(slopes), to.shape(x)
    wide, space = (shape[1], *[1] * (len(shape) - 2)), [*range(2, len(shape))]
    back, unit = _normalised(to, x, to.mul(slope, to.reshape(scale, wide)), space, node.number("epsilon", 1e-5))
    return [
        back if x in to.trained else None,
        to.sum(to.mul(slope, unit), [0, *space]) if scale in to.trained else None,
        to.sum(slope, [0, *space]) if bias in to.trained else None,
    ]


@rule("GroupNormalization")
def _group_norm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, scale, bias = node.inputs
    slope, shape, groups = _first(slopes), to.shape(x), int(node.number("num_groups", 1))
    wide = (shape[1], *[1] * (len(shape) - 2))
    if to.shape(scale) != (shape[1],):
        raise NotDifferentiable("a GroupNormalization with a scale for each group (opset 18)")
    grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
    inner = to.reshape(to.mul(slope, to.reshape(scale, wide)), grouped)
    back, unit = _normalised(to, to.reshape(x, grouped), inner, range(2, len(grouped)), node.number("epsilon", 1e-5))
    others = [0, *range(2, len(shape))]
    return [
        to.reshape(back, shape) if x in to.trained else None,
        to.sum(to.mul(slope, to.reshape(unit, shape)), others) if scale in to.trained else None,
        to.sum(slope, others) if bias in to.trained else None,
    ]
