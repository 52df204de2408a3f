"""A change of some operators of a graph into others that give the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node
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
