"""One device's model, its data and the public set, on which handlers carry out a method's requests.

Handlers (see handlers.py) pause after every batch, so that their driver can check for messages and stop requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import LocalData, Raw, augment_draws
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.private_release import BareClasses, only_samples
from edge_sdk.errors import EdgeError, ModelError, StoreError, UsageError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Private, Request, Source, handler_of
from edge_sdk.models.base import Model, ModelSpec, ahead, outputs
from edge_sdk.models.checks import check_logits
from edge_sdk.models.spliced import Spliced, is_spliced
from edge_sdk.protocol.frames.schema import one_line
from edge_sdk.protocol.frames.value_range import all_finite
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.public_set.samples import PublicSet

Runs: TypeAlias = tuple[Ints, Ints, Ints]
"""Rows grouped by class: their order (n,), the classes present (c,), and where each begins in that order (c,)."""
INFERENCE_BATCH = 256
"""The number of samples between two pauses when a whole data set passes through the model."""
MAX_DISCLOSED_CLASSES = 32768
"""A Hello has room for the sample counts of this many classes; a device with more classes sends none."""
_TWO_MODELS = b"\xff\xff\xff\xffproxy"
"""Prefix of the saved state of two models, which the state of one never has (edge_sdk.models.base.pack_arrays)."""


def joint_capabilities(own: ModelSpec, proxy: ModelSpec | None) -> frozenset[str]:
    """A model's capabilities; with a proxy, those of both, and `proxy` in place of `weights`."""
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
    """The maximum number of training samples in a store, or 0 if the data do not change."""
    shares_codes: bool = False
    """Whether the owner lets codes and labels of single samples leave."""
    budget: BudgetLedger | None = None
    """The owner's privacy budget, if any; with one, numbers of samples leave the device only with noise."""
    beside: Workbench | None = None
    """The workbench of the device's own model, if this is the proxy's workbench."""
    measures_classes: bool = False
    """Whether evaluations also measure each class, for the owner and for those to whom classes are disclosed."""

    tell_of_classes: Callable[[str], None] = field(default=lambda _line: None, repr=False)
    """Called with lines for the owner that name classes."""
    reported: set[str] = field(default_factory=set, repr=False)
    """The lines already given to `tell_of_classes`."""

    def __post_init__(self) -> None:
        """Preprocess all data once; the arrays stay the same objects, so that extractors can cache their features."""
        self.proxy: Workbench | None = None
        """The workbench of the proxy on the same data, if there is a proxy."""
        self.spliced: Spliced | None = None
        """The own model and the proxy, in methods under which they predict together."""
        self.pace = FitPace()
        """Sets the number of steps of a fit between two pauses."""
        self.preprocessed: dict[int, Floats] = {}
        """The samples after preprocessing, by `id` of the raw array, which `data` or `public` keeps alive."""
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
        self._check_kind(data)
        self.samples = np.empty((0, 1, 1, 1), np.float32)
        """The private training samples after preprocessing: (n, c, h, w)."""
        self.test: Floats | None = None  # (t, c, h, w)
        self.held_out: Mapping[str, tuple[Floats, Ints]] = {}
        """Held-out (samples, labels) by metric name."""
        # Old arrays were released above, so two data sets never coexist in memory.
        if len(data.train):
            self.samples = preprocess(data.train.x)
        self.labels = data.train.y.astype(np.int64)  # (n,)
        self.by_class = np.unique(self.labels, return_inverse=True, return_counts=True)
        """The classes held, ascending (m,), the index of each sample's class (n,), the samples of each class (m,)."""
        self._alone = only_samples(self.by_class)
        self._runs: list[tuple[slice, Runs]] | None = None
        """The samples of each slice grouped by class, computed when means are first needed."""
        if data.test:
            self.test = preprocess(data.test.x)
        held_out = {"validation_accuracy": data.validation, "local_accuracy": data.local_test}
        self.held_out = {name: (preprocess(part.x), part.y) for name, part in held_out.items() if part}
        self._check()
        self.class_counts = data.class_counts(self.model.spec.classes)
        """The number of private training samples of each class."""

    def add_proxy(self, model: Model) -> None:
        """Add a second model, the proxy, whose weights are shared in place of the own model's.

        Raises UsageError if it does not match the classes, or cannot train and share weights.
        """
        own, proxy = self.model.spec, model.spec
        if proxy.classes != own.classes:
            raise UsageError(
                f"proxy: {proxy.name} has {proxy.classes} classes, the device's own model {own.name} "
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
            raise UsageError("this method trains a proxy beside the device's own model: give proxy=")
        return self.proxy

    def check_may_leave(self) -> None:
        """Raise UsageError if the own model has a proxy, because then only the proxy's weights may leave."""
        if self.proxy is not None:
            raise UsageError("the weights of a model with a proxy never leave the device: ask for the proxy's")

    @property
    def predictor(self) -> Model | Spliced:
        """The model that predicts: the device's own, or the own model and the proxy together."""
        return self.spliced or self.model

    @property
    def disclosed_counts(self) -> tuple[int, ...]:
        """The samples of each class if the owner discloses them, or else nothing."""
        return self.class_counts if self.discloses_classes and self.model.spec.classes <= MAX_DISCLOSED_CLASSES else ()

    @property
    def shared(self) -> ModelSpec:
        """The description of the model whose weights are shared: the proxy, if there is one."""
        return self.proxy.model.spec if self.proxy is not None else self.model.spec

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the device's model, or with a proxy the joint ones."""
        found = joint_capabilities(self.model.spec, self.proxy.model.spec if self.proxy is not None else None)
        return found | {"sample-codes"} if self.shares_codes else found

    @property
    def terms(self) -> frozenset[str]:
        """The loss terms that the model can minimise, or with a proxy both models."""
        return joint_terms(self.model.spec, self.proxy.model.spec if self.proxy is not None else None)

    def state_bytes(self) -> bytes:
        """Return the state of the model, or of both models."""
        if self.spliced is not None:
            return self.spliced.state_bytes()
        own = self.model.state_bytes()
        if self.proxy is None:
            return own
        return b"".join((_TWO_MODELS, len(own).to_bytes(8, "little"), own, self.proxy.model.state_bytes()))

    def load_state(self, state: bytes) -> None:
        """Restore exactly the result of state_bytes.  Raises StoreError if it does not fit."""
        if self.proxy is None:
            self.model.load_state(state)
            return
        self.spliced = Spliced(self.model, self.proxy.model) if is_spliced(state) else None
        if self.spliced is not None:
            self.spliced.load_state(state)
            return
        begin = len(_TWO_MODELS) + 8
        if state[: len(_TWO_MODELS)] != _TWO_MODELS:
            raise StoreError(
                "the saved state is from a device without a proxy: remove FEDERATION.db in the state folder"
            )
        end = begin + int.from_bytes(state[begin - 8 : begin], "little")
        self.model.load_state(state[begin:end])
        self.proxy.model.load_state(state[end:])

    def _preprocess(self, raw: Raw) -> Floats:
        """Return samples as the model takes them; a proxy with the same preprocessing shares the own model's arrays."""
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

    def labelled_public(self) -> tuple[Floats, Ints] | None:
        """Return the public samples with a label (m, c, h, w) and their labels (m,), or None without any."""
        if self.public is None or self._public is None or self.public.labels is None:
            return None
        known = self.public.labels >= 0
        if known.all():  # without a copy
            return self._public, self.public.labels
        return (self._public[known], self.public.labels[known]) if known.any() else None

    def _check(self) -> None:
        """Raise UsageError or ModelError for data that would otherwise fail in the middle of a round."""
        self._check_public_labels()
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

    def _check_kind(self, data: LocalData) -> None:
        """Raise UsageError for a declared kind of samples that the model does not take so."""
        declared, taken = data.train.declared, self.model.spec.preprocess.declared
        if declared is None or (declared.name in ("picture", "vector") and taken is None):
            return
        if taken is None or taken.name != declared.name or taken.vocabulary < declared.vocabulary:
            raise UsageError(
                f"the samples are declared as {declared}, and model {self.model.spec.name!r} takes "
                f"{taken or 'them undeclared'}: give it preprocess=edge_sdk.Preprocess({declared.remedy})"
            )

    def _check_public_labels(self) -> None:
        labels, classes = None if self.public is None else self.public.labels, self.model.spec.classes
        if labels is not None and labels.max() >= classes:
            raise UsageError(
                f"public: labels up to {labels.max()}: the model and the federation have classes 0..{classes - 1}"
            )

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
        """Carry one request out, pausing between batches; returns the answer that the request's class documents.

        Raises Diverged if training ruins the model, UsageError if the request has no handler.
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
        """Return a detector of classes whose mean would be a sample, for one pass over the features."""
        return BareClasses(self.samples, self.by_class, self._alone)

    def class_rows(self, rows: Floats, bare: BareClasses) -> ClassRows:
        """Return rows of the classes held (m, d) without those whose mean would be a sample, which is reported once.

        Raises NotReleased if none are left.
        """
        (classes, _, counts), kept = self.by_class, bare.kept(self._tell_once)
        return ClassRows(classes=classes[kept].astype(np.int32), rows=rows[kept], counts=counts[kept].astype(np.int32))

    def _tell_once(self, line: str) -> None:
        first = self.beside or self
        if line not in first.reported:
            first.reported.add(line)
            first.tell_of_classes(line)

    def ahead(self, x: Floats) -> Iterator[None]:
        """Let the predictor do the costly part of its answer beforehand, with pauses."""
        yield from ahead(self.predictor, x)

    def logits(self, x: Floats) -> Floats:
        """Return the predictor's logits for samples from `source`, and count them: (n, c, h, w) -> (n, k).

        Raises ModelError for logits of another shape.
        """
        self.count_inference(len(x))
        found = self.predictor.logits(x)
        check_logits(self.model.spec, found, len(x))
        return found

    def features(self, x: Floats) -> Floats:
        """Return the model's features for samples from `source`, and count them: (n, c, h, w) -> (n, d)."""
        self.meter.inferred(self.model.spec, len(x))
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
        """Count one batch of this number of predictions."""
        self.meter.inferred(self.model.spec, samples)
        if self.spliced is not None:
            self.meter.inferred(self.spliced.proxy.spec, samples)

    def batch(self, source: Source, step: int, job: Job) -> tuple[Floats, Ints | None, Ints]:
        """Return one mini-batch: samples (n, c, h, w), labels (n,) if any, and the indices of the batch (b,).

        Private samples are augmented if the data ask for it, in the same way for every request of a round.
        """
        inputs, labels, (index,) = self.batches(source, slice(step, step + 1), job)
        return inputs, labels, index

    def batches(self, source: Source, steps: slice, job: Job) -> tuple[Floats, Ints | None, Ints]:
        """Return the mini-batches of some steps, as `batch` does, with indices (steps, b)."""
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
            raise UsageError("this method needs the public set, which this device lacks: pass public=")
        return self._public, None, False


def add_by_class(sums: NDArray[np.float64], at: Ints, rows: Floats) -> None:
    """Add each of rows (n, d) to the row of sums (m, d) given by `at` (n,).

    It gives the same bits as np.add.at in a tenth of the time.
    """
    add_runs(sums, runs_by_class(at), rows)


def runs_by_class(at: Ints) -> Runs:
    """Group rows by class.  at: the index of each row's class (n,)."""
    order = np.argsort(at, kind="stable")
    present, starts = np.unique(at[order], return_index=True)
    return order, present, starts


def add_runs(sums: NDArray[np.float64], runs: Runs, rows: Floats) -> None:
    """Add each of rows (n, d) to the row of its class in sums (m, d); runs: the rows grouped by class."""
    order, present, starts = runs
    added = np.add.reduceat(rows.take(order, axis=0), starts, axis=0, dtype=np.float64)
    if len(present) == len(sums):  # every class: without an index the sum is several times as fast
        sums += added
    else:
        sums[present] += added


def slices(count: int) -> list[slice]:
    """Return the slices of samples that pass through a model between two pauses."""
    return [slice(start, start + INFERENCE_BATCH) for start in range(0, count, INFERENCE_BATCH)]


# How many training steps to run between checks for messages, temperature and stop requests.

BETWEEN_PAUSES_S = 0.05
"""Seconds of training between two pauses, unless a single step takes longer."""


class FitPace:
    """Chooses the number of training steps between two pauses from their measured duration."""

    def __init__(self) -> None:
        self.steps = 1
        """The number of steps before the next pause; results do not depend on it."""

    def took(self, steps: int, seconds: float) -> None:
        """Record the duration of the last steps."""
        self.steps = max(1, int(BETWEEN_PAUSES_S / max(seconds / steps, 1e-9)))
