"""A graph computed by numpy alone, for boards without ONNX Runtime; it is also the oracle of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import erf, pi, prod, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_file.tensors import KINDS
from edge_sdk.models.onnx_training.gradient import SLOPE, TrainingGraph

Array: TypeAlias = "NDArray[Any]"
Operator: TypeAlias = "Callable[[Node, Sequence[Array | None]], Array | tuple[Array, ...]]"
OPERATORS: dict[str, Operator] = {}


class NumpyGraph:
    """The operators of a graph, ready to be computed."""

    def __init__(self, graph: Graph) -> None:
        """Raises ModelError for an operator that numpy does not compute here."""
        missing = sorted({each.operator for each in graph.nodes if each.operator not in {*OPERATORS, "Constant"}})
        if missing:
            raise ModelError(f"{graph.name}: numpy does not compute {', '.join(missing)} here: install onnxruntime")
        self._nodes = tuple(each for each in graph.nodes if each.operator != "Constant")
        held = {name: tensor.values() for name, tensor in graph.constants.items()}
        held |= {
            n.outputs[0]: n.tensor.values() for n in graph.nodes if n.operator == "Constant" and n.tensor is not None
        }
        self._constants = {name: values for name, values in held.items() if values is not None}
        self._outputs = tuple(graph.outputs)
        self._last: list[list[str]] = _last_uses(self._nodes, set(self._outputs))

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for some inputs, in the order of the graph."""
        known: dict[str, Array] = {**self._constants, **inputs}
        for each, over in zip(self._nodes, self._last, strict=True):
            found = OPERATORS[each.operator](each, [known[name] if name else None for name in each.inputs])
            known.update(zip(each.outputs, found if isinstance(found, tuple) else (found,), strict=False))
            for name in over:  # a large net's activations would all be held at once
                known.pop(name, None)
        return [known[name] for name in self._outputs]


