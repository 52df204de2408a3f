"""The graph of an .onnx file: what it computes, in which order, and the part of it that an output needs.

Each weight becomes a constant of its own, in the order of the net that it came from.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.node import Node, read_node
from edge_sdk.models.onnx_file.tensors import KIND_OF, Constant, as_floats, has_nan, tensor_of
from edge_sdk.models.onnx_file.wire import Field, damaged, fields, put, replaced, text_in

OnnxFile: TypeAlias = "str | PathLike[str] | bytes"
"""The path of a model file, or its bytes."""

IR_VERSION = 8
"""The version of the format that new files say; every ONNX Runtime from 1.12 on reads it."""
LEAST_IR_VERSION = 4
"""Before it, constants had to be listed among the inputs."""
OPSET = 17
"""The operator set of new files."""

# the fields of the messages
_MODEL_IR, _MODEL_DOC, _MODEL_GRAPH, _MODEL_OPSET, _MODEL_PROPS = 1, 6, 7, 8, 14
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_CONSTANT, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SHAPES = 1, 2, 5, 11, 12, 13
_PORT_NAME = 1
_FIRST_SIZE = (2, 1, 2, 1)
"""In a ValueInfoProto: type, tensor, shape, first size."""
_FLOAT_KINDS = (1, 10, 11, 16)
"""The element types float, float16, double and bfloat16."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The content of an .onnx file, with `nodes` in the order of computation."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    inputs: Mapping[str, memoryview | bytes]
    """The inputs without constants, each as its ValueInfoProto."""
    outputs: Mapping[str, memoryview | bytes]
    opsets: Mapping[str, int]
    """The version of each operator set; the key "" is ONNX's own."""
    ir_version: int
    name: str = ""
    """The first words of errors."""
    description: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The file's metadata."""
    kept: tuple[memoryview | bytes, ...] = ()
    """Further fields of the model, such as functions."""
    kept_in_graph: tuple[memoryview | bytes, ...] = ()

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a tensor, or None for an input or a constant."""
        return next((node for node in self.nodes if name in node.outputs), None)

    def constant(self, name: str) -> Constant | None:
        """Return a constant, be it an initializer or a node, or None if the tensor is computed."""
        if name in self.constants:
            return self.constants[name]
        node = self.producer(name)
        return node.tensor if node is not None and node.operator == "Constant" else None

    def check_name(self, name: str, what: str) -> None:
        """Raise ModelError with the nearest names unless the file has such an output, or such a tensor as features."""
        known = [output for node in self.nodes if node.operator != "Constant" for output in node.outputs if output]
        if what == "output":
            known = [*self.outputs]
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.3) or known[-3:]
            kind = "output" if what == "output" else "tensor"
            raise ModelError(
                f"{self.name}: {what} {name!r}: the file has no such {kind}; nearest: {', '.join(near) or 'none'}"
            )

    def needs(self, output: str, tensor: str) -> bool:
        """Return whether a tensor is computed from another one."""
        part = self.up_to([output])
        return any(tensor in node.inputs or tensor in node.captured for node in part.nodes)

    def parameters(self) -> int:
        """Return the number of floating-point constants."""
        held = [*self.constants.values(), *(node.tensor for node in self.nodes if node.tensor is not None)]
        return sum(values.size for each in held if (values := as_floats(each.values())) is not None)

    def check_numbers(self) -> None:
        """Raise ModelError for a constant with NaN."""
        held = [*self.constants.values(), *(node.tensor for node in self.nodes if node.tensor is not None)]
        bad = next((tensor.name for tensor in held if has_nan(tensor)), None)
        if bad is not None:
            raise ModelError(f"the weights {bad!r} hold NaN, as after a training that diverged: export a sound model")

    def score_outputs(self, output: str | None = None) -> dict[str, str]:
        """Return the tensor of floating-point numbers behind each output that has one; output: of this one alone.

        Labels beside scores are passed over; of a ZipMap, which gives a sequence of maps, this is what it takes.
        Raises ModelError where none is left.
        """
        if output is not None:
            self.check_name(output, "output")
        found: dict[str, str] = {}
        for name, raw in self.outputs.items():
            maker = self.producer(name)
            if output not in (None, name):
                continue
            if maker is not None and maker.operator == "ai.onnx.ml.ZipMap" and maker.inputs:
                found[name] = maker.inputs[0]
            elif _is_float(raw):
                found[name] = name
        if not found:
            listed = output or ", ".join(self.outputs) or "none"
            raise ModelError(f"{self.name}: no output holds floating-point numbers, in a tensor: {listed}")
        return found

    def up_to(self, outputs: Sequence[str]) -> Graph:
        """Return the part that some tensors need, with these as its outputs, in this order."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted |= {*node.inputs, *node.captured}
        return replace(
            self,
            nodes=tuple(reversed(kept)),
            constants={name: tensor for name, tensor in self.constants.items() if name in wanted},
            inputs={name: port for name, port in self.inputs.items() if name in wanted} or self.inputs,
            outputs={name: self.outputs.get(name, port(name)) for name in outputs},
        )

    def with_free_batch(self) -> Graph:
        """Return the graph with inputs whose first size is open; whether it computes the same must be tried."""
        free = {name: replaced(memoryview(raw), _FIRST_SIZE, put(2, "n")) for name, raw in self.inputs.items()}
        return replace(self, inputs=free, outputs={name: port(name) for name in self.outputs})

    def content(self) -> bytes:
        """Return the graph as a file that holds all its constants."""
        graph = [
            *(put(_GRAPH_NODE, node.raw) for node in self.nodes),
            *(put(_GRAPH_CONSTANT, tensor.inlined()) for tensor in self.constants.values()),
            *(put(_GRAPH_INPUT, raw) for raw in self.inputs.values()),
            *(put(_GRAPH_OUTPUT, raw) for raw in self.outputs.values()),
            *self.kept_in_graph,
        ]
        parts = [
            put(_MODEL_IR, max(self.ir_version, LEAST_IR_VERSION)),
            *(put(_MODEL_OPSET, put(1, domain) + put(2, version)) for domain, version in self.opsets.items()),
            *(put(_MODEL_PROPS, put(1, key) + put(2, value)) for key, value in self.notes.items()),
            *((put(_MODEL_DOC, self.description),) if self.description else ()),
            *self.kept,
            put(_MODEL_GRAPH, b"".join(graph)),
        ]
        return b"".join(parts)


