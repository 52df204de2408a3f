"""Changes of operators into others that give the same: LSTM and GRU as operators for each step of a series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_training.emitter import Shape
from edge_sdk.models.onnx_training.gradient import depending


class GraphForm:
    """A change of some operators."""

    def __init__(self, graph: Graph, shapes: dict[str, Shape], learning: Sequence[str]) -> None:
        """shapes: grows by what later forms ask for."""
        self.graph, self.shapes = graph, shapes
        self.moving = depending(graph, frozenset(learning))
        """The tensors that change as the weights learn."""
        self.makers = {name: each for each in graph.nodes for name in each.outputs}
        self.uses = Counter(name for each in graph.nodes for name in [*each.inputs, *each.captured])
        self.uses.update([*graph.outputs])
        self.constants: dict[str, Constant] = {}
        self.dropped: set[str] = set()
        """The first outputs of the operators that another one takes in."""

    def applied(self) -> Graph:
        """Return the changed graph."""
        nodes = [(each, self.changed(each)) for each in self.graph.nodes]
        kept = [new for each, found in nodes if each.outputs[0] not in self.dropped for new in found]
        return replace(self.graph, nodes=tuple(kept), constants={**self.graph.constants, **self.constants})

    def changed(self, each: Node) -> Sequence[Node]:
        """Return what stands in place of an operator."""
        raise NotImplementedError

    def before(self, each: Node, operator: str) -> Node | None:
        """Return what gives the first input, if it is such an operator that nothing else reads."""
        maker = self.makers.get(each.inputs[0])
        alone = maker is not None and maker.operator == operator and len(maker.outputs) == 1
        return maker if alone and self.uses[each.inputs[0]] == 1 else None

    def constant(self, values: NDArray[np.generic], name: str) -> str:
        """Return the name of a new constant."""
        self.constants[name] = Constant(name, tensor_of(name, np.ascontiguousarray(values)), None)
        return name


_MOST_STEPS = 256
"""A longer series stays one operator, which freezes what lies before it: its graph would take minutes to load."""
_GATES = {"LSTM": 4, "GRU": 3}
_KEPT = {"hidden_size", "direction", "linear_before_reset"}
"""The attributes that are followed; with others, such as clipping, the operator stays."""
_OFF = {"layout", "input_forget"}
"""Attributes that change nothing at 0, which torch's newer exporter writes."""
LEFT_WHOLE = {name: f"{name} (of more than {_MOST_STEPS} steps, or with what torch's has not)" for name in _GATES}
"""How an operator that stays is called, where it freezes what lies before it."""


class RecurrentAsSteps(GraphForm):
    """An LSTM or a GRU over a series of known length, step by step."""

    def changed(self, each: Node) -> Sequence[Node]:
        """Return the steps in place of the operator."""
        given = [*each.inputs, *[""] * 8]
        used = {name for name in each.attributes if name not in _OFF or each.number(name, 0)}
        plain = each.operator in _GATES and used <= _KEPT and not given[4] and not given[7]
        if not plain or not self.moving.intersection(given[1:4]) or self.shapes[given[0]][0] > _MOST_STEPS:
            return [each]
        return _Unrolled(self, each).nodes