def _last_uses(nodes: Sequence[Node], wanted: set[str]) -> list[list[str]]:
    """Return, for each operator, the tensors that nothing reads after it."""
    seen, found = set(wanted), []
    for each in reversed(nodes):
        over = [name for name in {*each.inputs, *each.outputs} if name and name not in seen]
        seen.update(each.inputs)
        found.append(over)
    return found[::-1]


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Register a function under the names of its operators."""

    def register(found: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, found))
        return found

    return register


def _given(values: Array | None) -> Array:
    if values is None:
        raise ModelError("an operator lacks an input")
    return values


def _unary(function: Callable[[Array], Array]) -> Operator:
    return lambda _node, inputs: function(_given(inputs[0]))


def _binary(function: Callable[[Array, Array], Array]) -> Operator:
    return lambda _node, inputs: function(_given(inputs[0]), _given(inputs[1]))


def _sigmoid(x: Array) -> Array:
    y: Array = 0.5 * (np.tanh(0.5 * x) + 1)
    return y.astype(x.dtype)


_ERF = np.vectorize(erf, otypes=[np.float32])

OPERATORS |= {
    "Identity": _unary(lambda x: x),
    "Dropout": _unary(lambda x: x),
    "Neg": _unary(np.negative),
    "Relu": _unary(lambda x: np.maximum(x, np.float32(0))),
    "Sigmoid": _unary(_sigmoid),
    "Tanh": _unary(np.tanh),
    "Exp": _unary(np.exp),
    "Log": _unary(np.log),
    "Sqrt": _unary(np.sqrt),
    "Abs": _unary(np.abs),
    "Sign": _unary(np.sign),
    "Not": _unary(np.logical_not),
    "Erf": _unary(_ERF),
    "Reciprocal": _unary(lambda x: np.float32(1) / x),
    "Softplus": _unary(lambda x: np.logaddexp(np.float32(0), x)),
    "Shape": _unary(lambda x: np.array(x.shape, np.int64)),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Greater": _binary(np.greater),
    "Less": _binary(np.less),
    "Equal": _binary(np.equal),
    "Mod": _binary(np.mod),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Pow": _binary(lambda x, p: np.power(x, p.astype(x.dtype))),
    "CastLike": _binary(lambda x, like: x.astype(like.dtype)),
    "MatMul": _binary(np.matmul),
    "Div": _binary(lambda a, b: a / b if a.dtype.kind == "f" else a // b),
    "Expand": _binary(lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))),
    "Reshape": _binary(lambda x, shape: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])),
    "Where": lambda _node, inputs: np.where(*map(_given, inputs)),
}


@operator("LeakyRelu")
def _leaky(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    return np.where(x > 0, x, x * np.float32(node.number("alpha", 0.01)))


@operator("Elu")
def _elu(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    return np.where(x > 0, x, np.float32(node.number("alpha", 1.0)) * np.expm1(np.minimum(x, 0)))


@operator("HardSigmoid")
def _hard_sigmoid(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    return np.clip(x * np.float32(node.number("alpha", 0.2)) + np.float32(node.number("beta", 0.5)), 0, 1)


@operator("HardSwish")
def _hard_swish(_node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    return x * np.clip(x / np.float32(6) + np.float32(0.5), 0, 1)


@operator("Gelu")
def _gelu(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    if node.text("approximate") == "tanh":
        inner = np.tanh(np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x**3))
        return np.float32(0.5) * x * (1 + inner)
    return np.float32(0.5) * x * (1 + _ERF(x * np.float32(sqrt(0.5))))


@operator("Clip")
def _clip(node: Node, inputs: Sequence[Array | None]) -> Array:
    low, high = (*inputs[1:], None, None)[:2]
    bounds = (
        node.number("min", -np.inf) if low is None else low,
        node.number("max", np.inf) if high is None else high,
    )
    x = _given(inputs[0])
    return np.clip(x, *bounds).astype(x.dtype)


@operator("Cast")
def _cast(node: Node, inputs: Sequence[Array | None]) -> Array:
    kind = int(node.number("to", 1))
    return _given(inputs[0]).astype(KINDS[kind])


@operator("Gemm")
def _gemm(node: Node, inputs: Sequence[Array | None]) -> Array:
    a, b = _given(inputs[0]), _given(inputs[1])
    found = (a.T if node.number("transA", 0) else a) @ (b.T if node.number("transB", 0) else b)
    found = found * np.float32(node.number("alpha", 1.0))
    if len(inputs) > 2 and inputs[2] is not None:
        found = found + inputs[2] * np.float32(node.number("beta", 1.0))
    return found


# -- shapes ---------------------------------------------------------------------------------------------------------


@operator("Flatten")
def _flatten(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    axis = int(node.number("axis", 1))
    return x.reshape(prod(x.shape[:axis]), -1)


def _axes(node: Node, inputs: Sequence[Array | None], at: int = 1) -> tuple[int, ...] | None:
    """Return the axes that an operator is given, as an input or as an attribute."""
    given = inputs[at] if len(inputs) > at else None
    return (node.ints("axes") or None) if given is None else tuple(given.tolist())


@operator("Squeeze")
def _squeeze(node: Node, inputs: Sequence[Array | None]) -> Array:
    return np.squeeze(_given(inputs[0]), _axes(node, inputs))


@operator("Unsqueeze")
def _unsqueeze(node: Node, inputs: Sequence[Array | None]) -> Array:
    return np.expand_dims(_given(inputs[0]), _axes(node, inputs) or ())


@operator("Transpose")
def _transpose(node: Node, inputs: Sequence[Array | None]) -> Array:
    return np.transpose(_given(inputs[0]), node.ints("perm") or None)


@operator("Concat")
def _concat(node: Node, inputs: Sequence[Array | None]) -> Array:
    return np.concatenate([_given(each) for each in inputs], int(node.number("axis", 0)))


@operator("Split")
def _split(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    x, axis = _given(inputs[0]), int(node.number("axis", 0))
    sizes = inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else list(node.ints("split"))
    if not sizes:
        part = -(-x.shape[axis] // len(node.outputs))
        sizes = [part] * (len(node.outputs) - 1)
        return tuple(np.split(x, np.cumsum(sizes), axis))
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@operator("Slice")
def _slice(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    lists = [(*inputs, *[None] * 4)[at] for at in (1, 2, 3, 4)]
    begins = node.ints("starts") if lists[0] is None else lists[0].tolist()
    ends = node.ints("ends") if lists[1] is None else lists[1].tolist()
    axes = (node.ints("axes") or range(len(begins))) if lists[2] is None else lists[2].tolist()
    steps = [1] * len(begins) if lists[3] is None else lists[3].tolist()
    chosen = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        chosen[axis % x.ndim] = slice(begin, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(chosen)]


@operator("Gather")
def _gather(node: Node, inputs: Sequence[Array | None]) -> Array:
    return np.take(_given(inputs[0]), _given(inputs[1]), int(node.number("axis", 0)))


@operator("Pad")
def _pad(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    widths = node.ints("pads") if len(inputs) < 2 or inputs[1] is None else inputs[1].tolist()
    value = (*inputs, None, None)[2]
    axes = _axes(node, inputs, 3) or range(x.ndim)
    around = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        around[axis % x.ndim] = widths[i], widths[i + len(widths) // 2]
    cut = x[tuple(slice(-min(0, b), n + min(0, e)) for (b, e), n in zip(around, x.shape, strict=True))]
    return np.pad(
        cut, [(max(0, b), max(0, e)) for b, e in around], constant_values=0 if value is None else value.item()
    )


@operator("ConstantOfShape")
def _constant_of_shape(node: Node, inputs: Sequence[Array | None]) -> Array:
    found = None if node.tensor is None else node.tensor.values()
    fill = np.zeros(1, np.float32) if found is None else found
    return np.full(tuple(_given(inputs[0]).tolist()), fill.reshape(-1)[0], fill.dtype)


@operator("ScatterElements")
def _scatter(node: Node, inputs: Sequence[Array | None]) -> Array:
    data, index, updates = map(_given, inputs)
    out, axis = data.copy(), int(node.number("axis", 0))
    places = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij", sparse=True))
    places[axis] = index
    if node.text("reduction") == "add":
        np.add.at(out, tuple(places), updates)
    else:
        out[tuple(places)] = updates
    return out


# -- sums -----------------------------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Array]) -> Operator:
    def reduce(node: Node, inputs: Sequence[Array | None]) -> Array:
        x, axes = _given(inputs[0]), _axes(node, inputs)
        if axes is None and node.number("noop_with_empty_axes", 0):
            return x
        return function(x, axis=axes, keepdims=bool(node.number("keepdims", 1)), dtype=x.dtype)

    return reduce


OPERATORS |= {"ReduceSum": _reduction(np.sum), "ReduceMean": _reduction(np.mean)}


@operator("Softmax")
def _softmax(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, axis = _given(inputs[0]), int(node.number("axis", -1))
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@operator("LogSoftmax")
def _log_softmax(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, axis = _given(inputs[0]), int(node.number("axis", -1))
    moved = x - x.max(axis, keepdims=True)
    return moved - np.log(np.exp(moved).sum(axis, keepdims=True))


# -- convolutions ---------------------------------------------------------------------------------------------------


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

    def places(self, count: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Yield the place of each number in the kernel, and the padded input that it meets in all windows."""
        for at in product(*map(range, self.kernel)):
            begins = [a * d for a, d in zip(at, self.dilations, strict=True)]
            yield (
                at,
                tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begins, count, self.strides, strict=True)),
            )


