"""The part of a file in front of its last layer, when its weights learn: forward, backward, and what that takes.

All weights that learn lie in one flat array, which sessions read in place; so do their gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from edge_sdk.arrays import AnyArray, Floats, Ints
from edge_sdk.errors import ModelError
from edge_sdk.models.free_memory import free_memory_bytes
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.onnx_file.graph import Graph, read_graph, tensor_port
from edge_sdk.models.onnx_file.head import HeadWeights
from edge_sdk.models.onnx_file.inputs import Inputs
from edge_sdk.models.onnx_training.engine import GraphEngine, GraphPasses, GraphStep, flops_of, tensors_of, to_its_end
from edge_sdk.models.onnx_training.gradient import (
    DIRECTION,
    TrainingGraph,
    directional_graph,
    learnable,
    moving,
    training_graph,
)
from edge_sdk.models.onnx_training.recurrent import LEFT_WHOLE
from edge_sdk.models.onnx_training.rewrites import trainable
from edge_sdk.models.onnx_training.rules import NotDifferentiable
from edge_sdk.models.onnx_training.weights import WeightLayer, chosen_layers, layers_of, of_norms
from edge_sdk.models.trained_body import ArrangedBody, Arrangement, Back, FlatPart, WeightPiece, body_pieces, views_of

_T = TypeVar("_T")
LEAST_OPSET = 13
"""Before it, Softmax and others meant something else."""
_SIZES = 3
"""The sizes of mini-batches whose passes are kept ready."""
SHARE = 0.5
"""The part of the free memory that a pass may take."""
_AT_ONCE = 100
"""The operators up to which both passes are one session; with more, two are as quick, and each is opened sooner."""
_CHUNK, _CHUNK_FLOPS = 64, 400_000_000
"""The maximum number of samples of an inference pass, and about the maximum of operations, unless one sample takes
more."""


@dataclass(frozen=True, slots=True)
class Learning:
    """The part of a body that learns, for reports."""

    layers: int
    """The layers of the file, its last one included."""
    learning: int
    blocked: str
    """The operator before which nothing can learn; "": none."""

    def remark(self) -> str:
        """Return it in one line."""
        frozen = self.layers - self.learning
        held = f"; {self.blocked} freezes what lies before it" if self.blocked and frozen else ""
        return f"learns: {self.learning} of {self.layers} layers{held}"


class GraphBody(FlatPart):
    """A function from samples (n, c, h, w) to features (n, d), some of whose weights learn."""

    def __init__(self, graph: Graph, inputs: Inputs, engine: GraphEngine, *, train: str) -> None:
        """graph: gives the features alone, by constants of its own (`own_constants`); inputs: makes its inputs.

        Raises ModelError where nothing of it can learn, and where the memory does not hold one sample.
        """
        if graph.opsets.get("", LEAST_OPSET) < LEAST_OPSET:
            raise ModelError(
                f"{graph.name}: opset {graph.opsets['']}: training its layers needs {LEAST_OPSET} or later: "
                "export it again"
            )
        if inputs.batch > 1:
            raise ModelError(
                f"{graph.name}: the file takes batches of {inputs.batch} alone: to train all its layers, export it "
                "with a dynamic batch"
            )
        self._inputs, self._engine, self.name = inputs, engine, graph.name
        sample = np.zeros((1, *(inputs.sample_shape or ())), np.float32)
        (self._output,) = graph.outputs
        self.constants = frozenset(graph.constants)
        """The names of all its constants."""
        self._graph = graph if inputs.most else graph.with_free_batch()
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of each weight that learns, by its name in the file."""
        tensors = self._traced(sample, {})
        self.width = tensors[self._output].size
        """The width of the features."""
        self.after_relu = _made_by(graph, self._output) == "Relu"
        """Whether the features are never negative."""
        self.flops, self.calls = flops_of(graph, tensors), len(graph.nodes)
        layers, asked = self._asked(tensors, train)
        self._digest = hashlib.sha256(_without(graph, asked).content()).digest()
        self._graph = trainable(self._graph, {name: array.shape for name, array in tensors.items()}, asked)
        tensors = self._traced(sample, {})
        names, self.report = self._learning(tensors, layers, asked, train)
        of_samples = moving(self._graph, frozenset(self._graph.inputs))
        self.written_bytes = sum(array.nbytes for name, array in tensors.items() if name in of_samples)
        """The bytes that the operators write for one sample."""
        arrays = {name: tensors[name] for name in names}
        norms = of_norms(graph)
        decayed = [np.full(a.size, a.ndim > 1 and name not in norms) for name, a in arrays.items()]
        super().__init__(np.concatenate([a.ravel() for a in arrays.values()]), np.concatenate(decayed))
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self._graph = self._with_weights_as_inputs()
        self._slopes: Floats = np.zeros_like(self.values)
        self._ready: dict[int, GraphPasses] = {}
        self._steps: dict[int, GraphStep | None] = {}
        self._to_samples: dict[int, tuple[GraphPasses, Floats]] = {}
        """The passes for slopes of samples, and where those are written, by the number of samples."""
        self.back_to_samples = self._has_rules(tensors)
        """Whether `to_samples` can: samples are pictures, and each operator that they pass has a rule."""
        self._infer = engine.function(self._graph)
        self.room()  # raises where the memory does not suffice

    # -- passes -----------------------------------------------------------------------------------------------------

    def rows(self, x: Floats) -> Floats:
        """Return the features: (n, c, h, w) -> (n, d)."""
        self._inputs.check(x)
        out = np.empty((len(x), self.width), np.float32)
        step = self.together
        for begin in range(0, len(x), step):
            part = x[begin : begin + step]
            (found,) = self._infer({**self._inputs.feed(part), **self._views(self.values)})
            out[begin : begin + step] = found.reshape(len(part), -1)
        return out

    @property
    def together(self) -> int:
        """How many samples `rows` computes at once: fewer of a large net, because a device stops between them."""
        return max(1, min(self.most, _CHUNK, _CHUNK_FLOPS // max(self.flops, 1)))

    def forward(self, x: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
        """Return the features (b, d) of a mini-batch, and what makes slopes of the weights (p,) of theirs (b, d).

        Where the memory does not hold the activations of all samples, parts of the mini-batch follow each other; the
        sum of their slopes is that of the whole.
        """
        self._inputs.check(x)
        return self._in_parts(x, self._ready, self._one_forward, self._summed)

    def to_samples(self, x: Floats) -> tuple[Floats, Back]:
        """Return the features (b, d) of samples (b, c, h, w), and what makes slopes of the samples of theirs."""
        self._inputs.check(x)
        return self._in_parts(x, self._to_samples, self._one_to_samples, lambda parts: np.concatenate([*parts]))

    def _in_parts(
        self,
        x: Floats,
        ready: Collection[int],
        take: Callable[[Floats], tuple[Floats, Back]],
        together: Callable[[Iterator[Floats]], Floats],
    ) -> tuple[Floats, Back]:
        """Return what `take` gives of samples; ready: the numbers of samples for which memory is known to be there.

        together: makes one of the slopes of the parts.
        """
        parts = [x] if len(x) in ready else np.array_split(x, -(-len(x) // self._fitting()))
        if len(parts) == 1:
            return take(x)

        def back(slopes: Floats) -> Floats:
            each = zip(parts, np.array_split(slopes, len(parts)), strict=True)
            return together(take(part)[1](slope) for part, slope in each)

        return self.rows(x), back

    def _one_forward(self, x: Floats) -> tuple[Floats, Back]:
        passes = self._passes(x)
        found = passes.forward(self._inputs.feed(x))

        def back(slopes: Floats) -> Floats:
            passes.backward(slopes.reshape(found.shape))
            return self._slopes

        return found.reshape(len(x), -1), back

    def _summed(self, slopes: Iterator[Floats]) -> Floats:
        total = np.zeros_like(self.values)
        for each in slopes:
            total += each
        return total

    def _one_to_samples(self, x: Floats) -> tuple[Floats, Back]:
        if len(x) not in self._to_samples:
            to_its_end(self.preparing_samples(x))
        passes, place = self._to_samples[len(x)]
        found = passes.forward(self._inputs.feed(x))

        def back(slopes: Floats) -> Floats:
            passes.backward(slopes.reshape(found.shape))
            return self._inputs.back(place)

        return found.reshape(len(x), -1), back

    def at_once(self, x: Floats, labels: Ints, rows: Floats) -> tuple[Floats, Floats, Floats] | None:
        """Return logits (b, k), slopes of a linear head's rows and of the weights (p,), of the mean cross-entropy.

        They hold until the next pass.  None: the engine gains nothing by it, or the mini-batch does not fit at once.
        """
        self._inputs.check(x)
        if self.calls > _AT_ONCE:
            return None
        if len(x) not in self._steps:
            if len(x) > self._fitting():
                return None
            self._keep(self._steps, len(x), self._engine.step(self._made(x), *self._places(), len(rows)))
        step = self._steps[len(x)]
        return None if step is None else (*step.run(self._inputs.feed(x), labels, rows), self._slopes)

    def directional(self, x: Floats, direction: Floats) -> Floats:
        """Return the derivative of the features in a direction (p,) of the weights: (n, c, h, w) -> (n, d).

        Raises ModelError where the graph of the derivative cannot be made.
        """
        self._inputs.check(x)
        parts = np.array_split(x, -(-len(x) // self._fitting()))
        return np.concatenate([self._derivative(part, direction) for part in parts])

    def _derivative(self, x: Floats, direction: Floats) -> Floats:
        made = self._made(x)
        try:
            graph = directional_graph(made)
        except NotDifferentiable as error:
            raise ModelError(
                f"{self.name}: no derivative in a direction of the weights: {error} has no rule"
            ) from error
        given: dict[str, AnyArray] = {**self._inputs.feed(x), **self._views(self.values)}
        kept = self._engine.function(made.forward)(given)
        given |= dict(zip(made.forward.outputs, kept, strict=True))
        given |= {DIRECTION + name: part for name, part in self._views(direction).items()}
        (found,) = self._engine.function(graph)({name: given[name] for name in graph.inputs})
        return np.asarray(found, np.float32).reshape(len(x), -1)

    def preparing(self, x: Floats, classes: int | None) -> Iterator[None]:
        """Make what a step on mini-batches like x needs, with pauses at which a device may stop.

        classes: of a step that computes all at once, or None for one in passes.
        """
        if self.calls > _AT_ONCE:
            classes = None
        kept: Collection[int] = self._ready if classes is None else self._steps
        if len(x) in kept or len(x) > self._fitting():
            return
        yield
        tensors = self._traced(x, self._views(self.values))
        yield
        made = self._differentiated(tensors)
        yield
        if classes is None:
            self._keep(self._ready, len(x), (yield from self._engine.passes(made, *self._places())))
        else:
            self._keep(self._steps, len(x), self._engine.step(made, *self._places(), classes))
        yield

    def preparing_samples(self, x: Floats) -> Generator[None, None, None]:
        """Make what `to_samples` needs for samples like x, with pauses at which a device may stop."""
        if len(x) in self._to_samples:
            return
        port = self._inputs.picture_port
        tensors = self._traced(x, self._views(self.values))
        yield
        made = self._differentiated(tensors, [port])
        yield
        place = np.zeros(tensors[port].shape, np.float32)
        passes = yield from self._engine.passes(made, self._views(self.values), {port: place})
        self._keep(self._to_samples, len(x), (passes, place))
        yield

    @staticmethod
    def _keep(kept: dict[int, _T], size: int, made: _T) -> None:
        """Keep what the last few sizes of mini-batches need."""
        kept[size] = made
        while len(kept) > _SIZES:
            kept.pop(next(iter(kept)))

    def _passes(self, x: Floats) -> GraphPasses:
        """Return the passes for mini-batches of this size."""
        found = self._ready.pop(len(x), None)
        if found is None:
            found = to_its_end(self._engine.passes(self._made(x), *self._places()))
        self._keep(self._ready, len(x), found)
        return found

    def _made(self, x: Floats) -> TrainingGraph:
        """Return the training graph for mini-batches of this size."""
        return self._differentiated(self._traced(x, self._views(self.values)))

    def _differentiated(self, tensors: Mapping[str, AnyArray], towards: Sequence[str] = ()) -> TrainingGraph:
        """Return the training graph for mini-batches with these tensors; towards: what has slopes, if not weights."""
        fixed = self._fixed(tensors, self.shapes)
        return training_graph(self._graph, self._output, towards or [*self.shapes], tensors, fixed)

    def _places(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return where each weight lies, and where its slope does."""
        return self._views(self.values), self._views(self._slopes)

    def _fitting(self) -> int:
        """Return how many samples a pass may take at once.  Raises ModelError if memory lacks room for one."""
        room = self.room()
        return self.most if room is None else min(self.most, room)

    def room(self) -> int | None:
        """Return for how many samples the free memory suffices, or None if the system does not say how much is free.

        Raises ModelError where it does not suffice for one.
        """
        free = free_memory_bytes()
        if free is None:
            return None
        moments = 0 if self._optimiser else 2 * self.values.nbytes  # those of Adam, which the first step makes
        room = int(max(0, free - moments) * SHARE) // self.written_bytes
        if not room:
            raise ModelError(
                f"{self.name}: training takes {(self.written_bytes + moments) / 2**20:,.0f} MiB for one sample, and "
                f"{free / 2**20:,.0f} MiB are free: train fewer layers (train='last-4'), or smaller samples"
            )
        return room

    # -- the graph --------------------------------------------------------------------------------------------------

    def arrays_by_name(self) -> dict[str, Floats]:
        """Return a copy of each weight, by its name in the file."""
        return {name: view.copy() for name, view in self._views(self.values).items()}

    def frozen_digest(self) -> bytes:
        """Return what identifies all but the weights that learn: 32 bytes."""
        return self._digest

    def separate(self) -> None:
        """Give the copy its own weights, without moments; the engine is shared."""
        super().separate()
        self._slopes, self._ready, self._steps, self._to_samples = np.zeros_like(self.values), {}, {}, {}

    def _views(self, flat: Floats) -> dict[str, Floats]:
        """Return each weight's part of a flat array (p,)."""
        return views_of(flat, self.shapes)

    def _with_weights_as_inputs(self) -> Graph:
        """Return the graph without the values of the weights, which take up no memory in it."""
        ports = {name: tensor_port(name, shape, np.dtype(np.float32)) for name, shape in self.shapes.items()}
        whole = replace(_without(self._graph, ports), inputs={**self._graph.inputs, **ports})
        return read_graph(whole.content(), self.name)

    def _traced(self, x: Floats, weights: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return every tensor of the pass of some samples (n, c, h, w), constants too.

        Of what the inputs have a part in, shape and type alone hold: a pass may take long, and much memory.
        """
        return tensors_of(self._graph, self._engine, {**self._inputs.feed(x), **weights})

    def _fixed(self, tensors: Mapping[str, AnyArray], names: Collection[str]) -> dict[str, AnyArray]:
        """Return the tensors that neither these weights nor samples have a part in."""
        changing = moving(self._graph, frozenset([*names, *self._graph.inputs]))
        return {name: array for name, array in tensors.items() if name not in changing}

    def _asked(self, tensors: Mapping[str, AnyArray], train: str) -> tuple[Sequence[WeightLayer], list[str]]:
        """Return the layers of the file, and the weights that `train` names, in its order.  Raises ModelError."""
        layers = [*layers_of(self._graph), WeightLayer("head", (), ())]
        wanted = {name for each in chosen_layers(self._graph, layers, train) for name in each.weights}
        small = sorted(name for name in wanted if name in tensors and tensors[name].dtype in (np.float16, np.float64))
        if small:
            raise ModelError(
                f"{self.name}: its weights are {tensors[small[0]].dtype} ({small[0]}): to train all layers, export "
                "them as float32; train='head' takes them as they are"
            )
        named = [name for name in self._graph.constants if name in wanted]
        return layers, [name for name in named if tensors[name].dtype == np.float32]

    def _has_rules(self, tensors: Mapping[str, AnyArray]) -> bool:
        """Return whether the features can be differentiated with respect to the samples."""
        port = self._inputs.picture_port
        if not port:
            return False
        try:
            self._differentiated(tensors, [port])
        except NotDifferentiable:
            return False
        return True

    def _learning(
        self, tensors: Mapping[str, AnyArray], layers: Sequence[WeightLayer], asked: Sequence[str], train: str
    ) -> tuple[tuple[str, ...], Learning]:
        """Return the names of the weights that learn, in the file's order, and what to say.  Raises ModelError."""
        stuck, reason = list[str](), ""
        while True:
            names, blocked = learnable(self._graph, self._output, asked, stuck)
            try:
                training_graph(self._graph, self._output, names, tensors, self._fixed(tensors, names))
                break
            except NotDifferentiable as error:
                stuck, reason = [*stuck, error.tensor], str(error)
        blocked = LEFT_WHOLE.get(blocked, blocked)
        if not names:
            why = f": {reason or blocked} freezes them" if blocked else ""
            raise ModelError(
                f"{self.name}: no layer before the last one can learn (train={train!r}){why}: use train='head'"
            )
        count = sum(bool(set(each.weights) & {*names}) or each.operator == "head" for each in layers)
        return names, Learning(len(layers), count, reason or blocked)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape (c, h, w) of a sample, or () if the adapter decides."""
        return self._inputs.sample_shape or ()

    @property
    def engine(self) -> GraphEngine:
        """What computes its passes."""
        return self._engine

    @cached_property
    def most(self) -> int:
        """The maximum number of samples in one pass, because a file may contain its batch size in many places.

        It is determined at the first use, because with large samples the necessary passes take long.
        """
        if self._inputs.most:
            return self._inputs.most
        sample = np.zeros(self._inputs.sample_shape or (), np.float32)
        two = np.stack([sample, np.random.default_rng(0).integers(0, 2, sample.shape).astype(np.float32)])
        weights = self._views(self.values)
        try:
            together = self._infer({**self._inputs.feed(two), **weights})[0].reshape(2, -1)
            alone = [self._infer({**self._inputs.feed(each[None]), **weights})[0].ravel() for each in two]
        except (ModelError, ValueError):
            return 1
        return 2**31 if np.allclose(together, alone, rtol=1e-3, atol=1e-4) else 1


def arranged(
    body: GraphBody,
    head: LinearHead,
    held: HeadWeights | None,
    order: Sequence[str],
    last: Collection[str] = (),
) -> ArrangedBody[GraphBody]:
    """Return a body, with its weights and its head's in the order of the net that was exported, if the file shows it.

    held: the file's constants that are the head.  order: of all constants of the file.  last: those that hold numbers
    of its last layer.  Raises ModelError where the body uses one of them, too: one weight would become two.
    """
    if shared := body.constants.intersection(last):
        raise ModelError(
            f"{body.name}: its last layer shares the weights {min(shared)!r} with an earlier one: use train='head'"
        )

    def piece(name: str, shape: tuple[int, ...], places: Ints) -> WeightPiece:
        return WeightPiece(name=name, shape=shape, head=True, places=places.ravel())

    at = np.arange(head.rows.size).reshape(head.rows.shape)  # (k, d + 1), the bias as last column
    pieces = {each.name: each for each in body_pieces(body.shapes)}
    scale = np.array([at.size])
    cosine = head.values().size > at.size
    module = "" if held is None else held.weight.removesuffix("weight")
    if held is None or (cosine and (body.after_relu or not module.endswith("."))):  # torch drops a ReLU before it
        rows = [piece(head.kind, at.shape, at), *([piece("scale", (), scale)] if cosine else [])]
        return ArrangedBody(body, Arrangement([*pieces.values(), *rows]))
    if not cosine:
        weight = at[:, :-1].T if held.turned else at[:, :-1]
        pieces[held.weight] = piece(held.weight, weight.shape, weight)
        pieces[held.bias] = piece(held.bias, (len(at),), at[:, -1])
        return ArrangedBody(body, Arrangement([pieces[name] for name in order if name in pieces]))
    prefix = f"{module}1."  # as torch's layer is called behind the one that divides by the length
    pieces[held.weight] = piece(f"{prefix}weight", at[:, :-1].shape, at[:, :-1])
    pieces[held.bias] = piece(f"{prefix}bias", (len(at),), at[:, -1])
    found = [pieces[name] for name in order if name in pieces]
    found.insert(found.index(pieces[held.bias]) + 1, piece(f"{prefix}scale", (), scale))
    return ArrangedBody(body, Arrangement(found))


def _without(graph: Graph, names: Collection[str]) -> Graph:
    """Return a graph that lacks some constants."""
    return replace(graph, constants={name: each for name, each in graph.constants.items() if name not in names})


def _made_by(graph: Graph, tensor: str) -> str:
    """Return the operator that computed the numbers of a tensor, or "" for an input."""
    maker = graph.producer(tensor)
    while maker is not None and maker.operator in ("Cast", "Flatten", "Reshape", "Identity", "Dropout"):
        maker = graph.producer(maker.inputs[0])
    return "" if maker is None else maker.operator
