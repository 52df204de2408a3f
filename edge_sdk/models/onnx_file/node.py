"""The operators of an .onnx file: their inputs, outputs and attributes, read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_file.wire import damaged, fields, put, put_single, single, text_in, whole_numbers

# the fields of the messages
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_F, _ATTRIBUTE_I, _ATTRIBUTE_S, _ATTRIBUTE_T = 1, 2, 3, 4, 5
_ATTRIBUTE_FLOATS, _ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS, _ATTRIBUTE_TYPE = 7, 8, 9, 20
_ATTRIBUTE_LISTS = (_ATTRIBUTE_FLOATS, _ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS)
_ATTRIBUTE_GRAPHS = (6, 11)
_GRAPH_NODE, _GRAPH_OUTPUT, _PORT_NAME = 1, 12, 1


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator."""

    operator: str
    """Its name; behind its domain if that is not ONNX's own."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: memoryview | bytes
    """The NodeProto."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Its attributes that are one number."""
    attributes: Mapping[str, memoryview] = field(default_factory=dict)
    """Its attributes, each as its AttributeProto."""
    tensor: Constant | None = None
    """The constant in its attributes."""
    captured: frozenset[str] = frozenset()
    """The names that graphs in its attributes read from outside."""

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is one number."""
        return self.numbers.get(name, default)

    def text(self, name: str) -> str:
        """Return an attribute that is a string, or "" without it."""
        return text_in(self.attributes.get(name, memoryview(b"")), _ATTRIBUTE_S)

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers."""
        parts = fields(self.attributes[name]) if name in self.attributes else ()
        found = tuple(n for each in parts if each.number == _ATTRIBUTE_INTS for n in whole_numbers(each))
        return found or tuple(default)

    def floats(self, name: str) -> Floats:
        """Return an attribute that is a list of floats: (n,)."""
        parts = [each.content for each in fields(self.attributes.get(name, memoryview(b"")))
                 if each.number == _ATTRIBUTE_FLOATS]  # fmt: skip
        joined = b"".join(parts)
        if len(joined) % 4:
            raise damaged(f"attribute {name!r}: a number is cut off")
        return np.frombuffer(joined, "<f4")

    def class_labels(self) -> tuple[int | str, ...]:
        """Return the class labels of a classifier or ZipMap of ai.onnx.ml, in the order of its scores."""
        for name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints"):
            parts = fields(self.attributes.get(name, memoryview(b"")))
            listed = [each for each in parts if each.number in (_ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS)]
            if listed and listed[0].number == _ATTRIBUTE_STRINGS:
                return tuple(each.text for each in listed)
            if listed:
                return tuple(number for each in listed for number in whole_numbers(each))
        return ()

    def reading(self, tensor: str) -> Node:
        """Return this node with another tensor as its first input."""
        return self._changed(_NODE_INPUT, self.inputs[0], tensor)

    def renamed(self, output: str, to: str) -> Node:
        """Return this node with another name of an output."""
        return self._changed(_NODE_OUTPUT, output, to)

    def with_floats(self, values: Mapping[str, Floats]) -> Node:
        """Return this node with other lists of floats (n,) as attributes."""
        kept = [
            bytes(each.raw)
            for each in fields(memoryview(self.raw))
            if each.number != _NODE_ATTRIBUTE or text_in(each.content, _ATTRIBUTE_NAME) not in values
        ]
        new = {
            name: put(_ATTRIBUTE_NAME, name)
            + put(_ATTRIBUTE_FLOATS, listed.astype("<f4").tobytes())
            + put(_ATTRIBUTE_TYPE, 6)  # a list of floats
            for name, listed in values.items()
        }
        raw = b"".join((*kept, *(put(_NODE_ATTRIBUTE, each) for each in new.values())))
        return replace(self, raw=raw, attributes={**self.attributes, **{k: memoryview(v) for k, v in new.items()}})

    def between(self, inputs: Sequence[str], output: str) -> Node:
        """Return this node with other inputs, and with one output."""
        ends = (_NODE_INPUT, _NODE_OUTPUT)
        kept = [bytes(each.raw) for each in fields(memoryview(self.raw)) if each.number not in ends]
        raw = b"".join((*(put(_NODE_INPUT, name) for name in inputs), put(_NODE_OUTPUT, output), *kept))
        return replace(self, inputs=tuple(inputs), outputs=(output,), raw=raw)

    def giving(self, outputs: Sequence[str]) -> Node:
        """Return this node with more outputs behind those that it has."""
        more = b"".join(put(_NODE_OUTPUT, name) for name in outputs[len(self.outputs) :])
        return replace(self, outputs=tuple(outputs), raw=bytes(self.raw) + more)

    def _changed(self, number: int, name: str, to: str) -> Node:
        """Return this node with another name in a field, inputs or outputs."""
        parts = [
            put(number, to) if each.number == number and each.text == name else bytes(each.raw)
            for each in fields(memoryview(self.raw))
        ]
        inputs, outputs = (
            tuple(to if each == name and number == which else each for each in names)
            for which, names in ((_NODE_INPUT, self.inputs), (_NODE_OUTPUT, self.outputs))
        )
        return replace(self, inputs=inputs, outputs=outputs, raw=b"".join(parts))


