"""The tools of a rule of differentiation: the sizes of all tensors, and a list for the operators that it emits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import frexp, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of

Shape = tuple[int, ...]
_STEEPNESS = 2.0**100
"""A power of two, so that a product with it is exact: from one float to the next it rises by more than 1."""


class Emitter:
    """Collects the operators of a backward pass for one shape of mini-batches."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        constants: Mapping[str, NDArray[Any]],
        trained: frozenset[str],
        *,
        prefix: str = "back",
    ) -> None:
        """shapes: of every tensor of the forward pass.  constants: those whose values never change, by name.

        trained: the names that depend on weights which learn; nothing else needs a slope.  prefix: of new names.
        """
        self.shapes, self._values, self.trained, self._prefix = dict(shapes), constants, trained, prefix
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, of the forward pass or of what was emitted."""
        return self.shapes[name]

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant, or None if the tensor is computed."""
        return self._values.get(name)

    def constant(self, values: NDArray[Any] | float) -> str:
        """Return the name of a constant with these values; equal ones are kept once."""
        array = np.asarray(values, np.float32) if isinstance(values, float) else np.ascontiguousarray(values)
        digest = hashlib.sha256(array.tobytes() + repr((array.dtype.str, array.shape)).encode()).hexdigest()[:12]
        name = f"{self._prefix}/const/{digest}"
        if name not in self.constants:
            self.constants[name] = Constant(name, tensor_of(name, array), None)
            self.shapes[name] = array.shape
        return name

    def whole(self, *numbers: int) -> str:
        """Return the name of a constant list of whole numbers."""
        return self.constant(np.array(numbers, np.int64))

    def emit(
        self, operator: str, inputs: Sequence[str], shape: Shape, **attributes: float | str | Sequence[int]
    ) -> str:
        """Emit an operator with one output of a known shape; return the output's name."""
        output = f"{self._prefix}/{len(self.nodes)}/{operator}"
        self.nodes.append(node(operator, inputs, output, **attributes))
        self.shapes[output] = shape
        return output

    # -- what rules share -------------------------------------------------------------------------------------------

    def binary(self, operator: str, a: str, b: str) -> str:
        """Emit an operator on two tensors that are broadcast."""
        return self.emit(operator, [a, b], np.broadcast_shapes(self.shape(a), self.shape(b)))

    def mul(self, a: str, b: str) -> str:
        """Emit a product; one with a constant 1 is left out."""
        return self.binary("Mul", a, b)

    def scaled(self, a: str, factor: float) -> str:
        """Emit a product with a number."""
        return a if factor == 1 else self.mul(a, self.constant(float(factor)))

    def add(self, a: str | None, b: str) -> str:
        """Emit a sum, in which None is nothing."""
        return b if a is None else self.binary("Add", a, b)

    def unary(self, operator: str, a: str, **attributes: float | Sequence[int]) -> str:
        """Emit an operator that keeps the shape."""
        return self.emit(operator, [a], self.shape(a), **attributes)

    def steep(self, x: str, threshold: float, *, above: bool) -> str:
        """Emit 1 where a tensor lies above (or below) a threshold, and 0 elsewhere: one pass, without truth values."""
        steepness = _STEEPNESS / 2.0 ** max(0, frexp(threshold)[1])
        steepness = steepness if above else -steepness
        return self.unary("HardSigmoid", x, alpha=steepness, beta=-steepness * threshold)

    def same(self, a: str, b: str) -> str:
        """Emit 1 where two tensors are equal, and 0 elsewhere."""
        shape = np.broadcast_shapes(self.shape(a), self.shape(b))
        return self.emit("Cast", [self.emit("Equal", [a, b], shape)], shape, to=1)

    def repeated(self, a: str, times: Sequence[int]) -> str:
        """Emit a tensor (n, c, ...) with each number so often, along each axis of space."""
        shape = (*self.shape(a)[:2], *(n * k for n, k in zip(self.shape(a)[2:], times, strict=True)))
        scales = self.constant(np.array([1, 1, *times], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.emit("Resize", [a, "", scales], shape, **how)

    def reshape(self, a: str, shape: Shape) -> str:
        """Emit the same numbers in another shape."""
        return a if self.shape(a) == shape else self.emit("Reshape", [a, self.whole(*shape)], shape)

    def transpose(self, a: str, order: Sequence[int]) -> str:
        """Emit a tensor with its axes in another order."""
        if tuple(order) == tuple(range(len(order))):
            return a
        return self.emit("Transpose", [a], tuple(self.shape(a)[axis] for axis in order), perm=tuple(order))

    def sum(self, a: str, axes: Sequence[int], *, keep: bool = False) -> str:
        """Emit the sum over some axes; keep: leave them with size 1."""
        shape = self.shape(a)
        axes = sorted(axis % len(shape) for axis in axes)
        if not axes:
            return a
        left = tuple(1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes)
        return self.emit("ReduceSum", [a, self.whole(*axes)], left, keepdims=int(keep))

    def broadcast(self, a: str, shape: Shape) -> str:
        """Emit a tensor repeated up to a shape."""
        return a if self.shape(a) == shape else self.emit("Expand", [a, self.whole(*shape)], shape)

    def reduced(self, a: str, shape: Shape) -> str:
        """Emit the sum of a slope over the axes along which a tensor of this shape was broadcast."""
        own = self.shape(a)
        if own == shape:
            return a
        if len(own) == 2 and shape == own[1:]:  # of a layer's bias: a product is three times as quick as ReduceSum
            return self.emit("MatMul", [self.constant(np.ones(own[:1], np.float32)), a], shape)
        more = len(own) - len(shape)
        axes = [*range(more), *(i + more for i, size in enumerate(shape) if size == 1 and own[i + more] != 1)]
        return self.reshape(self.sum(a, axes), shape)

    def zeros(self, shape: Shape) -> str:
        """Return a tensor of zeros, which takes no room in the file."""
        return self.broadcast(self.constant(np.zeros((1,) * max(len(shape), 1), np.float32)), shape or (1,))

    def sliced(self, a: str, axis: int, begin: int, end: int) -> str:
        """Emit a part of a tensor along one axis."""
        return self.cut(a, [axis], [begin], [end], [1])

    def cut(self, a: str, axes: Sequence[int], begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> str:
        """Emit a part of a tensor along several axes."""
        shape = list(self.shape(a))
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
            shape[axis] = -(-(end - begin) // step)
        if tuple(shape) == self.shape(a):
            return a
        return self.emit("Slice", [a, *(self.whole(*each) for each in (begins, ends, axes, steps))], tuple(shape))

    def joined(self, parts: Sequence[str], axis: int) -> str:
        """Emit tensors one behind the other along an axis."""
        if len(parts) == 1:
            return parts[0]
        shape = self.shape(parts[0])
        size = sum(self.shape(each)[axis] for each in parts)
        return self.emit("Concat", parts, (*shape[:axis], size, *shape[axis + 1 :]), axis=axis)

    def product(self, a: str, b: str) -> str:
        """Emit the product of two stacks of matrices."""
        left, right = self.shape(a), self.shape(b)
        stacked = np.broadcast_shapes(left[:-2], right[:-2])
        return self.emit("MatMul", [a, b], (*stacked, left[-2], right[-1]))

    def padded(self, a: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Emit a tensor with zeros around it."""
        if not any((*before, *after)):
            return a
        shape = tuple(b + n + e for b, n, e in zip(before, self.shape(a), after, strict=True))
        return self.emit("Pad", [a, self.whole(*before, *after)], shape)

    def matrix(self, a: str, b: str, *, turn_a: bool = False, turn_b: bool = False) -> str:
        """Emit the product of two matrices, either of them transposed."""
        rows, columns = self.shape(a)[int(turn_a)], self.shape(b)[int(not turn_b)]
        return self.emit("Gemm", [a, b], (rows, columns), transA=int(turn_a), transB=int(turn_b))

    def scattered(self, slope: str, index: NDArray[np.int64] | str, shape: Shape) -> str:
        """Emit slopes (q,) added up at places of a flat tensor, in this shape.  index: whole numbers (q,)."""
        count = prod(self.shape(slope))
        places = index if isinstance(index, str) else self.constant(index)
        flat = self.emit(
            "ScatterElements",
            [self.zeros((prod(shape),)), self.reshape(places, (count,)), self.reshape(slope, (count,))],
            (prod(shape),),
            axis=0,
            reduction="add",
        )
        return self.reshape(flat, shape)


def floats_of(values: NDArray[Any]) -> Floats:
    """Return values as f4, for constants that a rule computes."""
    return np.asarray(values, np.float32)
