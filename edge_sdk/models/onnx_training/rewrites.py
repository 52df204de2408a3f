"""Forms of a graph that compute the same, and whose backward pass is quick: found before it is differentiated.

Each form was measured; ADR 0047 has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_training.conv_rules import KernelWindow, selection
from edge_sdk.models.onnx_training.emitter import Shape
from edge_sdk.models.onnx_training.recurrent import GraphForm, RecurrentAsSteps

_MOST_PAIRS = 1 << 19
"""The inputs times outputs of all channels up to which a convolution by channel is computed as a product."""


def trainable(graph: Graph, shapes: Mapping[str, Shape], learning: Sequence[str]) -> Graph:
    """Return a graph that gives the same, and can be differentiated.

    shapes: of all tensors, for one sample.  learning: the constants that learn.
    """
    known = dict(shapes)
    for form in (
        _SequencesAsParts,
        RecurrentAsSteps,
        _AttentionAsProducts,
        _NormsInWeights,
        _PoolsBeforeRelu,
        _ChannelsAsProducts,
        _PoolsWithPlaces,
    ):
        graph = form(graph, known, learning).applied()
    return graph


class _SequencesAsParts(GraphForm):
    """A tensor that is split into a sequence, and read from it, as the newer exporter writes torch.chunk."""

    def changed(self, each: Node) -> Sequence[Node]:
        if each.operator == "SequenceAt":
            maker, at = self.makers.get(each.inputs[0]), self._whole(each.inputs[1])
            if maker is None or at is None or not self._parts(maker):
                return [each]
            return [node("Identity", [_part(maker, int(at) % self._parts(maker))], each.outputs[0])]
        count = self._parts(each)
        if not count:
            return [each]
        size = self.shapes[each.inputs[0]][self._axis(each)]
        sizes = self._whole(each.inputs[1])
        listed = np.array(sizes if sizes is not None and sizes.ndim else [size // count] * count, np.int64)
        held = self.constant(listed, f"{each.outputs[0]}/sizes")
        names = [_part(each, at) for at in range(count)]
        return [node("Split", [each.inputs[0], held], names[0], axis=self._axis(each)).giving(names)]

    def _parts(self, each: Node) -> int:
        """Return the number of parts into which an operator splits, if all are read singly, or 0 for other ones."""
        if each.operator != "SplitToSequence" or len(each.inputs) < 2:
            return 0
        readers = [one for one in self.graph.nodes if each.outputs[0] in one.inputs]
        known = all(one.operator == "SequenceAt" and self._whole(one.inputs[1]) is not None for one in readers)
        sizes = self._whole(each.inputs[1])
        if sizes is None or not known or self.uses[each.outputs[0]] != len(readers):
            return 0
        size = self.shapes[each.inputs[0]][self._axis(each)]
        if not sizes.ndim:
            return size // int(sizes) if not size % int(sizes) else 0
        return len(sizes)

    def _axis(self, each: Node) -> int:
        return int(each.number("axis", 0)) % len(self.shapes[each.inputs[0]])

    def _whole(self, name: str) -> NDArray[np.generic] | None:
        """Return a constant."""
        found = self.graph.constant(name)
        return None if found is None else found.values()


def _part(splitting: Node, at: int) -> str:
    """Return the name of a part."""
    return f"{splitting.outputs[0]}/part {at}"


class _AttentionAsProducts(GraphForm):
    """Attention (opset 23) as its products and its Softmax, which can be differentiated."""

    _KEPT = frozenset({"is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "softmax_precision",
                       "qk_matmul_output_mode"})  # fmt: skip
    """The attributes that are followed; with others, or with keys of earlier calls, the operator stays."""

    def changed(self, each: Node) -> Sequence[Node]:
        given = [*each.inputs, *[""] * 7]
        plain = each.operator == "Attention" and {*each.attributes} <= self._KEPT and not each.number("softcap", 0)
        if not plain or any((*given[4:], *each.outputs[1:])) or not self.moving.intersection(each.inputs):
            return [each]
        mask = self.graph.constant(given[3]) if given[3] else None
        kept = None if mask is None else mask.values()
        if given[3] and kept is None:  # a mask that is computed: truth values, or numbers
            return [each]
        name, y, found = f"{each.outputs[0]}/attention", each.outputs[0], list[Node]()

        def emit(operator: str, *inputs: str, **attributes: int | Sequence[int]) -> str:
            found.append(node(operator, inputs, f"{name}/{len(found)}", **attributes))
            return found[-1].outputs[0]

        def held(values: NDArray[np.generic], what: str) -> str:
            return self.constant(values, f"{name}/{what}")

        flat = len(self.shapes[given[0]]) == 3
        heads = [int(each.number(f"{kind}_num_heads", 0)) for kind in ("q", "kv", "kv")]
        heads = heads if flat else [self.shapes[one][1] for one in given[:3]]
        if len({*heads}) != 1 or not heads[0]:  # heads that share keys
            return [each]
        apart = held(np.array([0, 0, heads[0], -1]), "heads")
        q, k, v = [
            emit("Transpose", emit("Reshape", one, apart), perm=(0, 2, 1, 3)) if flat else one for one in given[:3]
        ]
        size = self.shapes[given[0]][-1] // (heads[0] if flat else 1)
        scale = each.number("scale", 1 / sqrt(size))
        shorter = emit("Mul", q, held(np.float32(scale), "scale"))
        scores = emit("MatMul", shorter, emit("Transpose", k, perm=(0, 1, 3, 2)))
        lowest = held(np.finfo(np.float32).min, "lowest")
        if kept is not None and kept.dtype == np.bool_:
            scores = emit("Where", given[3], scores, lowest)
        elif kept is not None:
            scores = emit("Add", scores, given[3])
        if each.number("is_causal", 0):
            rows, columns = (self.shapes[one][-2] for one in given[:2])
            scores = emit("Where", held(np.tri(rows, columns, dtype=np.bool_), "causal"), scores, lowest)
        weighted = emit("MatMul", emit("Softmax", scores, axis=-1), v)
        if not flat:
            return [*found, node("Identity", [weighted], y)]
        turned = emit("Transpose", weighted, perm=(0, 2, 1, 3))
        return [*found, node("Reshape", [turned, held(np.array([0, 0, -1]), "joined")], y)]


class _NormsInWeights(GraphForm):
    """A BatchNormalization behind a convolution as a change of its weights: no pass over the activations."""

    def changed(self, each: Node) -> Sequence[Node]:
        conv = self.before(each, "Conv") if each.operator == "BatchNormalization" else None
        if conv is None or each.number("training_mode", 0) or len([name for name in each.outputs if name]) > 1:
            return [each]
        held = [self.graph.constant(name) for name in each.inputs[3:]]
        mean, variance = [None if one is None else one.values() for one in held]
        if mean is None or variance is None or not self.moving.intersection((*conv.inputs[1:], *each.inputs[1:])):
            return [each]
        name, (weight, *bias) = f"{each.outputs[0]}/folded", conv.inputs[1:]
        wide = np.array([-1, *[1] * (len(self.shapes[weight]) - 1)])
        inverse = (1 / np.sqrt(variance.astype(np.float64) + each.number("epsilon", 1e-5))).astype(np.float32)
        self.shapes[f"{name}/weight"] = self.shapes[weight]
        self.dropped.add(conv.outputs[0])
        found = [
            node("Mul", [each.inputs[1], self.constant(inverse, f"{name}/inverse")], f"{name}/factor"),
            node("Mul", [f"{name}/factor", self.constant(mean, f"{name}/statistics")], f"{name}/mean"),
            node("Sub", [each.inputs[2], f"{name}/mean"], f"{name}/shift"),
            node("Reshape", [f"{name}/factor", self.constant(wide, f"{name}/wide")], f"{name}/factors"),
            node("Mul", [weight, f"{name}/factors"], f"{name}/weight"),
        ]
        shift = f"{name}/shift"
        if bias and bias[0]:
            found.append(node("Mul", [bias[0], f"{name}/factor"], f"{name}/bias"))
            found.append(node("Add", [shift, f"{name}/bias"], f"{name}/sum"))
            shift = f"{name}/sum"
        return [*found, conv.between([conv.inputs[0], f"{name}/weight", shift], each.outputs[0])]


class _PoolsBeforeRelu(GraphForm):
    """A Relu behind the pool that it stood before: it has as many times less to do as a window is large."""

    def changed(self, each: Node) -> Sequence[Node]:
        relu = self.before(each, "Relu") if each.operator == "MaxPool" and len(each.outputs) == 1 else None
        if relu is None or not self.moving.intersection(relu.inputs):
            return [each]
        name = f"{each.outputs[0]}/before"
        self.shapes[name] = self.shapes[each.outputs[0]]
        self.dropped.add(relu.outputs[0])
        return [each.between(relu.inputs, name), node("Relu", [name], each.outputs[0])]


class _ChannelsAsProducts(GraphForm):
    """A convolution of each channel on its own over few places, as a product with a matrix made of the kernel."""

    def changed(self, each: Node) -> Sequence[Node]:
        if each.operator != "Conv" or each.inputs[1] not in self.moving:
            return [each]
        (x, w, *bias), y = each.inputs, each.outputs[0]
        shape, kernel = self.shapes[x], self.shapes[w]
        c, space, out = shape[1], shape[2:], self.shapes[y][2:]
        if each.number("group", 1) != c or kernel[0] != c or kernel[1] != 1 or prod(kernel) == c:
            return [each]
        window = KernelWindow(each, space, kernel[2:], out)
        many, q, p = prod(kernel[2:]), prod(space), prod(out)
        if c * q * p > _MOST_PAIRS:
            return [each]
        order, name = (1, 0, *range(2, len(shape))), f"{y}/by channel"
        found = [node("Transpose", [x], f"{name}/x", perm=order)]

        def reshaped(source: str, target: str, *sizes: int) -> str:
            whole = self.constant(np.array(sizes, np.int64), f"{target}/shape")
            found.append(node("Reshape", [source, whole], target))
            return target

        samples = reshaped(f"{name}/x", f"{name}/samples", 0, 0, -1)  # (c, n, q)
        chosen = self.constant(selection(window), f"{name}/selection")  # (k, q p)
        found.append(node("MatMul", [reshaped(w, f"{name}/w", c, many), chosen], f"{name}/pairs"))
        matrix = reshaped(f"{name}/pairs", f"{name}/matrix", c, q, p)
        found.append(node("MatMul", [samples, matrix], f"{name}/y"))
        last = f"{name}/y"
        if bias and bias[0]:
            found.append(node("Add", [last, reshaped(bias[0], f"{name}/b", c, 1, 1)], f"{name}/sum"))
            last = f"{name}/sum"
        last = reshaped(last, f"{name}/wide", 0, 0, *out)
        return [*found, node("Transpose", [last], y, perm=order)]


class _PoolsWithPlaces(GraphForm):
    """A pool whose windows overlap names the places of the largest numbers, which its backward pass needs."""

    def changed(self, each: Node) -> Sequence[Node]:
        if each.operator != "MaxPool" or len(each.outputs) > 1 or not self.moving.intersection(each.inputs):
            return [each]
        x, y = self.shapes[each.inputs[0]], self.shapes[each.outputs[0]]
        window = KernelWindow(each, x[2:], each.ints("kernel_shape"), y[2:])
        return [each if window.tiles else each.giving((*each.outputs, f"{each.outputs[0]}/places"))]
