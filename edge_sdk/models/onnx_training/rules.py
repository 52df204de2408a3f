"""The backward pass of each operator: given the slope of its output, the slopes of its inputs.

A rule emits ordinary ONNX operators.  It returns a slope for each input, or None for an input without one (whole
numbers, constants) or whose slope is not needed.  Shapes are those of the current pass, so axes and sizes are
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, prod, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.emitter import Emitter, Shape

Slopes: TypeAlias = "Sequence[str | None]"
BackwardRule: TypeAlias = "Callable[[Emitter, Node, Sequence[str | None]], Slopes]"
"""Called with the emitter, the operator and the slopes of its outputs."""
RULES: dict[str, BackwardRule] = {}
SELECTING = {"Shape", "Size", "Constant", "ConstantOfShape", "Range", "Equal", "Greater", "Less", "Not", "And", "Or"}
"""Operators through which nothing can be learnt, and nothing is lost."""


class NotDifferentiable(Exception):
    """An operator is used in a way without a rule; the layers before it are frozen."""

    tensor = ""
    """The tensor that the operator computes."""


def rule(*operators: str) -> Callable[[BackwardRule], BackwardRule]:
    """Register a rule under the names of its operators."""

    def register(found: BackwardRule) -> BackwardRule:
        RULES.update(dict.fromkeys(operators, found))
        return found

    return register


def first(slopes: Sequence[str | None]) -> str:
    """Return the slope of the first output, which a rule is called with."""
    found = slopes[0]
    if found is None:
        raise ValueError("a rule is called without a slope")
    return found


def _given(to: Emitter, node: Node, at: int) -> NDArray[Any] | None:
    """Return an input that must not follow from samples or weights, or None where it is left out.

    Raises NotDifferentiable where it does.
    """
    name = (*node.inputs, *[""] * 5)[at]
    if not name:
        return None
    found = to.value(name)
    if found is None:
        raise NotDifferentiable(f"{node.operator} by numbers that follow from the samples")
    return found


# -- one number from one number -------------------------------------------------------------------------------------


def _pointwise(operator: str) -> Callable[[Callable[[Emitter, Node, str], str]], None]:
    """Register an operator by its derivative, as a tensor to multiply the slope with."""

    def register(derivative: Callable[[Emitter, Node, str], str]) -> None:
        RULES[operator] = lambda to, node, slopes: [to.mul(first(slopes), derivative(to, node, node.inputs[0]))]

    return register


@rule("Identity", "Dropout")
def _same(_to: Emitter, _node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [first(slopes)]


@rule("Cast", "CastLike")
def _cast(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [first(slopes) if node.inputs[0] in to.trained else None, None][: len(node.inputs)]


@rule("Neg")
def _neg(to: Emitter, _node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [to.unary("Neg", first(slopes))]


@rule("Relu")
def _relu(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [to.mul(first(slopes), to.steep(node.outputs[0], 0.0, above=True))]


def _within(to: Emitter, x: str, low: float, high: float) -> str:
    return to.mul(to.steep(x, low, above=True), to.steep(x, high, above=False))


@_pointwise("LeakyRelu")
def _leaky(to: Emitter, node: Node, x: str) -> str:
    slope = node.number("alpha", 0.01)
    return to.add(to.constant(float(slope)), to.scaled(to.steep(x, 0.0, above=True), 1 - slope))


@_pointwise("Elu")
def _elu(to: Emitter, node: Node, x: str) -> str:
    alpha = node.number("alpha", 1.0)
    below = to.add(to.constant(float(alpha)), node.outputs[0])  # alpha e^x
    positive = to.steep(x, 0.0, above=True)
    return to.add(positive, to.mul(below, to.binary("Sub", to.constant(1.0), positive)))


@rule("Clip")
def _clip(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    bounds = [_given(to, node, at) for at in (1, 2)]
    low = node.number("min", -np.inf) if bounds[0] is None else float(bounds[0])
    high = node.number("max", np.inf) if bounds[1] is None else float(bounds[1])
    slope, x = first(slopes), node.inputs[0]
    if np.isfinite(low):
        slope = to.mul(slope, to.steep(x, low, above=True))
    if np.isfinite(high):
        slope = to.mul(slope, to.steep(x, high, above=False))
    return [slope, None, None][: len(node.inputs)]


@_pointwise("Sigmoid")
def _sigmoid(to: Emitter, node: Node, _x: str) -> str:
    y = node.outputs[0]
    return to.mul(y, to.binary("Sub", to.constant(1.0), y))


@_pointwise("Tanh")
def _tanh(to: Emitter, node: Node, _x: str) -> str:
    y = node.outputs[0]
    return to.binary("Sub", to.constant(1.0), to.mul(y, y))


@_pointwise("HardSigmoid")
def _hard_sigmoid(to: Emitter, node: Node, _x: str) -> str:
    return to.scaled(_within(to, node.outputs[0], 0.0, 1.0), node.number("alpha", 0.2))


@_pointwise("HardSwish")
def _hard_swish(to: Emitter, _node: Node, x: str) -> str:
    inside = to.steep(to.unary("Abs", x), 3.0, above=False)
    gate = to.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    return to.add(gate, to.mul(to.scaled(x, 1 / 6), inside))


@_pointwise("Erf")
def _erf(to: Emitter, _node: Node, x: str) -> str:
    return to.scaled(to.unary("Exp", to.unary("Neg", to.mul(x, x))), 2 / sqrt(pi))


@_pointwise("Gelu")
def _gelu(to: Emitter, node: Node, x: str) -> str:
    if node.text("approximate") == "tanh":
        cubic = to.add(to.scaled(x, sqrt(2 / pi)), to.scaled(to.mul(x, to.mul(x, x)), 0.044715 * sqrt(2 / pi)))
        t = to.unary("Tanh", cubic)
        inner = to.add(to.constant(sqrt(2 / pi)), to.scaled(to.mul(x, x), 3 * 0.044715 * sqrt(2 / pi)))
        rest = to.mul(to.scaled(x, 0.5), to.mul(to.binary("Sub", to.constant(1.0), to.mul(t, t)), inner))
        return to.add(to.scaled(to.add(t, to.constant(1.0)), 0.5), rest)
    mass = to.scaled(to.add(to.unary("Erf", to.scaled(x, sqrt(0.5))), to.constant(1.0)), 0.5)
    density = to.scaled(to.unary("Exp", to.scaled(to.mul(x, x), -0.5)), 1 / sqrt(2 * pi))
    return to.add(mass, to.mul(x, density))


@_pointwise("Sqrt")
def _sqrt(to: Emitter, node: Node, _x: str) -> str:
    return to.binary("Div", to.constant(0.5), node.outputs[0])


@_pointwise("Exp")
def _exp(_to: Emitter, node: Node, _x: str) -> str:
    return node.outputs[0]


@_pointwise("Log")
def _log(to: Emitter, _node: Node, x: str) -> str:
    return to.unary("Reciprocal", x)


@_pointwise("Reciprocal")
def _reciprocal(to: Emitter, node: Node, _x: str) -> str:
    return to.unary("Neg", to.mul(node.outputs[0], node.outputs[0]))


@_pointwise("Abs")
def _abs(to: Emitter, _node: Node, x: str) -> str:
    return to.unary("Sign", x)


@_pointwise("Softplus")
def _softplus(to: Emitter, _node: Node, x: str) -> str:
    return to.unary("Sigmoid", x)


# -- two tensors ----------------------------------------------------------------------------------------------------


@rule("Add")
def _add(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [to.reduced(first(slopes), to.shape(name)) if name in to.trained else None for name in node.inputs]


@rule("Sub")
def _sub(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    a, b = node.inputs
    slope = first(slopes)
    return [
        to.reduced(slope, to.shape(a)) if a in to.trained else None,
        to.unary("Neg", to.reduced(slope, to.shape(b))) if b in to.trained else None,
    ]


@rule("Mul")
def _mul(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    a, b = node.inputs
    slope = first(slopes)
    return [
        to.reduced(to.mul(slope, other), to.shape(own)) if own in to.trained else None
        for own, other in ((a, b), (b, a))
    ]


@rule("Div")
def _div(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    a, b = node.inputs
    over_b = to.binary("Div", first(slopes), b)
    below = None
    if b in to.trained:
        below = to.reduced(to.unary("Neg", to.mul(over_b, node.outputs[0])), to.shape(b))
    return [to.reduced(over_b, to.shape(a)) if a in to.trained else None, below]


@rule("Pow")
def _pow(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """x^c with a constant c, as layers of normalisation are written."""
    x, exponent = node.inputs
    power = to.value(exponent)
    if power is None or power.size != 1:
        raise NotDifferentiable("a power that is computed")
    c = float(power.reshape(-1)[0])
    base = x if c == 2 else to.emit("Pow", [x, to.constant(c - 1)], to.shape(x))
    return [to.mul(first(slopes), to.scaled(base, c)), None]


@rule("Where")
def _where(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    condition, a, b = node.inputs
    slope, zero = first(slopes), to.constant(0.0)
    chosen = [
        to.emit("Where", [condition, *pair], to.shape(slope)) if name in to.trained else None
        for name, pair in ((a, (slope, zero)), (b, (zero, slope)))
    ]
    return [
        None,
        *(None if each is None else to.reduced(each, to.shape(n)) for each, n in zip(chosen, (a, b), strict=True)),
    ]


@rule("MatMul")
def _matmul(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    a, b = node.inputs
    slope = first(slopes)
    if len(to.shape(a)) < 2 or len(to.shape(b)) < 2:
        raise NotDifferentiable("a product with a vector")
    if len(to.shape(b)) == 2:  # a layer: one product of matrices each, after any layer
        k, n = to.shape(b)
        flat = to.reshape(slope, (prod(to.shape(slope)[:-1]), n))
        rows = to.reshape(a, (prod(to.shape(a)[:-1]), k))
        back = to.reshape(to.matrix(flat, b, turn_b=True), to.shape(a)) if a in to.trained else None
        return [back, to.matrix(rows, flat, turn_a=True) if b in to.trained else None]
    back = None
    if a in to.trained:
        turned = _turned(to, b)
        back = to.reduced(to.product(slope, turned), to.shape(a))
    other = to.reduced(to.product(_turned(to, a), slope), to.shape(b)) if b in to.trained else None
    return [back, other]


def _turned(to: Emitter, a: str) -> str:
    """Emit a stack of matrices, each transposed."""
    order = [*range(len(to.shape(a)))]
    return to.transpose(a, [*order[:-2], order[-1], order[-2]])


@rule("Gemm")
def _gemm(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    slope = first(slopes)
    a, b = node.inputs[:2]
    turned_a, turned_b = bool(node.number("transA", 0)), bool(node.number("transB", 0))
    inner = to.scaled(slope, node.number("alpha", 1.0))
    found: list[str | None] = [None] * len(node.inputs)
    if a in to.trained:
        found[0] = (
            to.matrix(b, inner, turn_a=turned_b, turn_b=True) if turned_a else to.matrix(inner, b, turn_b=not turned_b)
        )
    if b in to.trained:
        found[1] = (
            to.matrix(inner, a, turn_a=True, turn_b=turned_a) if turned_b else to.matrix(a, inner, turn_a=not turned_a)
        )
    if len(node.inputs) > 2 and node.inputs[2] in to.trained:
        found[2] = to.reduced(to.scaled(slope, node.number("beta", 1.0)), to.shape(node.inputs[2]))
    return found


# -- other shapes of the same numbers -------------------------------------------------------------------------------


@rule("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def _reshaped(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [to.reshape(first(slopes), to.shape(node.inputs[0])), *[None] * (len(node.inputs) - 1)]


@rule("Transpose")
def _transposed(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    rank = len(to.shape(node.inputs[0]))
    order = node.ints("perm", range(rank)[::-1])
    return [to.transpose(first(slopes), np.argsort(order).tolist())]


@rule("Expand")
def _expanded(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    return [to.reduced(first(slopes), to.shape(node.inputs[0])), None]


@rule("Concat")
def _concat(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    slope, found, at = first(slopes), list[str | None](), 0
    axis = int(node.number("axis", 0)) % len(to.shape(slope))
    for name in node.inputs:
        size = to.shape(name)[axis]
        found.append(to.sliced(slope, axis, at, at + size) if name in to.trained else None)
        at += size
    return found


@rule("Split")
def _split(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    axis = int(node.number("axis", 0)) % len(to.shape(node.inputs[0]))
    parts = [slope or to.zeros(to.shape(name)) for slope, name in zip(slopes, node.outputs, strict=True)]
    return [to.emit("Concat", parts, to.shape(node.inputs[0]), axis=axis), *[None] * (len(node.inputs) - 1)]


@rule("Slice")
def _slice(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    shape = to.shape(node.inputs[0])
    return [
        to.scattered(first(slopes), _places(shape)[_cut(to, node, shape)].reshape(-1), shape),
        *[None] * (len(node.inputs) - 1),
    ]


def _places(shape: Shape) -> np.ndarray:
    """Return the place of each number of a tensor in its flat form."""
    return np.arange(prod(shape), dtype=np.int64).reshape(shape)


def _cut(to: Emitter, node: Node, shape: Shape) -> tuple[slice, ...]:
    """Return what a Slice takes of each axis."""
    lists = [_given(to, node, at) for at in (1, 2, 3, 4)]
    begins, ends = (
        node.ints(name) if each is None else each.tolist()
        for name, each in zip(("starts", "ends"), lists, strict=False)
    )
    axes = node.ints("axes", range(len(begins))) if lists[2] is None else lists[2].tolist()
    steps = [1] * len(begins) if lists[3] is None else lists[3].tolist()
    found = [slice(None)] * len(shape)
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        low = None if step < 0 and end < -shape[axis] else end
        found[axis % len(shape)] = slice(begin, low, step)
    return tuple(found)


@rule("Gather")
def _gather(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Add the slopes up at the rows that were taken, as those of an embedding."""
    data, index = node.inputs
    shape, slope = to.shape(data), first(slopes)
    axis = int(node.number("axis", 0)) % len(shape)
    before, size, after = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    taken = prod(to.shape(index))
    whole = to.emit("Cast", [to.reshape(index, (1, taken, 1))], (1, taken, 1), to=7)
    positive = to.emit(
        "Where",
        [
            to.emit("Less", [whole, to.whole(0)], (1, taken, 1)),
            to.emit("Add", [whole, to.whole(size)], (1, taken, 1)),
            whole,
        ],
        (1, taken, 1),
    )
    places = to.broadcast(positive, (before, taken, after))
    flat = to.emit(
        "ScatterElements",
        [to.zeros((before, size, after)), places, to.reshape(slope, (before, taken, after))],
        (before, size, after),
        axis=1,
        reduction="add",
    )
    return [to.reshape(flat, shape), None]


