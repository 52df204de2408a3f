"""The engine that stacks: equal requests of devices with equal nets are served as one.

What stacks are fits, class means and logits; everything else is served one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from edge_sdk import divergence
from edge_sdk.errors import Diverged
from edge_sdk.methods.requests import ClassMeans, Fit, Logits, Private
from edge_sdk.models.base import Batches, FitReport
from edge_sdk.models.checks import check_fit
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.models.torch_optim import TorchOptimiser
from edge_sdk.objectives import Floats, Optim, softmax
from edge_sdk.workbench import Workbench, slices
from edge_sim.engine import Answer, Asked, Together, served
from edge_sim.torch_dense import Products
from edge_sim.torch_places import Places
from edge_sim.torch_stack import PRIVATE, Change, Stack, Stacking
from edge_sim.torch_stack_terms import StackedPass, shape_of, stacked_loss
from edge_sim.torch_threads import one_thread, short_turns

Serve = Callable[[Stacking, Sequence[Asked]], list[Answer]]


class Cohort(Together):
    """Stacks what can be stacked, in this process, on a few threads: none of them waits for the arithmetic of another.

    Each stack is computed by one thread alone, so that results do not depend on how many there are.
    """

    def __init__(
        self,
        names: frozenset[str] | None = None,
        places: Places | None = None,
        threads: int = 1,
        stacking: Stacking | None = None,
    ) -> None:
        """names: of the models to stack; None: whatever can be.  places: for the weights, so that they need no copy.

        stacking: default: dense nets as products.
        """
        super().__init__()
        self._names, self._stacking = names, stacking or Products()
        self._pool = ThreadPoolExecutor(threads, "stack", initializer=one_thread) if threads > 1 else None
        self._places = places or Places()
        self._kinds: WeakKeyDictionary[TorchModel, str] = WeakKeyDictionary()

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        if self._kind(bench):
            self._places.attach(number, bench)

    def ready(self) -> None:
        """See Engine."""
        self._places.divide({})

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """See Together."""
        groups: dict[Hashable, list[int]] = {}
        for at, each in enumerate(asked):
            groups.setdefault(self._group(each), []).append(at)
        answers: list[Answer] = [None] * len(asked)
        alone = groups.pop(None, [])
        stacks = [chosen for members in groups.values() for chosen in self._chunks(members, asked)]
        with short_turns():
            found = self._each([[asked[at] for at in chosen] for chosen in stacks])
            for at in alone:
                answers[at] = served(asked[at])
            for chosen, own in zip(stacks, found, strict=True):
                for at, answer in zip(chosen, own, strict=True):
                    answers[at] = answer
        return answers

    def _each(self, stacks: Sequence[Sequence[Asked]]) -> Iterable[list[Answer]]:
        """What each comes to, in order; begun at once where there are threads for it."""
        together = partial(_stacked, self._stacking)
        return self._pool.map(together, stacks) if self._pool and len(stacks) > 1 else map(together, stacks)

    def close(self) -> None:
        """See Engine."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._places.close()

    def stackable(self, asked: Asked) -> bool:
        """Whether it would be served together with its like."""
        return self._group(asked) is not None

    def _group(self, asked: Asked) -> Hashable:
        """What requests that are served as one have in common; None: this one is served by itself."""
        model, request = asked.bench.model, asked.request
        kind = self._kind(asked.bench)
        if not kind:
            return None
        if isinstance(request, Fit):
            shape = shape_of(request.objective) if request.part == "all" else None
            steps = _steps_taken(model, request)
            return shape and (Fit, kind, shape, request.optim, request.part, type(request.source), steps)
        if isinstance(request, ClassMeans):
            return ClassMeans, kind, request.of
        if isinstance(request, Logits):
            return Logits, kind, type(request.source), request.source.indices.shape
        return None

    def _kind(self, bench: Workbench) -> str:
        """The net in words, the same for all that stack; empty: this one does not."""
        model = bench.model
        if not isinstance(model, TorchModel):
            return ""
        if model not in self._kinds:
            chosen = self._names is None or model.spec.name in self._names
            words = self._stacking.words(bench) if chosen else ""
            self._kinds[model] = f"{model.spec.preprocess} {words}" if words else ""
        return self._kinds[model]

    def _chunks(self, members: Sequence[int], asked: Sequence[Asked]) -> list[list[int]]:
        """Stacks, of devices with about as much to do: what is smaller is padded."""

        def order(at: int) -> tuple[int, ...]:
            """Of those with equally much, as they lie in memory (see torch_places.py)."""
            model = asked[at].bench.model
            place = model.trained[0].data_ptr() if isinstance(model, TorchModel) else 0
            return *(-each for each in _size(asked[at])), place

        ordered, most = sorted(members, key=order), self._stacking.at_a_time
        return [ordered[at : at + most] for at in range(0, len(ordered), most)]


