"""Operators in numpy: numbers, products, shapes and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, pi, prod, sqrt
from typing import Literal, TypeAlias, cast

import numpy as np

from edge_sdk.arrays import AnyArray
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_file.tensors import KINDS

Operator: TypeAlias = "Callable[[Node, Sequence[AnyArray | None]], AnyArray | tuple[AnyArray, ...]]"
OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Register a function under the names of its operators."""

    def register(found: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, found))
        return found

    return register


def given(values: AnyArray | None) -> AnyArray:
    """Return an input that an operator must have."""
    if values is None:
        raise ModelError("an operator lacks an input")
    return values


def numpy_lacks(what: str) -> ModelError:
    """Return the error of an operator that is used in a way that numpy does not compute here."""
    return ModelError(f"numpy does not compute {what} here: install onnxruntime")


def unary(function: Callable[[AnyArray], AnyArray]) -> Operator:
    """Return an operator on its first input alone."""
    return lambda _node, inputs: function(given(inputs[0]))


def _binary(function: Callable[[AnyArray, AnyArray], AnyArray]) -> Operator:
    return lambda _node, inputs: function(given(inputs[0]), given(inputs[1]))


def _sigmoid(x: AnyArray) -> AnyArray:
    y: AnyArray = 0.5 * (np.tanh(0.5 * x) + 1)
    return y.astype(x.dtype)


_ERF = np.vectorize(erf, otypes=[np.float32])

OPERATORS |= {
    "Identity": unary(lambda x: x),
    "Dropout": unary(lambda x: x),
    "Neg": unary(np.negative),
    "Relu": unary(lambda x: np.maximum(x, np.float32(0))),
    "Sigmoid": unary(_sigmoid),
    "Tanh": unary(np.tanh),
    "Exp": unary(np.exp),
    "Log": unary(np.log),
    "Sqrt": unary(np.sqrt),
    "Abs": unary(np.abs),
    "Sign": unary(np.sign),
    "Not": unary(np.logical_not),
    "Erf": unary(_ERF),
    "Reciprocal": unary(lambda x: np.float32(1) / x),
    "Softplus": unary(lambda x: np.logaddexp(np.float32(0), x)),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Greater": _binary(np.greater),
    "Less": _binary(np.less),
    "Equal": _binary(np.equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Pow": _binary(lambda x, p: np.power(x, p.astype(x.dtype))),
    "CastLike": _binary(lambda x, like: x.astype(like.dtype)),
    "MatMul": _binary(np.matmul),
    "Div": _binary(lambda a, b: a / b if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b),  # towards zero
    "Expand": _binary(lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))),
    "Where": lambda _node, inputs: np.where(*map(given, inputs)),
    "Range": lambda _node, inputs: np.arange(*(given(each).item() for each in inputs), dtype=given(inputs[0]).dtype),
}