def read_node(raw: memoryview, folder: Path | None) -> Node:
    """Read a NodeProto; folder: where constants beside the file lie."""
    inputs, outputs, operator, domain = [], [], "", ""
    numbers: dict[str, float] = {}
    attributes: dict[str, memoryview] = {}
    captured: set[str] = set()
    tensor = None
    for part in fields(raw):
        if part.number == _NODE_INPUT:
            inputs.append(part.text)
        elif part.number == _NODE_OUTPUT:
            outputs.append(part.text)
        elif part.number == _NODE_OPERATOR:
            operator = part.text
        elif part.number == _NODE_DOMAIN:
            domain = part.text
        elif part.number == _NODE_ATTRIBUTE:
            name = text_in(part.content, _ATTRIBUTE_NAME)
            attributes[name] = part.content
            for each in fields(part.content):
                if each.number in _ATTRIBUTE_LISTS:  # of an ensemble of trees, a million numbers: read where needed
                    break
                if each.number == _ATTRIBUTE_F:
                    numbers[name] = single(each.value)
                elif each.number == _ATTRIBUTE_I:
                    numbers[name] = each.whole
                elif each.number == _ATTRIBUTE_T:
                    tensor = Constant(outputs[0] if outputs else name, each.content, folder)
                elif each.number in _ATTRIBUTE_GRAPHS:
                    captured |= _read_inside(each.content)
    known = operator if domain in ("", "ai.onnx") else f"{domain}.{operator}"
    found = Node(known, tuple(inputs), tuple(outputs), raw, numbers, attributes, tensor, frozenset(captured))
    return replace(found, tensor=_listed(found)) if known == "Constant" and tensor is None else found


def _listed(constant: Node) -> Constant | None:
    """Return the tensor of a Constant that is written as a number or a list of numbers, or None for other ones."""
    values: NDArray[Any] | None = None
    if "value_int" in constant.numbers:
        values = np.array(int(constant.numbers["value_int"]), np.int64)
    elif "value_float" in constant.numbers:
        values = np.array(constant.numbers["value_float"], np.float32)
    elif "value_ints" in constant.attributes:
        values = np.array(constant.ints("value_ints"), np.int64)
    elif "value_floats" in constant.attributes:
        values = constant.floats("value_floats")
    name = constant.outputs[0] if constant.outputs else ""
    return None if values is None else Constant(name, tensor_of(name, values), None)


def _read_inside(graph: memoryview) -> set[str]:
    """Return every tensor that the nodes of a graph in an attribute read, its outputs included."""
    names: set[str] = set()
    for part in fields(graph):
        if part.number == _GRAPH_NODE:
            inner = read_node(part.content, None)
            names |= {*inner.inputs, *inner.captured}
        elif part.number == _GRAPH_OUTPUT:
            names.add(text_in(part.content, _PORT_NAME))
    return names


def node(operator: str, inputs: Sequence[str], output: str, **attributes: float | str | Sequence[int]) -> Node:
    """Return a new operator of ONNX's own set, with attributes that are numbers, a text or lists of whole numbers."""
    protos = {name: _attribute(name, value) for name, value in attributes.items()}
    raw = [
        *(put(_NODE_INPUT, name) for name in inputs),
        put(_NODE_OUTPUT, output),
        put(_NODE_OPERATOR, operator),
        *(put(_NODE_ATTRIBUTE, each) for each in protos.values()),
    ]
    numbers = {name: value for name, value in attributes.items() if isinstance(value, int | float)}
    views = {name: memoryview(each) for name, each in protos.items()}
    return Node(operator, tuple(inputs), (output,), b"".join(raw), numbers, views)


def _attribute(name: str, value: float | str | Sequence[int]) -> bytes:
    """Return an AttributeProto; its last field is the type."""
    head = put(_ATTRIBUTE_NAME, name)
    if isinstance(value, int):
        return head + put(_ATTRIBUTE_I, value) + put(_ATTRIBUTE_TYPE, 2)
    if isinstance(value, float):
        return head + put_single(_ATTRIBUTE_F, value) + put(_ATTRIBUTE_TYPE, 1)
    if isinstance(value, str):
        return head + put(_ATTRIBUTE_S, value) + put(_ATTRIBUTE_TYPE, 3)
    return head + b"".join(put(_ATTRIBUTE_INTS, each) for each in value) + put(_ATTRIBUTE_TYPE, 7)
