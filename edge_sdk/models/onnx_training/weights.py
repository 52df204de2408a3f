"""Which constants of a graph are weights, to which layers they belong, and which of them learn."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph

_FACTORS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "Gather": (0,),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (0, 3),
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
}
"""The inputs of layers that hold their weights."""
_SCALES: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "PRelu": (1,),
    "Add": (0, 1),
    "Mul": (0, 1),
    "Concat": (0, 1, 2),
    "Expand": (0,),
}
"""The inputs of operators that are counted with the layer before them: a bias, a norm, a class token."""
_NORMS = {name for name in _SCALES if name.endswith("Normalization")}
_FREE = {"Add", "Mul", "Concat", "Expand"}
"""Operators whose constants may be masks and numbers, too: a weight is an initialiser of several finite numbers."""
_PASSING = {"Identity", "Cast", "CastLike", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Split", "Gather",
            "DequantizeLinear"}  # fmt: skip
"""Operators that a weight may pass before a layer takes it."""


@dataclass(frozen=True, slots=True)
class WeightLayer:
    """An operator with weights, and the operators behind it that only shift and scale."""

    operator: str
    outputs: tuple[str, ...]
    """Its output, and the outputs of those behind it."""
    weights: tuple[str, ...]


def layers_of(graph: Graph) -> list[WeightLayer]:
    """Return the layers of a graph in the order of computation; each weight belongs to the first that takes it."""
    held: dict[str, tuple[str, ...]] = {name: (name,) for name in graph.constants}
    held |= {each.outputs[0]: (each.outputs[0],) for each in graph.nodes if each.operator == "Constant" and each.tensor}
    found: list[WeightLayer] = []
    seen: set[str] = set()
    waiting: list[str] = []
    for each in graph.nodes:
        if each.operator in _PASSING and each.inputs and each.inputs[0] in held:
            held |= dict.fromkeys(each.outputs, held[each.inputs[0]])
        if each.operator == "Concat" and all(name in held for name in each.inputs):  # parts of a layer's weights
            held[each.outputs[0]] = tuple(origin for name in each.inputs for origin in held[name])
            continue
        places = _FACTORS.get(each.operator) or _SCALES.get(each.operator, ())
        taken = [each.inputs[at] for at in places if at < len(each.inputs)]
        names = [origin for name in taken for origin in held.get(name, ())]
        new = [name for name in dict.fromkeys(names) if name not in seen and _is_weight(graph, name, each.operator)]
        seen.update(new)
        if each.operator in _FACTORS and new:
            found.append(WeightLayer(each.operator, each.outputs, (*waiting, *new)))
            waiting = []
        elif new and not found:  # it shifts and scales the samples: it goes with the first layer
            waiting += new
        elif new:
            last = found[-1]
            found[-1] = WeightLayer(last.operator, (*last.outputs, *each.outputs), (*last.weights, *new))
    return found


def _is_weight(graph: Graph, name: str, operator: str) -> bool:
    constant = graph.constants.get(name)
    if operator not in _FREE:
        return True
    values = None if constant is None else constant.values()
    return values is not None and values.dtype.kind == "f" and values.size > 1 and bool(np.isfinite(values).all())


def of_norms(graph: Graph) -> frozenset[str]:
    """Return the weights of layers of normalisation, which weight decay leaves out."""
    return frozenset(name for each in graph.nodes if each.operator in _NORMS for name in each.inputs[1:])


def chosen_layers(graph: Graph, layers: Sequence[WeightLayer], train: str) -> Sequence[WeightLayer]:
    """Return the layers that `train` names: all, the last ones by number, or those from a layer, weight or tensor on.

    Raises ModelError for a name that the file does not have.
    """
    if train == "all":
        return layers
    kind, _, number = str(train).partition("-")
    if kind == "last" and number.isdecimal() and int(number) > 0:
        return layers[-int(number) :]
    names = [(*each.weights, *each.outputs) for each in layers]
    first = next((at for at, own in enumerate(names) if any(f"{name}.".startswith(f"{train}.") for name in own)), None)
    if first is None or not isinstance(train, str):
        known = [name for own in names for name in own]
        near = difflib.get_close_matches(str(train), known, 3, 0.3) or known[-3:]
        raise ModelError(
            f"{graph.name}: train={train!r}: expected head, all, last-4, or the name of a layer, weight or tensor; "
            f"nearest: {', '.join(near) or 'none'}"
        )
    return layers[first:]
