"""Each weight of a graph as a constant of its own, in the order of the net that it came from; and other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Layers whose weights may be Constant operators."""


def own_constants(graph: Graph) -> Graph:
    """Return the graph with each weight as an initialiser of its own name, in the order of the net that it came from.

    torch's older exporter keeps equal weights once, as those of fresh layers are, and gives the others by Identity
    operators, which it puts in reverse.
    """
    constants, nodes, again, beside = dict(graph.constants), list[Node](), list[str](), list[str]()
    of_layers = {name for each in graph.nodes if each.operator in _LAYERS for name in each.inputs[1:]}
    for each in graph.nodes:
        source = constants.get(each.inputs[0]) if each.operator == "Identity" else None
        values = None if source is None else source.values()
        if each.outputs[0] in of_layers and each.tensor is not None:
            constants[each.outputs[0]] = Constant(each.outputs[0], each.tensor.raw, each.tensor.folder)
            beside.append(each.outputs[0])
        elif values is None or each.outputs[0] in graph.outputs:
            nodes.append(each)
        else:
            again.insert(0, each.outputs[0])
            constants[again[0]] = Constant(again[0], tensor_of(again[0], values), None)
    order = [*_merged([*graph.constants], again, nodes), *beside]
    return replace(graph, nodes=tuple(nodes), constants={name: constants[name] for name in order})


def _merged(kept: Sequence[str], again: Sequence[str], nodes: Sequence[Node]) -> list[str]:
    """Return both lists of names, each in the net's order, as one.

    A module's own parameters come before those of modules inside it; these follow each other as they are used.
    """
    order, begin = list(kept), 0
    if not again:
        return order
    used = {name: at for at, each in reversed([*enumerate(nodes)]) for name in each.inputs}
    for name in again:
        begin = max(begin, _place(name, order, used))
        order.insert(begin, name)
        begin += 1
    return order


def _place(name: str, order: Sequence[str], used: Mapping[str, int]) -> int:
    """Return where a parameter belongs in a list of others; used: the first operator that takes each."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        prefix = "".join(f"{part}." for part in parts[:depth])
        near = [at for at, each in enumerate(order) if each.startswith(prefix)]
        before = [at for at in near if used.get(order[at], 0) <= used.get(name, 0)]
        if depth == len(parts) - 1:  # those of its own module
            before = [at for at in near if "." not in order[at].removeprefix(prefix)]
        if near:
            return before[-1] + 1 if before else near[0]
    return 0


def with_values(graph: Graph, values: Mapping[str, NDArray[Any]]) -> Graph:
    """Return the graph with other values of some constants, initialisers or not, by name."""
    new = {name: Constant(name, tensor_of(name, array), None) for name, array in values.items()}
    nodes = tuple(each for each in graph.nodes if each.operator != "Constant" or each.outputs[0] not in new)
    return replace(graph, nodes=nodes, constants={**graph.constants, **new})