def _steps_taken(model: object, request: Fit) -> bytes:
    """By the optimiser that a fit would go on with, of each parameter; empty: it begins with a new one."""
    optimiser = model.optimiser if isinstance(model, TorchModel) else None
    goes_on = optimiser is not None and optimiser.optim == request.optim and optimiser.moments
    return optimiser.steps.tobytes() if optimiser is not None and goes_on else b""


def _size(asked: Asked) -> tuple[int, ...]:
    if isinstance(asked.request, (Fit, Logits)):
        return asked.request.source.indices.shape
    return (len(asked.bench.data.train),)


def _stacked(stacking: Stacking, asked: Sequence[Asked]) -> list[Answer]:
    return _SERVED[type(asked[0].request)](stacking, asked)


def _models(asked: Sequence[Asked]) -> list[TorchModel]:
    return [each.bench.model for each in asked if isinstance(each.bench.model, TorchModel)]


# -- fits -----------------------------------------------------------------------------------------------------------


def _fit(stacking: Stacking, asked: Sequence[Asked]) -> list[Answer]:
    """By falling number of steps, so that those still at it are the first ones of the stack."""
    models, requests = _models(asked), [each.request for each in asked if isinstance(each.request, Fit)]
    for each, request in zip(asked, requests, strict=True):
        inputs, labels, private = each.bench.source(request.source)
        batches = Batches(inputs=inputs, labels=labels, indices=request.source.indices, stochastic=private)
        check_fit(each.bench.model.spec, batches, request.objective)
    stack = stacking.stack(models, train=isinstance(requests[0].source, Private))
    optimiser = _StackedOptimiser(models, requests[0].optim, stack)
    loss_of = stacked_loss([request.objective for request in requests], models[0].spec.classes, stack.device)
    steps = [len(request.source.indices) for request in requests]  # falling
    losses = torch.zeros(len(asked), device=stack.device)
    share = _share([request.source.indices.shape[1] for request in requests]).to(stack.device)
    for step in range(steps[0]):
        active = sum(step < each for each in steps)
        x, y = _batch(asked[:active], requests[:active], step, share.shape[1])
        outcome = stack.outcome(x.to(stack.device), active)
        seen = outcome.logits.requires_grad_(), outcome.features.detach().requires_grad_()
        each_loss = loss_of(StackedPass(*seen, y.to(stack.device), share[:active], step))  # (c,)
        losses[:active] = each_loss.detach()
        logits, features = torch.autograd.grad(each_loss.sum(), seen, allow_unused=True)
        if logits is None:
            logits = torch.zeros_like(outcome.logits)
        with optimiser.step(active, step) as change:
            stack.go_back(outcome, logits, features, change)
    stack.write()
    optimiser.write(models, steps)
    sums = sum(each.flatten(1).sum(dim=1) for each in stack.weights)  # NaN and Inf carry on into a sum
    finite = torch.isfinite(torch.as_tensor(sums)).tolist()
    return [_fitted(*each) for each in zip(asked, requests, losses.tolist(), finite, strict=True)]


def _fitted(asked: Asked, request: Fit, loss: float, finite: bool) -> Answer:
    """What a fit says; Diverged where it left the model unfit to use.  finite: all its weights are, for certain."""
    steps, batch = request.source.indices.shape
    for _ in range(steps):
        asked.bench.meter.trained(asked.bench.model.spec, batch, request.part)
    report = FitReport(steps=steps, loss=loss)
    try:
        divergence.check_loss(report, steps - 1)
        if not finite:
            divergence.check_weights(asked.bench.model)
    except Diverged as error:
        return error
    return report


def _share(sizes: Sequence[int]) -> Tensor:
    """1 / b for each sample, 0 for padding: (c, b)."""
    share = torch.zeros(len(sizes), max(sizes))
    for at, size in enumerate(sizes):
        share[at, :size] = 1 / size
    return share


def _batch(asked: Sequence[Asked], requests: Sequence[Fit | Logits], step: int, size: int) -> tuple[Tensor, Tensor]:
    """One mini-batch of each device, brought to one size by samples said again: (c, b, ...), (c, b)."""
    first = asked[0].bench.source(requests[0].source)[0]
    x = np.empty((len(asked), size, *first.shape[1:]), np.float32)
    y = np.zeros((len(asked), size), np.int64)
    for at, (each, request) in enumerate(zip(asked, requests, strict=True)):
        inputs, labels, _ = each.bench.source(request.source)
        index = request.source.indices[step]
        if len(index) < size:
            index = np.resize(index, size)
        np.take(inputs, index, axis=0, out=x[at])
        if labels is not None:
            np.take(labels, index, out=y[at])
    return torch.from_numpy(x), torch.from_numpy(y)