def _padded(x: Array, around: Sequence[tuple[int, int]], value: float = 0.0) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *around], constant_values=value) if any(map(any, around)) else x


@operator("Conv")
def _conv(node: Node, inputs: Sequence[Array | None]) -> Array:
    """Add up a product of matrices for each number of the kernel."""
    x, w = _given(inputs[0]), _given(inputs[1])
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
def _conv_transpose(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, w = _given(inputs[0]), _given(inputs[1])
    group, moves, count = int(node.number("group", 1)), _Moves(node, w.shape[2:]), x.shape[2:]
    more = node.ints("output_padding", [0] * len(count))
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
    return out.reshape(n, o, *size)[(slice(None), slice(None), *inner)]


@operator("MaxPool")
def _max_pool(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return the largest number of each window, and its place in the flat input."""
    x = _given(inputs[0])
    moves, around = _Moves(node, node.ints("kernel_shape")), None
    around = moves.around(x.shape[2:])
    padded = _padded(x, around, -np.inf)
    count = moves.windows(padded.shape[2:], up=bool(node.number("ceil_mode", 0)))
    places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    where = np.pad(places, [(0, 0), (0, 0), *around]) if any(map(any, around)) else places
    needed = [(0, 0), (0, 0), *[(0, 0)] * len(count)]
    for i, (c, s, k, d) in enumerate(zip(count, moves.strides, moves.kernel, moves.dilations, strict=True)):
        needed[i + 2] = 0, max(0, (c - 1) * s + (k - 1) * d + 1 - padded.shape[i + 2])
    padded, where = np.pad(padded, needed, constant_values=-np.inf), np.pad(where, needed)
    best = np.full((*x.shape[:2], *count), -np.inf, x.dtype)
    found = np.zeros(best.shape, np.int64)
    for _, place in moves.places(count):
        part = padded[(slice(None), slice(None), *place)]
        larger = part > best
        best = np.where(larger, part, best)
        found = np.where(larger, where[(slice(None), slice(None), *place)], found)
    return best, found


@operator("AveragePool")
def _average_pool(node: Node, inputs: Sequence[Array | None]) -> Array:
    x = _given(inputs[0])
    moves = _Moves(node, node.ints("kernel_shape"))
    around = moves.around(x.shape[2:])
    padded = _padded(x, around)
    ones = _padded(np.ones((1, 1, *x.shape[2:]), x.dtype), around, float(node.number("count_include_pad", 0)))
    count = moves.windows(padded.shape[2:])
    total = sum(padded[(slice(None), slice(None), *place)] for _, place in moves.places(count))
    number = sum(ones[(slice(None), slice(None), *place)] for _, place in moves.places(count))
    found: Array = total / number
    return found


def _space(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


OPERATORS |= {
    "GlobalAveragePool": _unary(lambda x: x.mean(_space(x), keepdims=True, dtype=x.dtype)),
    "GlobalMaxPool": _unary(lambda x: x.max(_space(x), keepdims=True)),
}


@operator("BatchNormalization")
def _batch_norm(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, scale, bias, mean, variance = map(_given, inputs)
    wide = (-1, *[1] * (x.ndim - 2))
    factor = scale / np.sqrt(variance + np.float32(node.number("epsilon", 1e-5)))
    return x * factor.reshape(wide) + (bias - mean * factor).reshape(wide)


def _unit(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    found: Array = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + np.float32(epsilon))
    return found


@operator("LayerNormalization")
def _layer_norm(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, scale = _given(inputs[0]), _given(inputs[1])
    first = int(node.number("axis", -1)) % x.ndim
    found = _unit(x, tuple(range(first, x.ndim)), node.number("epsilon", 1e-5)) * scale
    return found if len(inputs) < 3 or inputs[2] is None else found + inputs[2]


@operator("InstanceNormalization")
def _instance_norm(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, scale, bias = map(_given, inputs)
    wide = (-1, *[1] * (x.ndim - 2))
    return _unit(x, _space(x), node.number("epsilon", 1e-5)) * scale.reshape(wide) + bias.reshape(wide)


@operator("GroupNormalization")
def _group_norm(node: Node, inputs: Sequence[Array | None]) -> Array:
    x, scale, bias = map(_given, inputs)
    grouped = x.reshape(len(x), int(node.number("num_groups", 1)), -1)
    wide = (-1, *[1] * (x.ndim - 2))
    return _unit(grouped, (2,), node.number("epsilon", 1e-5)).reshape(x.shape) * scale.reshape(wide) + bias.reshape(
        wide
    )


# -- as an engine ---------------------------------------------------------------------------------------------------


class NumpyEngine:
    """Computes graphs by numpy alone."""

    def function(self, graph: Graph) -> Callable[[Mapping[str, Array]], list[Array]]:
        """Return a function from the inputs of a graph to its outputs.  Raises ModelError."""
        return NumpyGraph(graph).run

    def passes(self, made: TrainingGraph, weights: Mapping[str, Array], slopes: Mapping[str, Array]) -> NumpyPasses:
        """Return the passes of a training graph.  Raises ModelError for an operator that numpy does not compute."""
        return NumpyPasses(made, weights, slopes)


class NumpyPasses:
    """The passes of a training graph by numpy."""

    def __init__(self, made: TrainingGraph, weights: Mapping[str, Array], slopes: Mapping[str, Array]) -> None:
        self._forward, self._backward = NumpyGraph(made.forward), NumpyGraph(made.backward)
        self._outputs = list(made.forward.outputs)
        self._weights, self._slopes = weights, [slopes[name] for name in made.weights]

    def forward(self, inputs: Mapping[str, Array]) -> tuple[Array, Any]:
        """Return the output, and all that was kept, by name."""
        found = self._forward.run({**inputs, **self._weights})
        return found[0], dict(zip(self._outputs, found, strict=True))

    def backward(self, inputs: Mapping[str, Array], kept: Any, slope: Array) -> None:
        """Write the slope of each weight to its place."""
        found = self._backward.run({**inputs, **self._weights, **kept, SLOPE: slope})
        for place, values in zip(self._slopes, found, strict=True):
            place[...] = values