@operator("Mod")
def _mod(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    a, b = map(given, inputs)
    return np.fmod(a, b) if node.number("fmod", 0) else np.mod(a, b)


@operator("LeakyRelu")
def _leaky(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    return np.where(x > 0, x, x * np.float32(node.number("alpha", 0.01)))


@operator("Elu")
def _elu(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    return np.where(x > 0, x, np.float32(node.number("alpha", 1.0)) * np.expm1(np.minimum(x, 0)))


@operator("HardSigmoid")
def _hard_sigmoid(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    with np.errstate(over="ignore"):  # a steep one is a step
        out: AnyArray = np.clip(x * np.float32(node.number("alpha", 0.2)) + np.float32(node.number("beta", 0.5)), 0, 1)
    return out


@operator("HardSwish")
def _hard_swish(_node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    out: AnyArray = x * np.clip(x / np.float32(6) + np.float32(0.5), 0, 1)
    return out


@operator("Gelu")
def _gelu(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    if node.text("approximate") == "tanh":
        inner = np.tanh(np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x**3))
        tanh_form: AnyArray = np.float32(0.5) * x * (1 + inner)
        return tanh_form
    out: AnyArray = np.float32(0.5) * x * (1 + _ERF(x * np.float32(sqrt(0.5))))
    return out


@operator("Clip")
def _clip(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    low, high = (*inputs[1:], None, None)[:2]
    bounds = (
        node.number("min", -np.inf) if low is None else low,
        node.number("max", np.inf) if high is None else high,
    )
    x = given(inputs[0])
    return np.clip(x, *bounds).astype(x.dtype)


@operator("Cast")
def _cast(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    kind = int(node.number("to", 1))
    return given(inputs[0]).astype(KINDS[kind])


@operator("Gemm")
def _gemm(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    a, b = given(inputs[0]), given(inputs[1])
    found: AnyArray = (a.T if node.number("transA", 0) else a) @ (b.T if node.number("transB", 0) else b)
    found = found * np.float32(node.number("alpha", 1.0))
    if len(inputs) > 2 and inputs[2] is not None:
        found = found + inputs[2] * np.float32(node.number("beta", 1.0))
    return found


# -- shapes ---------------------------------------------------------------------------------------------------------


@operator("Shape")
def _shape(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    shape = given(inputs[0]).shape
    return np.array(shape[int(node.number("start", 0)) : int(node.number("end", len(shape)))], np.int64)


@operator("Reshape")
def _reshape(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, shape = given(inputs[0]), given(inputs[1]).tolist()
    kept = not node.number("allowzero", 0)
    return x.reshape([x.shape[i] if n == 0 and kept else n for i, n in enumerate(shape)])


@operator("Flatten")
def _flatten(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    axis = int(node.number("axis", 1))
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _axes(node: Node, inputs: Sequence[AnyArray | None], at: int = 1) -> tuple[int, ...] | None:
    """Return the axes that an operator is given, as an input or as an attribute."""
    given = inputs[at] if len(inputs) > at else None
    return (node.ints("axes") or None) if given is None else tuple(given.tolist())


@operator("Squeeze")
def _squeeze(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    return np.squeeze(given(inputs[0]), _axes(node, inputs))


@operator("Unsqueeze")
def _unsqueeze(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    return np.expand_dims(given(inputs[0]), _axes(node, inputs) or ())


@operator("Transpose")
def _transpose(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    return np.transpose(given(inputs[0]), node.ints("perm") or None)


@operator("Concat")
def _concat(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    return np.concatenate([given(each) for each in inputs], int(node.number("axis", 0)))


@operator("Split")
def _split(node: Node, inputs: Sequence[AnyArray | None]) -> tuple[AnyArray, ...]:
    x, axis = given(inputs[0]), int(node.number("axis", 0))
    sizes = inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else list(node.ints("split"))
    if not sizes:
        part = -(-x.shape[axis] // len(node.outputs))
        sizes = [part] * (len(node.outputs) - 1)
        return tuple(np.split(x, np.cumsum(sizes), axis))
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@operator("Slice")
def _slice(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
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
def _gather(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    return np.take(given(inputs[0]), given(inputs[1]), int(node.number("axis", 0)))


@operator("Pad")
def _pad(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x = given(inputs[0])
    widths = node.ints("pads") if len(inputs) < 2 or inputs[1] is None else inputs[1].tolist()
    value, mode = (*inputs, None, None)[2], node.text("mode") or "constant"
    axes = _axes(node, inputs, 3) or range(x.ndim)
    around = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        around[axis % x.ndim] = widths[i], widths[i + len(widths) // 2]
    cut = x[tuple(slice(-min(0, b), n + min(0, e)) for (b, e), n in zip(around, x.shape, strict=True))]
    more = [(max(0, b), max(0, e)) for b, e in around]
    if mode == "constant":
        return np.pad(cut, more, constant_values=0 if value is None else value.item())
    if mode not in ("edge", "reflect", "wrap"):
        raise numpy_lacks(f"padding by {mode}")
    return np.pad(cut, more, mode=cast("Literal['edge', 'reflect', 'wrap']", mode))


@operator("ConstantOfShape")
def _constant_of_shape(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    found = None if node.tensor is None else node.tensor.values()
    fill = np.zeros(1, np.float32) if found is None else found
    return np.full(tuple(given(inputs[0]).tolist()), fill.reshape(-1)[0], fill.dtype)


@operator("ScatterElements")
def _scatter(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    data, index, updates = map(given, inputs)
    out: AnyArray = data.copy()
    axis = int(node.number("axis", 0))
    places = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij", sparse=True))
    places[axis] = index
    _write(node, out, tuple(places), updates)
    return out


@operator("GatherElements")
def _gather_elements(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    data, index = map(given, inputs)
    found: AnyArray = np.take_along_axis(data, index, int(node.number("axis", 0)))
    return found


@operator("GatherND")
def _gather_nd(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    data, places = map(given, inputs)
    if node.number("batch_dims", 0):
        raise numpy_lacks("GatherND with a place for each sample")
    found: AnyArray = data[tuple(np.moveaxis(places, -1, 0))]
    return found


@operator("ScatterND")
def _scatter_nd(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    data, places, updates = map(given, inputs)
    out: AnyArray = data.copy()
    at = tuple(np.moveaxis(places, -1, 0))
    _write(node, out, at, updates)
    return out


def _write(node: Node, out: AnyArray, at: tuple[AnyArray, ...], updates: AnyArray) -> None:
    """Write some numbers at their places, or add them up there."""
    reduction = node.text("reduction") or "none"
    if reduction not in ("none", "add"):
        raise numpy_lacks(f"{node.operator} by {reduction}")
    if reduction == "add":
        np.add.at(out, at, updates)
    else:
        out[at] = updates


# -- sums -----------------------------------------------------------------------------------------------------------


def _reduction(function: Callable[..., AnyArray]) -> Operator:
    def reduce(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
        x, axes = given(inputs[0]), _axes(node, inputs) or None
        if axes is None and node.number("noop_with_empty_axes", 0):
            return x
        found: AnyArray = function(x, axis=axes, keepdims=bool(node.number("keepdims", 1)))
        return found.astype(x.dtype)

    return reduce


OPERATORS |= {
    "ReduceSum": _reduction(np.sum),
    "ReduceMean": _reduction(np.mean),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
}


@operator("Softmax")
def _softmax(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, axis = given(inputs[0]), int(node.number("axis", -1))
    e = np.exp(x - x.max(axis, keepdims=True))
    out: AnyArray = e / e.sum(axis, keepdims=True)
    return out


@operator("LogSoftmax")
def _log_softmax(node: Node, inputs: Sequence[AnyArray | None]) -> AnyArray:
    x, axis = given(inputs[0]), int(node.number("axis", -1))
    moved = x - x.max(axis, keepdims=True)
    out: AnyArray = moved - np.log(np.exp(moved).sum(axis, keepdims=True))
    return out