def read_graph(file: OnnxFile, name: str) -> Graph:
    """Read a model from a path or from bytes.  Raises ModelError, which begins with `name`, for anything else."""
    folder = None if isinstance(file, bytes) else Path(fspath(file)).parent
    try:
        content = file if isinstance(file, bytes) else Path(fspath(file)).read_bytes()
        graph = _graph(memoryview(content), folder)
        graph.check_numbers()
    except OSError as error:
        where = fspath(error.filename or "")
        label = name if name == where else f"{name}: {where}"
        raise ModelError(f"{label} cannot be read: {error.strerror or error}") from error
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    return replace(graph, name=name)


def _graph(content: memoryview, folder: Path | None) -> Graph:
    opsets: dict[str, int] = {}
    notes: dict[str, str] = {}
    kept: list[memoryview] = []
    body: list[Field] = []
    ir_version, description = 0, ""
    for part in fields(content):
        if part.number == _MODEL_IR:
            ir_version = part.whole
        elif part.number == _MODEL_DOC:
            description = part.text
        elif part.number == _MODEL_GRAPH:
            body += fields(part.content)
        elif part.number == _MODEL_OPSET:
            domain, version = _pair(part)
            opsets["" if domain == "ai.onnx" else str(domain)] = int(version or 0)
        elif part.number == _MODEL_PROPS:
            key, value = _pair(part)
            notes[str(key)] = str(value)
        else:
            kept.append(part.raw)
    if not body:
        raise damaged("it holds no graph")
    if not opsets:
        raise ModelError("the file names no operator set (opset_import): export it again with one, such as opset 17")
    return replace(_body(body, folder), opsets=opsets, ir_version=ir_version, description=description,
                   notes=notes, kept=tuple(kept))  # fmt: skip


def _pair(part: Field) -> tuple[str, str | int]:
    """Return the fields 1 and 2 of a message, a string and a string or number."""
    first, second = "", ""  # type: str, str | int
    for each in fields(part.content):
        if each.number == 1:
            first = each.text
        elif each.number == 2:
            second = each.whole if isinstance(each.value, int) else each.text
    return first, second


def _body(parts: Iterable[Field], folder: Path | None) -> Graph:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    inputs: dict[str, memoryview | bytes] = {}
    outputs: dict[str, memoryview | bytes] = {}
    kept: list[memoryview] = []
    for part in parts:
        if part.number == _GRAPH_NODE:
            nodes.append(read_node(part.content, folder))
        elif part.number == _GRAPH_CONSTANT:
            tensor = _tensor(part.content, folder)
            constants[tensor.name] = tensor
        elif part.number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
            ports = inputs if part.number == _GRAPH_INPUT else outputs
            ports[text_in(part.content, _PORT_NAME)] = part.content
        elif part.number != _GRAPH_SHAPES:  # shapes between nodes: the runtime finds them, also after a change
            kept.append(part.raw)
    inputs = {name: raw for name, raw in inputs.items() if name not in constants}
    return Graph(tuple(nodes), constants, inputs, outputs, {}, 0, kept_in_graph=tuple(kept))


def _tensor(raw: memoryview, folder: Path | None) -> Constant:
    return Constant(text_in(raw, 8), raw, folder)


def _is_float(port: memoryview | bytes) -> bool:
    """Return whether an output is a tensor that is not known to hold other things than floating-point numbers."""
    kinds = [n for each in inside(port, 2) for tensor in inside(each, 1) for n in numbers(tensor, 1)]
    others = [each for each in inside(port, 2) if not inside(each, 1)]  # a sequence or a map
    return not others and (not kinds or kinds[0] in _FLOAT_KINDS)


def inside(message: memoryview | bytes, number: int) -> list[memoryview]:
    """Return the messages in a field of a message."""
    return [part.content for part in fields(memoryview(message)) if part.number == number]


def numbers(message: memoryview, number: int) -> list[int]:
    """Return the whole numbers in a field of a message."""
    return [part.whole for part in fields(message) if part.number == number]


def port(name: str) -> bytes:
    """Return an input or output that declares only its name; the runtime infers type and shape."""
    return put(_PORT_NAME, name)


def rows_port(name: str, *shape: int) -> bytes:
    """Return an input or output f4 (n, *shape)."""
    dims = [put(1, put(2, "n")), *(put(1, put(1, size)) for size in shape)]
    return put(_PORT_NAME, name) + put(2, put(1, put(1, 1) + put(2, b"".join(dims))))


def tensor_port(name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> bytes:
    """Return an input or output of one type and shape."""
    dims = b"".join(put(1, put(1, size)) for size in shape)
    return put(_PORT_NAME, name) + put(2, put(1, put(1, KIND_OF[dtype]) + put(2, dims)))


def samples_graph(name: str, shape: Sequence[int]) -> Graph:
    """Return a new graph that hands on its input, samples f4 (n, *shape)."""
    return Graph((), {}, {name: rows_port(name, *shape)}, {}, {"": OPSET}, IR_VERSION)


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