@rule("GatherND")
def _gather_nd(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Add the slopes up at the places that were taken."""
    data, places = node.inputs
    if node.number("batch_dims", 0):
        raise NotDifferentiable("GatherND with a place for each sample")
    zeros = to.zeros(to.shape(data))
    return [to.emit("ScatterND", [zeros, places, first(slopes)], to.shape(data), reduction="add"), None]


@rule("Pad")
def _pad(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    if node.text("mode") not in ("", "constant"):
        raise NotDifferentiable(f"padding by {node.text('mode')}")
    found, axes = _given(to, node, 1), _given(to, node, 3)
    widths = node.ints("pads") if found is None else found.tolist()
    slope = first(slopes)
    shape = to.shape(node.inputs[0])
    chosen = range(len(shape)) if axes is None else axes.tolist()
    for i, axis in enumerate(chosen):
        begin = int(widths[i])
        slope = to.sliced(slope, axis % len(shape), begin, begin + shape[axis])
    return [slope, *[None] * (len(node.inputs) - 1)]


# -- sums and shares ------------------------------------------------------------------------------------------------


def reduced_axes(to: Emitter, node: Node) -> list[int]:
    """Return the axes that a reduction runs over."""
    given = _given(to, node, 1)
    rank = len(to.shape(node.inputs[0]))
    axes = [int(each) for each in (node.ints("axes") if given is None else given.tolist())]
    return [axis % rank for axis in axes] or ([] if node.number("noop_with_empty_axes", 0) else [*range(rank)])


@rule("ReduceSum", "ReduceMean")
def _reduction(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    axes, shape = reduced_axes(to, node), to.shape(node.inputs[0])
    kept = tuple(1 if i in axes else size for i, size in enumerate(shape))
    share = 1 / prod(shape[axis] for axis in axes) if node.operator == "ReduceMean" else 1.0
    return [to.scaled(to.reshape(first(slopes), kept), share), *[None] * (len(node.inputs) - 1)]


@rule("Softmax")
def _softmax(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    y, slope, axis = node.outputs[0], first(slopes), int(node.number("axis", -1))
    weighted = to.mul(y, slope)
    return [to.binary("Sub", weighted, to.mul(y, to.sum(weighted, [axis], keep=True)))]


@rule("LogSoftmax")
def _log_softmax(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    y, slope, axis = node.outputs[0], first(slopes), int(node.number("axis", -1))
    return [to.binary("Sub", slope, to.mul(to.unary("Exp", y), to.sum(slope, [axis], keep=True)))]
