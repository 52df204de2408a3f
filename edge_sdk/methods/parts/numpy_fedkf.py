"""FedKF's data-free distillation without torch: the generator as a graph, computed as the model's own is.

    c5   generator   one step of Adam on L_IE + lambda_1 L_CE + lambda_2 L_A, through the teacher; FedKF eq. 1 to 4
    c6   model       its loss has gamma KL(teacher(x_G) || f(x_G)), x_G made of the same noise and held constant; eq. 5

The teacher is a copy of the model with the teacher's weights; the samples' slopes lead from it to the generator.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import StoreError
from edge_sdk.methods.parts.fedkf_term import (
    LEAKY,
    NORM_FLOORS,
    NORMS,
    WIDTHS,
    DataFree,
    Plan,
    drawn_noise,
    extra_flops_of,
    first_weights,
    is_picture,
    looks_of,
    noise_draws,
    warn_of_size,
)
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_forms import FormHost, OwnForm
from edge_sdk.models.onnx_file.graph import IR_VERSION, OPSET, Graph, port, rows_port, tensor_port
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_training.body import GraphBody
from edge_sdk.models.onnx_training.engine import GraphEngine, GraphPasses, flops_of, tensors_of, to_its_end
from edge_sdk.models.onnx_training.gradient import training_graph
from edge_sdk.models.trained_body import FlatPart, TrainedBody, views_of
from edge_sdk.objectives import Optim, Seen, needed
from edge_sdk.objectives.optim import Part

_NOISE, _LOW, _SPAN, _MADE = "noise", "low", "span", "made"
"""The inputs of the graph, and its output."""


class _Layers:
    """Lists the operators of a generator."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}

    def add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        """Add an operator; return its output."""
        output = f"{len(self.nodes)}/{operator}"
        self.nodes.append(node(operator, inputs, output, **attributes))
        return output

    def constant(self, values: NDArray[Any]) -> str:
        """Return the name of a new constant."""
        name = f"constant/{len(self.constants)}"
        self.constants[name] = Constant(name, tensor_of(name, values), None)
        return name

    def shaped(self, x: str, *shape: int) -> str:
        """Reshape a tensor."""
        return self.add("Reshape", [x, self.constant(np.array(shape, np.int64))])

    def doubled(self, x: str) -> str:
        """Repeat each number of the maps twice along both sides."""
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.add("Resize", [x, "", scales], **how)

    def normalised(self, x: str, layer: str, shape: tuple[int, int, int], floor: float) -> str:
        """Bring each channel to mean 0 and deviation 1 over the batch: (b, c, h, w) as one sample (1, c, b h w)."""
        flat = self.shaped(self.add("Transpose", [x], perm=[1, 0, 2, 3]), 1, shape[0], -1)
        unit = self.add("InstanceNormalization", [flat, f"{layer}.weight", f"{layer}.bias"], epsilon=floor)
        return self.add("Transpose", [self.shaped(unit, shape[0], -1, *shape[1:])], perm=[1, 0, 2, 3])

    def convolved(self, x: str, layer: str) -> str:
        """Convolve with a kernel of 3 x 3, with the same sides."""
        return self.add("Conv", [x, f"{layer}.weight", f"{layer}.bias"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def generator_graph(plan: Plan) -> Graph:
    """Return the graph of a generator: noise (b, z) -> pictures (b, c, h, w) from `low` on, in a range of `span`.

    Its weights are inputs.  The layers are those of torch_fedkf.Generator.
    """
    to, (first, second, third), (_, rows, columns) = _Layers(), WIDTHS[plan.size], plan.first_map
    norms = zip(NORMS, (first, second, third), NORM_FLOORS, strict=True)
    sides = [(2 * rows, 2 * columns), (2 * rows, 2 * columns), (4 * rows, 4 * columns)]
    how = [(name, (c, *side), floor) for (name, c, floor), side in zip(norms, sides, strict=True)]
    x = to.add("Gemm", [_NOISE, "layers.0.weight", "layers.0.bias"], transB=1)
    x = to.normalised(to.doubled(to.shaped(x, -1, first, rows, columns)), *how[0])
    x = to.add("LeakyRelu", [to.normalised(to.convolved(x, "layers.4"), *how[1])], alpha=LEAKY)
    x = to.add("LeakyRelu", [to.normalised(to.convolved(to.doubled(x), "layers.8"), *how[2])], alpha=LEAKY)
    x = to.add("Sigmoid", [to.convolved(x, "layers.11")])
    if (4 * rows, 4 * columns) != plan.shape[1:]:
        ends = [to.constant(np.array(each, np.int64)) for each in ((0, 0), plan.shape[1:], (2, 3))]
        x = to.add("Slice", [x, *ends])
    to.nodes.append(node("Add", [_LOW, to.add("Mul", [_SPAN, x])], _MADE))
    shapes = {**plan.arrays, _LOW: (1, plan.shape[0], 1, 1), _SPAN: (1, plan.shape[0], 1, 1)}
    inputs: dict[str, memoryview | bytes] = {
        name: tensor_port(name, shape, np.dtype(np.float32)) for name, shape in shapes.items()
    }
    inputs[_NOISE] = rows_port(_NOISE, plan.noise_dim)
    outputs = {_MADE: port(_MADE)}
    return Graph(tuple(to.nodes), to.constants, inputs, outputs, {"": OPSET}, IR_VERSION, "generator")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """The passes of one number of samples."""

    passes: GraphPasses
    count: int
    flops: int
    """Of one forward pass of a sample."""


class GraphGenerator(FlatPart):
    """A generator with its optimiser, computed by the engine of the model."""

    def __init__(self, plan: Plan, rate: float, seed: int, engine: GraphEngine) -> None:
        """Make a new generator from the seed.  Raises ModelError for samples that are not pictures."""
        plan.check()
        drawn = first_weights(plan, seed)
        super().__init__(
            np.concatenate([each.ravel() for each in drawn.values()]),
            np.zeros(sum(each.size for each in drawn.values()), np.bool_),
        )
        self.plan, self._engine = plan, engine
        self.rate = rate
        self._optim = Optim(kind="adam", learning_rate=rate)
        self._slopes = np.zeros_like(self.values)
        self._made: _Made | None = None

    @property
    def flops_per_sample(self) -> int:
        """The operations of one forward pass."""
        return self._made.flops if self._made else 0

    def preparing(self, count: int) -> Generator[None, None, None]:
        """Make the passes for a number of samples, with pauses at which a device may stop."""
        if self._made is not None and self._made.count == count:
            return
        graph, c = generator_graph(self.plan), self.plan.shape[0]
        weights, ones = views_of(self.values, self.plan.arrays), np.ones((1, c, 1, 1), np.float32)
        noise = np.zeros((count, self.plan.noise_dim), np.float32)
        tensors = tensors_of(graph, self._engine, {_NOISE: noise, _LOW: ones, _SPAN: ones, **weights})
        yield
        fixed = {name: tensors[name] for name in graph.constants}
        made = training_graph(graph, _MADE, [*self.plan.arrays], tensors, fixed)
        yield
        passes = yield from self._engine.passes(made, weights, views_of(self._slopes, self.plan.arrays))
        self._made = _Made(passes, count, flops_of(graph, tensors) // count)
        yield

    def samples(self, noise: Floats, low: Floats, span: Floats) -> Floats:
        """Return samples in a range: noise (b, z), low and span (1, c, 1, 1) -> (b, c, h, w), a copy."""
        to_its_end(self.preparing(len(noise)))
        found: Floats = self._passes.forward({_NOISE: noise, _LOW: low, _SPAN: span}).copy()
        return found

    def learn(self, slopes: Floats) -> None:
        """Take one step of Adam down the slopes (b, c, h, w) of the samples that were made last."""
        self._passes.backward(slopes)
        self.step(self._slopes, self._optim)

    @property
    def _passes(self) -> GraphPasses:
        return needed(self._made, "samples are made before slopes come back").passes


_PREFIX = "generator."
_ABOUT, _RATE, _PART = f"{_PREFIX}about", f"{_PREFIX}rate", f"{_PREFIX}part."
_SIZES = tuple(sorted(WIDTHS))


class NumpyImitation(OwnForm):
    """The form of DataFree for one model: generates samples, and computes the teacher's answers to them."""

    prefix = _PREFIX

    def __init__(self) -> None:
        self.generator: GraphGenerator | None = None
        """The generator in use."""
        self._term: DataFree | None = None
        self._teacher: FormHost | None = None
        self._inputs: Floats | None = None
        self._draws = noise_draws(0)
        self._last: tuple[float, Floats] | None = None
        """The generator's loss in the last step, and the teacher's logits for the samples made after it (b, k)."""

    @staticmethod
    def can(body: TrainedBody) -> bool:
        """Return whether slopes reach the samples, and these are pictures."""
        return isinstance(body, GraphBody) and body.back_to_samples and is_picture(body.sample_shape)

    def begin(self, model: FormHost, term: DataFree, batches: Batches) -> None:
        """Set the teacher, the range of the device's samples and the noise."""
        self._take_up(model, term, batches)
        self._draws = noise_draws(batches.seed)

    def _take_up(self, model: FormHost, term: DataFree, batches: Batches) -> tuple[GraphGenerator, FormHost]:
        """Prepare for this term and samples; return the generator and the teacher."""
        x = batches.inputs
        if self._inputs is not x:
            self._inputs, around = x, (0, 2, 3)
            self._low = x.min(around, keepdims=True)
            self._span = x.max(around, keepdims=True) - self._low
        teacher = self._teacher = self._teacher or model.serving_copy()
        plan = Plan(term.generator, term.noise_dim, x.shape[1:])
        if self._term is not term:
            self._term = term
            teacher.set_weights(term.teacher)
            if self.generator and (not term.warm or self.generator.plan != plan):
                self.generator = None
        if self.generator is None:
            self.generator = GraphGenerator(plan, term.rate, batches.seed, _engine(model))
            warn_of_size(plan, model.spec.parameters)
        return self.generator, teacher

    def preparing(self, model: FormHost, term: DataFree, batches: Batches) -> Iterator[None]:
        """Make the passes of generator, teacher and model for the samples of a step, with pauses."""
        generator, teacher = self._take_up(model, term, batches)
        like = np.zeros((term.samples or batches.indices.shape[1], *generator.plan.shape), np.float32)
        yield
        yield from generator.preparing(len(like))
        yield from teacher.learning_body.preparing_samples(like)
        yield from model.learning_body.preparing(like, None)
        if term.adversarial:
            yield from model.learning_body.preparing_samples(like)

    def slopes(self, model: FormHost, term: DataFree, size: int, part: Part) -> tuple[float, Mapping[str, Floats]]:
        """Take one generator step; return the term's value and slopes at the samples that are made after it."""
        generator = needed(self.generator, "a fit begins first")
        teacher = needed(self._teacher, "a fit begins first")
        noise = drawn_noise(self._draws, term.samples or size, term.noise_dim)
        made = generator.samples(noise, self._low, self._span)
        logits, features, back = teacher.samples_pass(made)
        loss, (at_logits, at_features) = (
            term.generator_loss(logits, features),
            term.generator_slopes(logits, features),
        )
        if term.adversarial:
            own, _, own_back = model.samples_pass(made)
            loss -= term.value(Seen(own=(logits, own)))
            more, at_own = term.adversarial_slopes(logits, own)
            generator.learn(back(at_logits + more, at_features) + own_back(at_own, None))
        else:
            generator.learn(back(at_logits, at_features))
        made = generator.samples(noise, self._low, self._span)
        logits = teacher.samples_pass(made)[0]
        self._last = loss, logits
        own, to_weights = model.weights_pass(made, part)
        seen = Seen(own=(logits, own))
        return term.value(seen), to_weights(term.slope(seen))

    def extra_flops(self, model: FormHost, term: DataFree, batch: int) -> int:
        """Count what `extra_flops_of` lists."""
        generator = self.generator.flops_per_sample if self.generator else 0
        return extra_flops_of(term, batch, generator, model.spec.flops_per_sample)

    def instruments(self) -> Mapping[str, float]:
        """Return the generator's loss, and how its samples look to the teacher: see `looks_of`."""
        return {} if self._last is None else {"generator_loss": self._last[0], **looks_of(self._last[1])}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the generator's arrays, if it is to continue after a restart."""
        generator = self.generator
        if generator is None or (self._term is not None and not self._term.warm):
            return {}
        plan = generator.plan
        about = np.array([_SIZES.index(plan.size), plan.noise_dim, *plan.shape], np.int64)
        rate = np.array(generator.rate)
        return {_ABOUT: about, _RATE: rate, **{_PART + name: each for name, each in generator.arrays().items()}}

    def load(self, model: FormHost, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Make a generator like the one that gave the arrays, and restore it."""
        try:
            size, noise_dim, *shape = (int(each) for each in arrays[_ABOUT])
            channels, height, width = shape
            plan = Plan(_SIZES[size], noise_dim, (channels, height, width))
            generator = GraphGenerator(plan, float(arrays[_RATE]), 0, _engine(model))
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise StoreError("the saved generator cannot be read: remove FEDERATION.db in the state folder") from error
        part = {name.removeprefix(_PART): each for name, each in arrays.items() if name.startswith(_PART)}
        generator.check(part)
        generator.load(part)
        self.generator = generator


def _engine(model: FormHost) -> GraphEngine:
    body = model.learning_body
    if not isinstance(body, GraphBody):
        raise TypeError("a model that minimises data-free has the body of a graph")
    return body.engine
