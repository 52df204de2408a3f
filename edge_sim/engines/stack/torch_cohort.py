"""The engine that stacks: equal requests of devices with equal nets are computed as one.

Fits, class means and logits are stacked; evaluations are computed on threads, all other requests one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from edge_sdk.arrays import Floats
from edge_sdk.device.training import divergence
from edge_sdk.device.training.workbench import Workbench, slices
from edge_sdk.errors import Diverged
from edge_sdk.methods.contract.requests import ClassMeans, Fit, Logits, Private
from edge_sdk.models.base import Batches, FitReport
from edge_sdk.models.checks import check_fit
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sdk.objectives import Optim, needed, softmax
from edge_sim.engines.base import DeviceAnswer, DeviceRequest, KnownLogits, serve_alone
from edge_sim.engines.stack.torch_evaluations import NETS_A_CALL, evaluated, evaluation_key
from edge_sim.engines.stack.torch_parameter_rows import ParameterRows
from edge_sim.engines.stack.torch_stack import PRIVATE, ApplyGradient, DenseStacking, Stack, Stacking
from edge_sim.engines.stack.torch_stacked_terms import StackedBatch, shape_of, stacked_loss
from edge_sim.engines.torch_threads import short_switch_interval, use_one_thread

_LEAST_WEIGHTS = 2**18
"""Smaller nets are faster stacked on one thread: others would wait for the interpreter between two operators, and read
data that another core has computed."""

_Serve = Callable[[Stacking, Sequence[DeviceRequest]], list[DeviceAnswer]]


class CohortEngine:
    """Computes large stacks and evaluations in this process, each on one thread of a pool, and the rest one by one.

    Each of them stays on one thread, so results do not depend on the number of threads.
    """

    def __init__(
        self,
        names: frozenset[str] | None = None,
        rows: ParameterRows | None = None,
        threads: int = 1,
        stacking: Stacking | None = None,
    ) -> None:
        """names: models to stack (default: all that can be).  rows: memory for the weights, so that stacks are views.

        stacking: how stacks are built; default: dense nets only.
        """
        self._names, self._stacking = names, stacking or DenseStacking()
        self._pool = ThreadPoolExecutor(threads, "stack", initializer=use_one_thread) if threads > 1 else None
        self._rows = rows or ParameterRows()
        self._kinds: WeakKeyDictionary[TorchModel, str] = WeakKeyDictionary()

    def attach(self, number: int, bench: Workbench) -> None:
        """Implement Engine."""
        if self._kind(bench) or self._rows.keeps_all:
            self._rows.attach(number, bench)

    def ready(self) -> None:
        """Implement Engine."""
        self._rows.allocate()

    def serve(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        """Implement Engine."""
        groups: dict[Hashable, list[int]] = {}
        for at, each in enumerate(asked):
            groups.setdefault(self._group(each), []).append(at)
        answers: list[DeviceAnswer] = [None] * len(asked)
        alone = groups.pop(None, [])
        stacks = [chosen for members in groups.values() for chosen in self._chunks(members, asked)]
        with short_switch_interval():
            found = self._each([[asked[at] for at in chosen] for chosen in stacks])
            for at, answer in zip(alone, self._alone([asked[at] for at in alone]), strict=True):
                answers[at] = answer
            for chosen, own in zip(stacks, found, strict=True):
                for at, answer in zip(chosen, own, strict=True):
                    answers[at] = answer
        if self._rows.keeps_all:
            for each in asked:
                self._rows.take_in(each.job.number)
        return answers

    def _each(self, stacks: Sequence[Sequence[DeviceRequest]]) -> Iterable[list[DeviceAnswer]]:
        """Compute each stack, and yield the answers in order; large ones in parallel, if there is a pool of threads."""
        together = partial(_stacked, self._stacking)
        if self._pool and len(stacks) > 1 and all(map(_is_large, stacks)):
            return self._pool.map(together, stacks)
        return map(together, stacks)

    def _alone(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        """Compute requests that do not stack; on the pool's threads if torch nets release the interpreter."""
        known, answers = KnownLogits(), [None] * len(asked)
        tasks = list(self._tasks(asked, known)) if self._pool else []
        left = set(range(len(asked))).difference(*(places for places, _ in tasks))
        for at in sorted(left):
            answers[at] = serve_alone(asked[at], known)
        for places, task in tasks:
            for at, answer in zip(places, task.result(), strict=True):
                answers[at] = answer
        return answers

    def _tasks(
        self, asked: Sequence[DeviceRequest], known: KnownLogits
    ) -> Iterator[tuple[list[int], Future[list[DeviceAnswer]]]]:
        """Start the tasks of the threads; yield the places of their requests, and each task."""
        pool, measured = needed(self._pool, "no pool"), dict[Hashable, list[int]]()
        for at, each in enumerate(asked):
            key = evaluation_key(each)
            if key is not None:
                measured.setdefault(key, []).append(at)
            elif _trains_alone(each):
                yield [at], pool.submit(_served_alone, each)
        for places in measured.values():
            for begin in range(0, len(places), NETS_A_CALL):
                chosen = places[begin : begin + NETS_A_CALL]
                yield chosen, pool.submit(evaluated, [asked[at] for at in chosen], known)

    def close(self) -> None:
        """Implement Engine."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._rows.close()

    def stackable(self, asked: DeviceRequest) -> bool:
        """Whether this request can be stacked with others."""
        return self._group(asked) is not None

    def _group(self, asked: DeviceRequest) -> Hashable:
        """Return a key that is equal for requests of one stack, or None to compute this request alone."""
        model, request = asked.bench.model, asked.request
        kind = self._kind(asked.bench)
        if not kind:
            return None
        if isinstance(request, Fit):
            shape = shape_of(request.objective) if request.part == "all" else None
            steps = _steps_taken(model, request)
            return shape and (Fit, kind, shape, request.optim, request.part, type(request.source), steps)
        if isinstance(request, ClassMeans):
            return ClassMeans, kind, request.rows
        if isinstance(request, Logits):
            return Logits, kind, type(request.source), request.source.indices.shape
        return None

    def _kind(self, bench: Workbench) -> str:
        """Return a key that is equal for nets of one stack, or empty if this one is not stacked."""
        model = bench.model
        if not isinstance(model, TorchModel) or model.tracing.has_hooks:
            return ""
        if model not in self._kinds:
            chosen = self._names is None or model.spec.name in self._names
            key = self._stacking.key(bench) if chosen else ""
            strides = [weight.stride() for weight in model.trained]  # a stack takes those of its first net
            self._kinds[model] = f"{model.spec.preprocess} {strides} {key}" if key else ""
        return self._kinds[model]

    def _chunks(self, members: Sequence[int], asked: Sequence[DeviceRequest]) -> list[list[int]]:
        """Divide a group into stacks of devices with about the same work, because smaller ones are padded."""

        def order(at: int) -> tuple[int, ...]:
            """Sort by falling size, and equal sizes by place in memory (torch_parameter_rows.py)."""
            model = asked[at].bench.model
            place = model.trained[0].data_ptr() if isinstance(model, TorchModel) else 0
            return *(-each for each in _size(asked[at])), place

        ordered, most = sorted(members, key=order), self._stacking.max_devices
        return [ordered[at : at + most] for at in range(0, len(ordered), most)]


def _is_large(asked: Sequence[DeviceRequest]) -> bool:
    """Whether its own thread makes a stack faster: its nets have many weights."""
    return sum(weight.numel() for weight in _models(asked)[0].trained) >= _LEAST_WEIGHTS


def _served_alone(asked: DeviceRequest) -> list[DeviceAnswer]:
    return [serve_alone(asked)]


def _trains_alone(asked: DeviceRequest) -> bool:
    """Whether a request is a fit of a torch net that does not use the process-wide random generator."""
    model, request = asked.bench.model, asked.request
    if not (isinstance(request, Fit) and isinstance(model, TorchModel)):
        return False
    return model.fits_at_once(request.objective, stochastic=isinstance(request.source, Private))


def _steps_taken(model: object, request: Fit) -> bytes:
    """Return the steps of the optimiser that a fit continues, as bytes, or empty for a new optimiser."""
    optimiser = model.optimiser if isinstance(model, TorchModel) else None
    goes_on = optimiser is not None and request.optim.continues(optimiser.optim) and optimiser.moments
    return optimiser.steps.tobytes() if optimiser is not None and goes_on else b""


def _size(asked: DeviceRequest) -> tuple[int, ...]:
    if isinstance(asked.request, (Fit, Logits)):
        return asked.request.source.indices.shape
    return (len(asked.bench.data.train),)


def _stacked(stacking: Stacking, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
    return _SERVED[type(asked[0].request)](stacking, asked)


def _models(asked: Sequence[DeviceRequest]) -> list[TorchModel]:
    return [each.bench.model for each in asked if isinstance(each.bench.model, TorchModel)]


# -- fits -----------------------------------------------------------------------------------------------------------


def _fit(stacking: Stacking, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
    """Train a stack; devices come by falling number of steps, so that the active ones lead the stack."""
    models, requests = _models(asked), [each.request for each in asked if isinstance(each.request, Fit)]
    for each, request in zip(asked, requests, strict=True):
        inputs, labels, private = each.bench.source(request.source)
        batches = Batches(inputs=inputs, labels=labels, indices=request.source.indices, stochastic=private)
        check_fit(each.bench.model.spec, batches, request.objective)
    stack = stacking.stack(models, train=isinstance(requests[0].source, Private))
    optimiser = _StackedOptimiser(models, requests[0].optim, stack)
    loss_of = stacked_loss([request.objective for request in requests], models[0].spec.classes, stack.device)
    steps = [len(request.source.indices) for request in requests]  # falling numbers
    losses = torch.zeros(len(asked), device=stack.device)
    share = _share([request.source.indices.shape[1] for request in requests]).to(stack.device)
    for step in range(steps[0]):
        active = sum(step < each for each in steps)
        x, y = _batch(asked[:active], requests[:active], step, share.shape[1])
        output = stack.forward(x.to(stack.device), active)
        found = loss_of(StackedBatch(output.logits, output.features, y.to(stack.device), share[:active], step))
        losses[:active] = found.loss
        logits = torch.zeros_like(output.logits) if found.logits is None else found.logits
        with optimiser.step(active, step) as apply:
            stack.backward(output, logits, found.features, apply)
    stack.write()
    optimiser.write(models, steps)
    finite = stack.finite()
    return [_fitted(*each) for each in zip(asked, requests, losses.tolist(), finite, strict=True)]


def _fitted(asked: DeviceRequest, request: Fit, loss: float, finite: bool) -> DeviceAnswer:
    """Return the answer to a fit; Diverged if the model is now unusable.  finite: all its weights are known to be."""
    steps, batch = request.source.indices.shape
    asked.bench.meter.trained(asked.bench.model.spec, batch, request.part, steps=steps)
    report = FitReport(steps=steps, loss=loss)
    try:
        divergence.check_loss(report, steps - 1)
        if not finite:
            divergence.check_weights_finite(asked.bench.model)
    except Diverged as error:
        return error
    return report


def _share(sizes: Sequence[int]) -> Tensor:
    """Return the share of each sample in its device's mean, (c, b): 1 / b, or 0 for padding."""
    given = np.array(sizes)[:, None]
    return torch.from_numpy((np.arange(max(sizes)) < given) / given.astype(np.float32))


