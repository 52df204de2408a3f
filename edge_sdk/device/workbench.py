"""One device's means of work: its model, its data, the public set, and the table of what serves a method's requests.

Work is cut between batches: a handler (handlers.py has those of this package) pauses after every step, so that
whoever drives it can look for news, and stop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import LocalData, Raw, augment_draws
from edge_sdk.device.bare_classes import BareClasses, only_samples
from edge_sdk.device.budget import BudgetLedger
from edge_sdk.device.meter import Meter
from edge_sdk.errors import EdgeError, ModelError, StoreError, UsageError
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import Private, Request, Source, handler_of
from edge_sdk.models.base import Model, ModelSpec, outputs
from edge_sdk.models.checks import check_logits
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.schema import one_line
from edge_sdk.protocol.value_range import all_finite
from edge_sdk.public_set.samples import PublicSet

Runs: TypeAlias = tuple[Ints, Ints, Ints]
"""Rows grouped by class: their order (n,), the classes that there are (c,), where each begins in that order (c,)."""
INFERENCE_BATCH = 256
"""The number of samples between two pauses, when a whole data set passes through the model."""
_TWO_MODELS = b"\xff\xff\xff\xffproxy"
"""Begins the saved state of two models; the state of one model never begins so (edge_sdk.models.base.pack_arrays)."""


def joint_capabilities(own: ModelSpec, proxy: ModelSpec | None) -> frozenset[str]:
    """What a model can do; with a proxy, what both can, and `proxy` in place of `weights`."""
    return own.capabilities if proxy is None else (own.capabilities & proxy.capabilities) - {"weights"} | {"proxy"}


def joint_terms(own: ModelSpec, proxy: ModelSpec | None) -> frozenset[str]:
    """The loss terms that a model can minimise; with a proxy, those that both can."""
    return own.terms if proxy is None else own.terms & proxy.terms


@dataclass
class Workbench:
    """The model, the data and the public set of one device."""

    model: Model
    data: LocalData
    public: PublicSet | None = None
    meter: Meter = field(default_factory=Meter)
    discloses_classes: bool = False
    """Whether metrics may disclose how many samples of each class there are."""
    capacity: int = 0
    """The most training samples that there can come to be; 0: the data do not change."""
    budget: BudgetLedger | None = None
    """What its owner allows to be told of one training record; then numbers of samples leave with noise alone.  None:
    the owner gave no budget."""
    beside: Workbench | None = None
    """The workbench of the device's own model, if this one is that of the proxy beside it."""

    tell_of_classes: Callable[[str], None] = field(default=lambda _line: None, repr=False)
    """Is called with a line that names classes, for the owner."""
    told: set[str] = field(default_factory=set, repr=False)
    """Such lines that were told."""

    def __post_init__(self) -> None:
        """Preprocess all data once: the arrays stay the same objects, so extractors can cache their features."""
        self.proxy: Workbench | None = None
        """The workbench of the proxy beside the device's own model, on the same data; None: there is none."""
        self.pace = FitPace()
        """How many steps of a fit are computed between two pauses."""
        self.preprocessed: dict[int, Floats] = {}
        """The samples after preprocessing, by the identity of the raw array, which `data` or `public` keeps."""
        self._public = self._preprocess(self.public.samples) if self.public else None  # (m, c, h, w)
        self._take(self.data)

    def use(self, data: LocalData) -> None:
        """Replace the data by others of the same shape.  Raises UsageError or ModelError if they do not fit."""
        kept = {} if self.public is None or self._public is None else {id(self.public.samples): self._public}
        self.data, self.preprocessed = data, kept
        self._take(data)
        if self.proxy is not None:
            self.proxy.use(data)

    def _take(self, data: LocalData) -> None:
        preprocess = self._preprocess
        self.samples = np.empty((0, 1, 1, 1), np.float32)
        """The private training samples after preprocessing: (n, c, h, w)."""
        self.test: Floats | None = None  # (t, c, h, w)
        self.held_out: Mapping[str, tuple[Floats, Ints]] = {}
        """The parts of the device's own data that are not trained on, by the name of the metric: samples and labels."""
        # What was there before is given up above, so that two sets of data are never in memory together.
        if len(data.train):
            self.samples = preprocess(data.train.x)
        self.labels = data.train.y.astype(np.int64)  # (n,)
        self.by_class = np.unique(self.labels, return_inverse=True, return_counts=True)
        """The classes held, ascending (m,); for each sample the index of its class (n,); samples of each class (m,)."""
        self._alone = only_samples(self.by_class)
        self._runs: list[tuple[slice, Runs]] | None = None
        """How the samples of each slice are grouped by class; None: no means were computed yet."""
        if data.test:
            self.test = preprocess(data.test.x)
        held_out = {"validation_accuracy": data.validation, "local_accuracy": data.local_test}
        self.held_out = {name: (preprocess(part.x), part.y) for name, part in held_out.items() if part}
        self._check()
        self.class_counts = data.class_counts(self.model.spec.classes)
        """The number of private training samples of each class."""

    def add_proxy(self, model: Model) -> None:
        """Put a second model beside the device's own: a proxy, whose weights are shared in place of the own model's.

        Raises UsageError if it does not match the classes, or cannot train and share weights.
        """
        own, proxy = self.model.spec, model.spec
        if proxy.classes != own.classes:
            raise UsageError(
                f"proxy: {proxy.name} tells {proxy.classes} classes apart, the device's own model {own.name} "
                f"{own.classes}: give both the federation's classes"
            )
        missing = sorted({"logit-gradients", "weights"} - proxy.capabilities)
        if missing:
            raise UsageError(
                f"proxy: {proxy.name} cannot do {', '.join(missing)}: a proxy is trained and its weights are shared"
            )
        self.proxy = Workbench(
            model, self.data, self.public, self.meter, self.discloses_classes, self.capacity, beside=self
        )

    def of(self, request: Request) -> Workbench:
        """Return the workbench of the model that a request is about.  Raises UsageError if there is no proxy."""
        if request.of == "own" or self.beside is not None:
            return self
        if self.proxy is None:
            raise UsageError("this method trains a proxy beside the device's own model, and there is none: give proxy=")
        return self.proxy

    def check_may_leave(self) -> None:
        """Raise UsageError for the weights of a model beside which there is a proxy: those of the proxy leave."""
        if self.proxy is not None:
            raise UsageError("the weights of a model that has a proxy do not leave the device: ask for the proxy's")

    @property
    def shared(self) -> ModelSpec:
        """The description of the model whose weights are shared: the proxy, if there is one."""
        return self.proxy.model.spec if self.proxy is not None else self.model.spec

    @property
    def capabilities(self) -> frozenset[str]:
        """What the device's model can do; if there is a proxy, what both can, and `proxy` in place of `weights`."""
        return joint_capabilities(self.model.spec, self.proxy.model.spec if self.proxy is not None else None)

    @property
    def terms(self) -> frozenset[str]:
        """The loss terms that can be minimised; if there is a proxy, by both models."""
        return joint_terms(self.model.spec, self.proxy.model.spec if self.proxy is not None else None)

    def state_bytes(self) -> bytes:
        """Return the state of the model, or of both models."""
        own = self.model.state_bytes()
        if self.proxy is None:
            return own
        return b"".join((_TWO_MODELS, len(own).to_bytes(8, "little"), own, self.proxy.model.state_bytes()))

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit."""
        if self.proxy is None:
            self.model.load_state(state)
            return
        begin = len(_TWO_MODELS) + 8
        if state[: len(_TWO_MODELS)] != _TWO_MODELS:
            raise StoreError(
                "the saved state is that of a device without a proxy: remove FEDERATION.db in the state folder"
            )
        end = begin + int.from_bytes(state[begin - 8 : begin], "little")
        self.model.load_state(state[begin:end])
        self.proxy.model.load_state(state[end:])

    def _preprocess(self, raw: Raw) -> Floats:
        """Return samples as the model takes them; a proxy that takes the same as the own model has the same arrays."""
        preprocess = self.model.spec.preprocess
        if self.beside is not None and self.beside.model.spec.preprocess == preprocess:
            return self.beside.preprocessed[id(raw)]
        return self.preprocessed.setdefault(id(raw), preprocess(raw))

    def give(self, public: PublicSet) -> None:
        """Set a public set that arrives later.  Raises UsageError if it does not fit this device's model."""
        samples = self._preprocess(public.samples)  # (m, c, h, w)
        self._check_part("public", samples)
        self.public, self._public = public, samples
        if self.proxy is not None:
            self.proxy.give(public)

    def _check(self) -> None:
        """Raise UsageError or ModelError for what would otherwise fail in the middle of a round."""
        if not len(self.samples) and self.capacity:
            return
        if not len(self.samples):
            raise UsageError("this device has no training samples; give it some")
        everything = {"training": self.samples, "public": self._public, "test": self.test}
        everything |= {name.removesuffix("_accuracy"): inputs for name, (inputs, _) in self.held_out.items()}
        for name, samples in everything.items():
            if samples is not None:
                self._check_part(name, samples)
        check_logits(self.model.spec, self._one_answer(), 1)

    def _check_part(self, name: str, samples: Floats) -> None:
        """Raise UsageError unless a part of the data, after preprocessing, is finite and like the training samples."""
        if not all_finite(samples):
            raise UsageError(f"the {name} samples hold NaN or Inf after preprocessing; clean them first")
        if len(self.samples) and samples.shape[1:] != self.samples.shape[1:]:
            raise UsageError(
                f"the {name} samples are {samples.shape[1:]} after preprocessing, the training samples "
                f"{self.samples.shape[1:]}; bring both to one size (edge_sdk.Preprocess)"
            )

    def _one_answer(self) -> Floats:
        """Return the model's logits for one sample.  Raises ModelError if the model cannot process it."""
        one = self.samples[:1]
        try:
            return self.model.logits(one)
        except EdgeError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"the model cannot take a sample of shape {one.shape[1:]}, which is (c, h, w) after preprocessing: "
                f"{one_line(f'{type(error).__name__}: {error}')}"
            ) from error

    def serve(self, request: Request, job: Job) -> Generator[None, None, Any]:
        """Carry one request out, pausing between batches; returns what the request says that it is answered with.

        Raises Diverged where training leaves the model unfit to use, UsageError where no handler is registered for the
        request.
        """
        return handler_of(type(request)).serve(self.of(request), request, job)

    def class_means(self, parts: Sequence[Floats]) -> ClassRows:
        """Return the mean of each class over rows (n, d) of all private samples, in pieces of INFERENCE_BATCH."""
        classes, at, counts = self.by_class  # (m,), (n,), (m,)
        if self._runs is None:
            self._runs = [(part, runs_by_class(at[part])) for part in slices(len(at))]
        sums, bare = np.zeros((len(classes), parts[0].shape[1])), self.bare_classes()  # (m, d)
        for (part, runs), rows in zip(self._runs, parts, strict=True):
            add_runs(sums, runs, rows)
            bare.see(part, rows)
        means = (sums / counts[:, None]).astype(np.float32)
        return self.class_rows(means, bare)

    def bare_classes(self) -> BareClasses:
        """Return what finds the classes whose mean would be a sample, for one pass over the features."""
        return BareClasses(self.samples, self.by_class, self._alone)

    def class_rows(self, rows: Floats, bare: BareClasses) -> ClassRows:
        """Return rows of the classes held (m, d) without those whose mean would be a sample, which is told once.

        Raises NotReleased if no other is left.
        """
        (classes, _, counts), kept = self.by_class, bare.kept(self._tell_once)
        return ClassRows(classes=classes[kept].astype(np.int32), rows=rows[kept], counts=counts[kept].astype(np.int32))

    def _tell_once(self, line: str) -> None:
        first = self.beside or self
        if line not in first.told:
            first.told.add(line)
            first.tell_of_classes(line)

    def logits(self, x: Floats) -> Floats:
        """Return the model's logits for samples from `source`, and count them: (n, c, h, w) -> (n, k).

        Raises ModelError for logits of another shape.
        """
        self.count_inference(len(x))
        found = self.model.logits(x)
        check_logits(self.model.spec, found, len(x))
        return found

    def features(self, x: Floats) -> Floats:
        """Return the model's features for samples from `source`, and count them: (n, c, h, w) -> (n, d)."""
        self.count_inference(len(x))
        return self.model.features(x)

    def outputs(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the model's logits and features for samples from `source` in one pass: (n, c, h, w) -> (n, k), (n, d).

        It is metered as two passes, one for each.  Raises ModelError for logits of another shape.
        """
        self.count_inference(len(x))
        self.count_inference(len(x))
        logits, features = outputs(self.model, x)
        check_logits(self.model.spec, logits, len(x))
        return logits, features

    def count_inference(self, samples: int) -> None:
        """Count one inference batch of this number of samples."""
        self.meter.inferred(self.model.spec, samples)

    def batch(self, source: Source, step: int, job: Job) -> tuple[Floats, Ints | None, Ints]:
        """Return one mini-batch: samples (n, c, h, w), labels (n,) if any, and which of them are in it (b,).

        Private samples are changed as the device's data says; they are the same for every request of a round.
        """
        inputs, labels, (index,) = self.batches(source, slice(step, step + 1), job)
        return inputs, labels, index

    def batches(self, source: Source, steps: slice, job: Job) -> tuple[Floats, Ints | None, Ints]:
        """Return the mini-batches of some steps, as `batch` does: which samples are in them is (steps, b)."""
        inputs, labels, private = self.source(source)
        indices, augment = source.indices[steps], self.data.augment
        if not private or augment is None:
            return inputs, labels, indices
        black, spec = self.model.spec.preprocess.black(inputs.shape[1]), job.spec
        parts = [
            augment(inputs[index], black, augment_draws(spec.seed, job.number, job.round, step))
            for step, index in enumerate(indices, steps.start)
        ]
        taken = None if labels is None else labels[indices.ravel()]
        return np.concatenate(parts), taken, np.arange(indices.size).reshape(indices.shape)

    def source(self, source: Source) -> tuple[Floats, Ints | None, bool]:
        """Return samples (n, c, h, w), labels (n,) if any, and whether they are private.  Raises UsageError."""
        if isinstance(source, Private):
            return self.samples, self.labels, True
        if self._public is None:
            raise UsageError("this method needs the public set, and this device was given none: pass public=")
        return self._public, None, False


def add_by_class(sums: NDArray[np.float64], at: Ints, rows: Floats) -> None:
    """Add each of rows (n, d) to the row of sums (m, d) given by `at` (n,); the same order gives the same bits.

    The rounding is that of np.add.at, in a tenth of its time.
    """
    add_runs(sums, runs_by_class(at), rows)


def runs_by_class(at: Ints) -> Runs:
    """Return how rows are grouped by class.  at: for each row the index of its class (n,)."""
    order = np.argsort(at, kind="stable")
    present, starts = np.unique(at[order], return_index=True)
    return order, present, starts


def add_runs(sums: NDArray[np.float64], runs: Runs, rows: Floats) -> None:
    """Add each of rows (n, d) to the row of its class in sums (m, d); runs: how they are grouped."""
    order, present, starts = runs
    added = np.add.reduceat(rows.take(order, axis=0), starts, axis=0, dtype=np.float64)
    if len(present) == len(sums):  # every class: without an index, that is several times as fast
        sums += added
    else:
        sums[present] += added


def slices(count: int) -> list[slice]:
    """Return the slices of samples that pass through a model between two pauses."""
    return [slice(start, start + INFERENCE_BATCH) for start in range(0, count, INFERENCE_BATCH)]


# How much is computed between two pauses, in which a device looks for news, heat and an owner who wants it to stop.

BETWEEN_PAUSES_S = 0.05
"""Seconds of training between two pauses, unless a single step takes longer."""


class FitPace:
    """Measures the steps of fits, and tells how many make up the time between two pauses."""

    def __init__(self) -> None:
        self.steps = 1
        """How many steps to take before the next pause; results do not depend on it."""

    def took(self, steps: int, seconds: float) -> None:
        """Take note of how long this number of steps took."""
        self.steps = max(1, int(BETWEEN_PAUSES_S / max(seconds / steps, 1e-9)))