class _StackedOptimiser:
    """One optimiser of each device of a stack, all after equally many steps."""

    def __init__(self, models: Sequence[TorchModel], optim: Optim, stack: Stack) -> None:
        self._optim, self._weights = optim, stack.weights
        own = [each.optimiser for each in models]
        goes_on = [each for each in own if each is not None and each.optim == optim]
        self._begun = goes_on[0].steps if len(goes_on) == len(models) else np.zeros(len(stack.weights), np.int64)
        self._moments = TorchOptimiser(optim, stack.weights).moments
        if len(goes_on) == len(models):
            kinds = zip(*(each.moments for each in goes_on), strict=True)
            self._moments = [[torch.stack(each) for each in zip(*kind, strict=True)] for kind in kinds]

    @contextmanager
    def step(self, count: int, step: int) -> Iterator[Change]:
        """Step the first `count` devices with the slopes that are given inside; `step`: of this fit, from 0."""
        if not self._moments:
            yield self._descend
            return
        gradients = [torch.empty(0)] * len(self._weights)

        def note(at: int, slope: Tensor, given: Tensor | None) -> None:
            gradients[at] = slope if given is None else torch.bmm(slope, given)

        yield note
        moments = [[each[:count] for each in kind] for kind in self._moments]
        weights = [each.detach()[:count] for each in self._weights]
        TorchOptimiser(self._optim, weights, moments, self._begun + step).step(gradients)

    def _descend(self, at: int, slope: Tensor, given: Tensor | None) -> None:
        """One weight of plain gradient descent, at once and in its place."""
        weight = self._weights[at][: len(slope)]
        if given is None:
            weight.sub_(slope, alpha=self._optim.learning_rate)
        else:
            weight.baddbmm_(slope, given, alpha=-self._optim.learning_rate)

    def write(self, models: Sequence[TorchModel], steps: Sequence[int]) -> None:
        """Give each model its own."""
        for at, (model, taken) in enumerate(zip(models, steps, strict=True)):
            moments = [[each[at].clone() for each in kind] for kind in self._moments]
            model.optimiser = TorchOptimiser(self._optim, model.trained, moments, self._begun + taken)


# -- inference ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _class_means(stacking: Stacking, asked: Sequence[Asked]) -> list[Answer]:
    stack = stacking.stack(_models(asked), train=False)
    sizes = [len(each.bench.data.train) for each in asked]
    parts: list[list[Floats]] = [[] for _ in asked]
    for part in slices(max(sizes)):
        x = torch.from_numpy(_rows(asked, part)).to(stack.device)
        found = stack.outcome(x, len(asked))
        of_features = isinstance(asked[0].request, ClassMeans) and asked[0].request.of == "features"
        rows = found.features.cpu().numpy() if of_features else softmax(found.logits.cpu().numpy())
        for at, size in enumerate(sizes):
            if part.start < size:
                parts[at].append(rows[at, : size - part.start])
    for each, size in zip(asked, sizes, strict=True):
        for part in slices(size):
            each.bench.count_inference(min(part.stop, size) - part.start)
    return [each.bench.class_means(own) for each, own in zip(asked, parts, strict=True)]


def _rows(asked: Sequence[Asked], part: slice) -> Floats:
    """A slice of each device's private samples, with zeros to one size: (c, b, ...)."""
    own = [each.bench.source(PRIVATE)[0][part] for each in asked]
    x = np.zeros((len(own), max(map(len, own)), *own[0].shape[1:]), np.float32)
    for at, rows in enumerate(own):
        x[at, : len(rows)] = rows
    return x


@torch.no_grad()
def _logits(stacking: Stacking, asked: Sequence[Asked]) -> list[Answer]:
    requests = [each.request for each in asked if isinstance(each.request, Logits)]
    stack = stacking.stack(_models(asked), train=False)
    found = []
    for step in range(len(requests[0].source.indices)):
        x, _ = _batch(asked, requests, step, requests[0].source.indices.shape[1])
        found.append(stack.outcome(x.to(stack.device), len(asked)).logits.cpu().numpy())
    for each, request in zip(asked, requests, strict=True):
        for chosen in request.source.indices:
            each.bench.count_inference(len(chosen))
    return list(np.stack(found, axis=1))  # (c, steps, b, k)


_SERVED: dict[type, Serve] = {Fit: _fit, ClassMeans: _class_means, Logits: _logits}