def _batch(
    asked: Sequence[DeviceRequest], requests: Sequence[Fit | Logits], step: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return one mini-batch of each device, padded with repeated samples: inputs (c, b, ...) and labels (c, b)."""
    first = asked[0].bench.source(requests[0].source)[0]
    x = np.empty((len(asked), size, *first.shape[1:]), np.float32)
    y = np.zeros((len(asked), size), np.int64)
    places = np.arange(size)
    for at, (each, request) in enumerate(zip(asked, requests, strict=True)):
        inputs, labels, index = each.bench.batch(request.source, step, each.job)
        index = index.take(places, mode="wrap")
        inputs.take(index, axis=0, out=x[at])
        if labels is not None:
            labels.take(index, out=y[at])
    return torch.from_numpy(x), torch.from_numpy(y)


class _StackedOptimiser:
    """The optimisers of a stack's devices, all of which have taken the same number of steps."""

    def __init__(self, models: Sequence[TorchModel], optim: Optim, stack: Stack) -> None:
        self._optim, self._weights, self._decayed = optim, stack.weights, models[0].decayed
        own = [each.optimiser for each in models]
        goes_on = [each for each in own if each is not None and optim.continues(each.optim)]
        self._begun = goes_on[0].steps if len(goes_on) == len(models) else np.zeros(len(stack.weights), np.int64)
        self._moments = TorchOptimiser(optim, stack.weights).moments
        if len(goes_on) == len(models):
            kinds = zip(*(each.moments for each in goes_on), strict=True)
            self._moments = [[torch.stack(each) for each in zip(*kind, strict=True)] for kind in kinds]

    @contextmanager
    def step(self, count: int, step: int) -> Iterator[ApplyGradient]:
        """Yield the function that takes gradients, then step the first `count` devices.  step: of this fit, from 0."""
        if not (self._moments or self._optim.clip_norm or self._optim.weight_decay):
            yield self._descend
            return
        gradients = [torch.empty(0)] * len(self._weights)

        def note(at: int, gradient: Tensor, inputs: Tensor | None) -> None:
            gradients[at] = gradient if inputs is None else torch.bmm(gradient, inputs)

        yield note
        moments = [[each[:count] for each in kind] for kind in self._moments]
        weights = [each.detach()[:count] for each in self._weights]
        begun = self._begun + step
        TorchOptimiser(self._optim, weights, moments, begun, decayed=self._decayed, stacked=True).step(gradients)

    def _descend(self, at: int, gradient: Tensor, inputs: Tensor | None) -> None:
        """Step one weight by plain gradient descent, at once and in place."""
        weight = self._weights[at][: len(gradient)]
        if inputs is None:
            weight.sub_(gradient, alpha=self._optim.learning_rate)
        else:
            weight.baddbmm_(gradient, inputs, alpha=-self._optim.learning_rate)

    def write(self, models: Sequence[TorchModel], steps: Sequence[int]) -> None:
        """Give each model its optimiser."""
        for at, (model, taken) in enumerate(zip(models, steps, strict=True)):
            moments = [[each[at].clone() for each in kind] for kind in self._moments]
            model.optimiser = model.optimiser_after(self._optim, moments, self._begun + taken)


# -- inference ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _class_means(stacking: Stacking, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
    stack = stacking.stack(_models(asked), train=False)
    sizes = [len(each.bench.data.train) for each in asked]
    parts: list[list[Floats]] = [[] for _ in asked]
    for part in slices(max(sizes)):
        x = torch.from_numpy(_rows(asked, part)).to(stack.device)
        found = stack.forward(x, len(asked))
        of_features = isinstance(asked[0].request, ClassMeans) and asked[0].request.rows == "features"
        rows = found.features.cpu().numpy() if of_features else softmax(found.logits.cpu().numpy())
        for at, size in enumerate(sizes):
            if part.start < size:
                parts[at].append(rows[at, : size - part.start])
    for each, size in zip(asked, sizes, strict=True):
        for part in slices(size):
            each.bench.count_inference(min(part.stop, size) - part.start)
    return [each.bench.class_means(own) for each, own in zip(asked, parts, strict=True)]


def _rows(asked: Sequence[DeviceRequest], part: slice) -> Floats:
    """Return a slice of each device's private samples, padded with zeros: (c, b, ...)."""
    own = [each.bench.source(PRIVATE)[0][part] for each in asked]
    x = np.zeros((len(own), max(map(len, own)), *own[0].shape[1:]), np.float32)
    for at, rows in enumerate(own):
        x[at, : len(rows)] = rows
    return x


@torch.no_grad()
def _logits(stacking: Stacking, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
    requests = [each.request for each in asked if isinstance(each.request, Logits)]
    stack = stacking.stack(_models(asked), train=False)
    found = []
    for step in range(len(requests[0].source.indices)):
        x, _ = _batch(asked, requests, step, requests[0].source.indices.shape[1])
        found.append(stack.forward(x.to(stack.device), len(asked)).logits.cpu().numpy())
    for each, request in zip(asked, requests, strict=True):
        for chosen in request.source.indices:
            each.bench.count_inference(len(chosen))
    return list(np.stack(found, axis=1))  # (c, steps, b, k)


_SERVED: dict[type, _Serve] = {Fit: _fit, ClassMeans: _class_means, Logits: _logits}