class _Unrolled:
    """The operators of all steps."""

    def __init__(self, form: GraphForm, each: Node) -> None:
        self.nodes: list[Node] = []
        self._form, self._each, self._name = form, each, f"{next(filter(None, each.outputs))}/steps"
        self._gates = _GATES[each.operator]
        self._steps, _, self._width = form.shapes[each.inputs[0]]
        self._hidden = form.shapes[each.inputs[2]][2]
        outputs = (*each.outputs, "", "")[:3]
        kind = each.text("direction") or "forward"
        backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[kind]
        ends = [self._direction(at, turned=turned) for at, turned in enumerate(backward)]
        for output, parts, shape in (
            (outputs[0], [all_h for all_h, _, _ in ends], (self._steps, 1, -1, self._hidden)),
            (outputs[1], [h for _, h, _ in ends], (1, -1, self._hidden)),
            (outputs[2], [c for _, _, c in ends], (1, -1, self._hidden)),
        ):
            if output:
                wide = [self._reshaped(part, *shape) for part in parts]
                self.nodes.append(node("Concat", wide, output, axis=len(shape) - 3))

    def _emit(self, operator: str, *inputs: str, **attributes: int | str | Sequence[int]) -> str:
        output = f"{self._name}/{len(self.nodes)}"
        self.nodes.append(node(operator, inputs, output, **attributes))
        return output

    def _whole(self, *numbers: int) -> str:
        name = f"{self._name}/whole/{'_'.join(map(str, numbers))}"
        return self._form.constant(np.array(numbers, np.int64), name)

    def _reshaped(self, a: str, *shape: int) -> str:
        return self._emit("Reshape", a, self._whole(*shape))

    def _split(self, a: str, axis: int, count: int, size: int) -> list[str]:
        """Emit equal parts along an axis."""
        if count == 1:
            return [a]
        first = f"{self._name}/{len(self.nodes)}"
        names = [first, *(f"{first}/{i}" for i in range(1, count))]
        sizes = self._whole(*[size] * count)
        self.nodes.append(node("Split", [a, sizes], first, axis=axis).giving(names))
        return names

    def _part(self, at: int, direction: int, *shape: int) -> str:
        """Emit an input of one direction, in this shape, or "" without that input."""
        name = (*self._each.inputs, "", "", "", "")[at]
        if not name:
            return ""
        count = 2 if self._each.text("direction") == "bidirectional" else 1
        return self._reshaped(self._split(name, 0, count, 1)[direction], *shape)

    def _direction(self, direction: int, *, turned: bool) -> tuple[str, str, str]:
        """Emit all steps in one direction; return all outputs (t, n, h), the last one (n, h), and the last state."""
        wide, x = self._gates * self._hidden, self._each.inputs[0]
        w, r = self._part(1, direction, wide, self._width), self._part(2, direction, wide, self._hidden)
        rows = self._emit("MatMul", x, self._emit("Transpose", w, perm=(1, 0)))  # (t, n, gates h)
        r = self._emit("Transpose", r, perm=(1, 0))  # (h, gates h)
        on_r = ""
        if bias := self._part(3, direction, 2 * wide):
            on_x, on_r = self._split(bias, 0, 2, wide)
            rows = self._emit("Add", rows, on_x)
        steps = self._split(rows, 0, self._steps, 1)
        h, c = self._part(5, direction, -1, self._hidden), self._part(6, direction, -1, self._hidden)
        found = []
        for each in reversed(steps) if turned else steps:
            h, c = self._step(self._reshaped(each, -1, wide), h, c, r, on_r)
            found.append(self._reshaped(h, 1, -1, self._hidden))
        ordered = found[::-1] if turned else found
        return self._emit("Concat", *ordered, axis=0) if len(found) > 1 else found[0], h, c

    def _step(self, x: str, h: str, c: str, r: str, bias: str) -> tuple[str, str]:
        """Emit a step; x (n, gates h): the input's part, h and c (n, h): the state, or "" for zeros."""
        if self._each.operator == "LSTM":
            return self._lstm(self._sum(x, self._product(h, r), bias), c)
        return self._gru(x, h, r, bias), ""

    def _product(self, a: str, b: str) -> str:
        return self._emit("MatMul", a, b) if a else ""

    def _sum(self, *parts: str) -> str:
        """Emit the sum of the given terms."""
        first, *others = filter(None, parts)
        for each in others:
            first = self._emit("Add", first, each)
        return first

    def _lstm(self, gates: str, c: str) -> tuple[str, str]:
        i, o, f, new = self._split(gates, 1, 4, self._hidden)
        kept = self._emit("Mul", self._emit("Sigmoid", f), c) if c else ""
        c = self._sum(self._emit("Mul", self._emit("Sigmoid", i), self._emit("Tanh", new)), kept)
        return self._emit("Mul", self._emit("Sigmoid", o), self._emit("Tanh", c)), c

    def _gru(self, x: str, h: str, r: str, bias: str) -> str:
        on_x = self._split(x, 1, 3, self._hidden)  # update, reset, new
        weights = self._split(r, 1, 3, self._hidden)
        biases = self._split(bias, 0, 3, self._hidden) if bias else ["", "", ""]
        update, reset = (
            self._emit("Sigmoid", self._sum(on_x[at], self._product(h, weights[at]), biases[at])) for at in (0, 1)
        )
        if self._each.number("linear_before_reset", 0):
            inner = self._sum(self._product(h, weights[2]), biases[2]) if h or biases[2] else ""
            inner = self._emit("Mul", reset, inner) if inner else ""
        else:
            inner = self._sum(self._product(self._emit("Mul", reset, h), weights[2]) if h else "", biases[2])
        new = self._emit("Tanh", self._sum(on_x[2], inner))
        rest = self._emit("Sub", new, self._emit("Mul", update, new))
        return self._sum(rest, self._emit("Mul", update, h) if h else "")
