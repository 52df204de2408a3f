"""The backward pass of layers: pools and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.conv_rules import KernelWindow, conv_input
from edge_sdk.models.onnx_training.emitter import Emitter, floats_of
from edge_sdk.models.onnx_training.rules import NotDifferentiable, Slopes, first, reduced_axes, rule

# -- pools ----------------------------------------------------------------------------------------------------------


@rule("MaxPool")
def _max_pool(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Give each slope back to the first largest number of its window.

    A second output of the pool would name the places, but takes the runtime ten times as long as the pool.  So adjacent
    windows are compared with their largest number instead.
    """
    slope, (x, y) = first(slopes), (node.inputs[0], node.outputs[0])
    shape = to.shape(x)
    if len(node.outputs) > 1:
        return [to.scattered(slope, node.outputs[1], shape)]
    kernel = node.ints("kernel_shape")
    covered = tuple(k * n for k, n in zip(kernel, to.shape(y)[2:], strict=True))
    for axis, size in enumerate(covered, 2):
        x = to.sliced(x, axis, 0, size)
    largest = to.same(x, to.repeated(y, kernel))
    order = np.zeros(kernel, np.float32)
    order.reshape(-1)[:] = np.arange(order.size, 0, -1)  # of equal numbers, the first has the largest rank
    ranks = to.mul(largest, to.constant(np.tile(order, to.shape(y)[2:])[None, None]))
    top = to.emit("MaxPool", [ranks], to.shape(y), kernel_shape=kernel, strides=kernel)
    chosen = to.same(ranks, to.repeated(top, kernel))
    found = to.mul(to.repeated(slope, kernel), chosen)
    after = [n - size for n, size in zip(shape[2:], covered, strict=True)]
    return [to.padded(found, [0] * len(shape), [0, 0, *after])]


@rule("AveragePool")
def _average_pool(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    slope, shape = first(slopes), to.shape(node.inputs[0])
    window = KernelWindow(node, shape[2:], node.ints("kernel_shape"), to.shape(slope)[2:])
    counts = _counts(window, whole=bool(node.number("count_include_pad", 0)))  # (...)
    shares = to.mul(slope, to.constant(floats_of(1 / counts)[None, None]))
    ones = to.constant(np.ones((shape[1], 1, *window.kernel), np.float32))
    if any(left < 0 for left in window.left_over):
        raise NotDifferentiable("a pool with ceil_mode")
    return [conv_input(to, shares, ones, shape, window, shape[1])]


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
    return [to.scaled(first(slopes), 1 / prod(shape[2:]))]


@rule("GlobalMaxPool")
def _global_max(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x = node.inputs[0]
    return [_to_extremes(to, x, node.outputs[0], first(slopes), range(2, len(to.shape(x))))]


@rule("ReduceMax", "ReduceMin")
def _extreme(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """As torch's amax, such as over all words of a text."""
    x, axes = node.inputs[0], reduced_axes(to, node)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(to.shape(x)))
    y, slope = to.reshape(node.outputs[0], kept), to.reshape(first(slopes), kept)
    return [_to_extremes(to, x, y, slope, axes), *[None] * (len(node.inputs) - 1)]


def _to_extremes(to: Emitter, x: str, y: str, slope: str, axes: Sequence[int]) -> str:
    """Emit the slope of x, whose largest or smallest number over some axes is y."""
    chosen = to.same(x, y)
    count = to.sum(chosen, axes, keep=True)  # equal ones share, as nothing says which it was
    return to.mul(chosen, to.binary("Div", slope, count))


@rule("Resize")
def _repeated(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Add up the slopes of the copies of each number: where each is repeated a whole number of times."""
    own, grown = to.shape(node.inputs[0]), to.shape(node.outputs[0])
    how = node.text("mode") or "nearest", node.text("coordinate_transformation_mode"), node.text("nearest_mode")
    if how != ("nearest", "asymmetric", "floor") or any(m % n for n, m in zip(own, grown, strict=True)):
        raise NotDifferentiable("Resize by other means than repeating each number")
    parts = [part for n, m in zip(own, grown, strict=True) for part in (n, m // n)]
    slope = to.sum(to.reshape(first(slopes), tuple(parts)), range(1, len(parts), 2))
    return [to.reshape(slope, own), *[None] * (len(node.inputs) - 1)]


# -- normalisation --------------------------------------------------------------------------------------------------


@rule("BatchNormalization")
def _batch_norm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """As in inference: the statistics are constants, scale and bias learn."""
    x, scale, bias, mean, variance = node.inputs
    statistics = to.value(mean), to.value(variance)
    if statistics[0] is None or statistics[1] is None or node.number("training_mode", 0):
        raise NotDifferentiable("statistics of the batch")
    slope, shape = first(slopes), to.shape(x)
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
    slope, rank = first(slopes), len(to.shape(x))
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
    slope, shape = first(slopes), to.shape(x)
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
    slope, shape, groups = first(slopes), to.shape(x), int(node.number("num_groups", 1))
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
