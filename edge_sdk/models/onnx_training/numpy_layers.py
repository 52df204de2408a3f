"""Layers in numpy: convolutions as a product of matrices for each number of the kernel, pools and normalisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from edge_sdk.arrays import AnyArray
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.numpy_operators import OPERATORS, given, numpy_lacks, operator, unary


class _Moves:
    """Where each number of a kernel lies over the padded input, one slice for all windows."""

    def __init__(self, node: Node, kernel: Sequence[int]) -> None:
        rank = len(kernel)
        self.kernel = tuple(kernel)
        self.strides = node.ints("strides", [1] * rank)
        self.dilations = node.ints("dilations", [1] * rank)
        self.pads = node.ints("pads", [0] * 2 * rank)
        self.auto = node.text("auto_pad")

    def around(self, size: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding before and behind each axis of space."""
        rank = len(size)
        if self.auto not in ("SAME_UPPER", "SAME_LOWER"):
            return [(self.pads[i], self.pads[i + rank]) for i in range(rank)]
        found = []
        for n, k, stride, dilation in zip(size, self.kernel, self.strides, self.dilations, strict=True):
            total = max(0, (-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n)
            less = total // 2
            found.append((less, total - less) if self.auto == "SAME_UPPER" else (total - less, less))
        return found

    def windows(self, size: Sequence[int], *, up: bool = False) -> tuple[int, ...]:
        """Return the number of windows on each axis of an input with padding; up: one that ends outside counts."""
        return tuple(
            (-(-(n - (k - 1) * d - 1) // s) if up else (n - (k - 1) * d - 1) // s) + 1
            for n, k, s, d in zip(size, self.kernel, self.strides, self.dilations, strict=True)
        )

    def behind(self, size: Sequence[int], count: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding of all four or more axes with which the last window ends inside; size: with padding."""
        of_space = zip(size, count, self.kernel, self.strides, self.dilations, strict=True)
        return [(0, 0), (0, 0), *((0, max(0, (c - 1) * s + (k - 1) * d + 1 - n)) for n, c, k, s, d in of_space)]

    def places(self, count: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Yield the place of each number in the kernel, and the padded input that it meets in all windows."""
        for at in product(*map(range, self.kernel)):
            begins = [a * d for a, d in zip(at, self.dilations, strict=True)]
            yield (
                at,
                tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begins, count, self.strides, strict=True)),
            )


def _of_all(place: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return a place in space, for all samples and channels."""
    return slice(None), slice(None), *place


def _padded(x: AnyArray, around: Sequence[tuple[int, int]], value: float = 0.0) -> AnyArray:
    return np.pad(x, [(0, 0), (0, 0), *around], constant_values=value) if any(map(any, around)) else x


@operator("Conv")
def _conv(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    """Add up a product of matrices for each number of the kernel."""
    x, w = given(inputs[0]), given(inputs[1])
    group, moves = int(node.number("group", 1)), _Moves(node, w.shape[2:])
    padded = _padded(x, moves.around(x.shape[2:]))
    count = moves.windows(padded.shape[2:])
    n, o = len(x), len(w)
    grouped = padded.reshape(n, group, -1, *padded.shape[2:])
    weights = w.reshape(group, o // group, *w.shape[1:])  # (g, o, i, ...)
    out = np.zeros((n, group, o // group, prod(count)), x.dtype)
    for at, place in moves.places(count):
        part = grouped[(slice(None),) * 3 + place].reshape(n, group, -1, prod(count))  # (n, g, i, windows)
        out += weights[(slice(None),) * 3 + at] @ part
    out = out.reshape(n, o, *count)
    bias = inputs[2] if len(inputs) > 2 else None
    return out if bias is None else out + bias.reshape(-1, *[1] * len(count))


@operator("ConvTranspose")
def _conv_transpose(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, w = given(inputs[0]), given(inputs[1])
    group, moves, count = int(node.number("group", 1)), _Moves(node, w.shape[2:]), x.shape[2:]
    more = node.ints("output_padding", [0] * len(count))
    if moves.auto not in ("", "NOTSET", "VALID") or node.ints("output_shape"):
        raise numpy_lacks("ConvTranspose to a given size")
    n, o = len(x), w.shape[1] * group
    size = tuple(
        (c - 1) * s + (k - 1) * d + 1 + max(0, extra)
        for c, s, k, d, extra in zip(count, moves.strides, moves.kernel, moves.dilations, more, strict=True)
    )
    out = np.zeros((n, group, o // group, *size), x.dtype)
    columns = x.reshape(n, group, -1, prod(count))
    weights = w.reshape(group, -1, *w.shape[1:])  # (g, i, o, ...)
    for at, place in moves.places(count):
        part = weights[(slice(None),) * 3 + at].swapaxes(1, 2) @ columns  # (n, g, o, windows)
        out[(slice(None),) * 3 + place] += part.reshape(n, group, -1, *count)
    around = moves.around(size)
    inner = tuple(slice(b, total - e) for (b, e), total in zip(around, size, strict=True))
    found = out.reshape(n, o, *size)[_of_all(inner)]
    bias = inputs[2] if len(inputs) > 2 else None
    return found if bias is None else found + bias.reshape(-1, *[1] * len(count))


@operator("MaxPool")
def _max_pool(node: Node, inputs: Sequence[AnyArray | None]) -> tuple[AnyArray, ...]:
    """Return the largest number of each window, and its place in the flat input."""
    x = given(inputs[0])
    if len(node.outputs) > 1 and node.number("storage_order", 0):
        raise numpy_lacks("the indices of a MaxPool in column order")
    moves = _Moves(node, node.ints("kernel_shape"))
    around = moves.around(x.shape[2:])
    padded = _padded(x, around, -np.inf)
    count = moves.windows(padded.shape[2:], up=bool(node.number("ceil_mode", 0)))
    places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    where = np.pad(places, [(0, 0), (0, 0), *around]) if any(map(any, around)) else places
    needed = moves.behind(padded.shape[2:], count)
    padded, where = np.pad(padded, needed, constant_values=-np.inf), np.pad(where, needed)
    best = np.full((*x.shape[:2], *count), -np.inf, x.dtype)
    found = np.zeros(best.shape, np.int64)
    for _, place in moves.places(count):
        part = padded[_of_all(place)]
        larger = part > best
        best = np.where(larger, part, best)
        found = np.where(larger, where[_of_all(place)], found)
    return best, found


@operator("Resize")
def _repeat(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    """Repeat each number a whole number of times, as the backward pass of a pool asks for."""
    x, scales = given(inputs[0]), (*inputs, None, None)[2]
    exact = scales is not None and scales.size == x.ndim and bool((scales == scales.astype(np.int64)).all())
    how = node.text("mode"), node.text("coordinate_transformation_mode"), node.text("nearest_mode")
    if scales is None or not exact or how != ("nearest", "asymmetric", "floor"):
        raise numpy_lacks("Resize other than by repeating numbers")
    for axis, times in enumerate(scales.astype(np.int64).tolist()):
        x = np.repeat(x, times, axis) if times != 1 else x
    return x


@operator("AveragePool")
def _average_pool(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    moves = _Moves(node, node.ints("kernel_shape"))
    around = moves.around(x.shape[2:])
    padded = _padded(x, around)
    ones = _padded(np.ones((1, 1, *x.shape[2:]), x.dtype), around, float(node.number("count_include_pad", 0)))
    count = moves.windows(padded.shape[2:], up=bool(node.number("ceil_mode", 0)))
    needed = moves.behind(padded.shape[2:], count)  # which no average counts
    padded, ones = np.pad(padded, needed), np.pad(ones, needed)
    places = [_of_all(place) for _, place in moves.places(count)]
    total: AnyArray = np.sum([padded[place] for place in places], axis=0)
    number: AnyArray = np.sum([ones[place] for place in places], axis=0)
    found: AnyArray = (total / number).astype(x.dtype)
    return found


def _space(x: AnyArray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


OPERATORS |= {
    "GlobalAveragePool": unary(lambda x: x.mean(_space(x), keepdims=True, dtype=x.dtype)),
    "GlobalMaxPool": unary(lambda x: x.max(_space(x), keepdims=True)),
}


@operator("BatchNormalization")
def _batch_norm(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, scale, bias, mean, variance = map(given, inputs)
    if node.number("training_mode", 0):
        raise numpy_lacks("BatchNormalization with the statistics of a batch")
    wide = (-1, *[1] * (x.ndim - 2))
    factor = scale / np.sqrt(variance + np.float32(node.number("epsilon", 1e-5)))
    found: AnyArray = x * factor.reshape(wide) + (bias - mean * factor).reshape(wide)
    return found


def _unit(x: AnyArray, axes: tuple[int, ...], epsilon: float) -> AnyArray:
    centred = x - x.mean(axes, keepdims=True)
    found: AnyArray = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + np.float32(epsilon))
    return found


@operator("LayerNormalization")
def _layer_norm(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, scale = given(inputs[0]), given(inputs[1])
    first = int(node.number("axis", -1)) % x.ndim
    found = _unit(x, tuple(range(first, x.ndim)), node.number("epsilon", 1e-5)) * scale
    return found if len(inputs) < 3 or inputs[2] is None else found + inputs[2]


@operator("InstanceNormalization")
def _instance_norm(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, scale, bias = map(given, inputs)
    wide = (-1, *[1] * (x.ndim - 2))
    return _unit(x, _space(x), node.number("epsilon", 1e-5)) * scale.reshape(wide) + bias.reshape(wide)


@operator("GroupNormalization")
def _group_norm(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, scale, bias = map(given, inputs)
    if scale.shape != x.shape[1:2]:
        raise numpy_lacks("GroupNormalization with a scale for each group (opset 18)")
    grouped = x.reshape(len(x), int(node.number("num_groups", 1)), -1)
    wide = (-1, *[1] * (x.ndim - 2))
    return _unit(grouped, (2,), node.number("epsilon", 1e-5)).reshape(x.shape) * scale.reshape(wide) + bias.reshape(
        wide
    )


@operator("Attention")
def _attention(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    """Weigh the values by a softmax of the products of queries and keys (opset 23)."""
    q, k, v = (given(each) for each in inputs[:3])
    mask, flat = (*inputs, None)[3], q.ndim == 3
    if any(each is not None for each in inputs[4:]) or len(node.outputs) > 1 or node.number("softcap", 0):
        raise numpy_lacks("Attention with keys of earlier calls, further outputs or softcap")
    heads = [int(node.number(f"{kind}_num_heads", 0)) for kind in ("q", "kv", "kv")]
    if flat:  # (b, s, h d) -> (b, h, s, d)
        q, k, v = (x.reshape(*x.shape[:2], h, -1).swapaxes(1, 2) for x, h in zip((q, k, v), heads, strict=True))
    shared = q.shape[1] // k.shape[1]  # heads that share keys
    k, v = (np.repeat(each, shared, axis=1) if shared > 1 else each for each in (k, v))
    scale = node.number("scale", q.shape[-1] ** -0.5)
    scores = (q * q.dtype.type(scale)) @ k.swapaxes(-1, -2)
    lowest = np.finfo(scores.dtype).min
    if mask is not None:
        scores = np.where(mask, scores, lowest) if mask.dtype == np.bool_ else scores + mask
    if node.number("is_causal", 0):
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, lowest)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: AnyArray = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return out.swapaxes(1, 2).reshape(len(out), out.shape[2], -1) if flat else out
