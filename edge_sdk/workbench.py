"""Serves a method's requests on one device: its model, its data, the public set.

Work is cut between batches: each request is a generator that pauses after every step, so that whoever drives it can
look for news, and stop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk import divergence
from edge_sdk.data import LocalData
from edge_sdk.errors import EdgeError, ModelError, UsageError
from edge_sdk.evaluation import personalised_accuracies
from edge_sdk.meter import Meter
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import (
    ClassMeans,
    Evaluate,
    Features,
    Fit,
    HyperMeans,
    Logits,
    MeanLoss,
    Private,
    ReadHead,
    ReadWeights,
    Request,
    SetScale,
    Source,
    WriteHead,
    WriteWeights,
)
from edge_sdk.models.base import Batches, FitReport, Model
from edge_sdk.objectives import NORM_FLOOR, CrossEntropy, Floats, Ints, Seen, at_step, softmax
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Weights
from edge_sdk.protocol.schema import one_line
from edge_sdk.public import PublicSet

INFERENCE_BATCH = 256
"""Samples between two pauses, where a whole data set passes through the model."""


@dataclass
class Workbench:
    """One device's means of work."""

    model: Model
    data: LocalData
    public: PublicSet | None = None
    meter: Meter = field(default_factory=Meter)
    discloses_classes: bool = False
    """Whether what is measured may tell how many samples of each class there are."""

    def __post_init__(self) -> None:
        """Preprocess everything once: the arrays stay the same objects, so extractors can keep their features."""
        preprocess = self.model.spec.preprocess
        self._private = preprocess(self.data.train.x)  # (n, c, h, w)
        self._labels = self.data.train.y.astype(np.int64)  # (n,)
        self._by_class = np.unique(self._labels, return_inverse=True, return_counts=True)  # (m,), (n,), (m,)
        self._public = preprocess(self.public.samples) if self.public else None  # (m, c, h, w)
        self._test = preprocess(self.data.test.x) if self.data.test else None  # (t, c, h, w)
        held_out = {"validation_accuracy": self.data.validation, "local_accuracy": self.data.local_test}
        self._held_out = {name: (preprocess(part.x), part.y) for name, part in held_out.items() if part}
        self._check()
        self.class_counts = self.data.class_counts(self.model.spec.classes)
        """Private training samples of each class."""

    def give(self, public: PublicSet) -> None:
        """Take up a public set that came later.  Raises UsageError where it does not fit this device's model."""
        samples = self.model.spec.preprocess(public.samples)  # (m, c, h, w)
        if not np.isfinite(samples).all():
            raise UsageError("the public samples hold NaN or Inf after preprocessing; clean them first")
        if samples.shape[1:] != self._private.shape[1:]:
            raise UsageError(
                f"the public samples are {samples.shape[1:]} after preprocessing, this device's own "
                f"{self._private.shape[1:]}; bring both to one size (edge_sdk.Preprocess)"
            )
        self.public, self._public = public, samples

    def _check(self) -> None:
        """Raise UsageError or ModelError for what would fail later, in the middle of a round."""
        if not len(self._private):
            raise UsageError("this device has no training samples; give it some")
        everything = {"training": self._private, "public": self._public, "test": self._test}
        everything |= {name.removesuffix("_accuracy"): inputs for name, (inputs, _) in self._held_out.items()}
        for name, samples in everything.items():
            if samples is not None and not np.isfinite(samples).all():
                raise UsageError(f"the {name} samples hold NaN or Inf after preprocessing; clean them first")
        logits, classes = self._one_answer(), self.model.spec.classes
        if logits.shape != (1, classes):
            raise ModelError(f"the model gave {logits.shape} for one sample, expected (1, {classes})")

    def _one_answer(self) -> Floats:
        """The model's logits for one sample.  Raises ModelError where it cannot take it, whatever it says itself."""
        one = self._private[:1]
        try:
            return self.model.logits(one)
        except EdgeError:
            raise
        except Exception as error:
            raise ModelError(
                f"the model cannot take a sample of shape {one.shape[1:]}, which is (c, h, w) after preprocessing: "
                f"{one_line(str(error))}"
            ) from error

    def serve(self, request: Request, job: Job) -> Generator[None, None, Any]:
        """Carry one request out, pausing between batches; returns its result (of an Evaluate: the metrics by name).

        Raises Diverged where training leaves the model unfit to use.
        """
        if isinstance(request, Fit):
            return (yield from self._fit(request, job))
        if isinstance(request, Logits):
            return (yield from self._ask(request.source, self._infer))
        if isinstance(request, Features):
            return (yield from self._ask(request.source, self._features))
        if isinstance(request, ClassMeans):
            return (yield from self._class_means(request))
        if isinstance(request, HyperMeans):
            return (yield from self._hyper_means(request))
        if isinstance(request, MeanLoss):
            return (yield from self._mean_loss())
        if isinstance(request, ReadWeights):
            values = self.model.weights()
            return Weights(
                values=values[~self.model.head_mask()] if request.without_head else values,
                layout=self.model.spec.layout,
            )
        if isinstance(request, WriteWeights):
            self._write_weights(request)
            return None
        if isinstance(request, ReadHead):
            return self.model.head_rows()
        if isinstance(request, WriteHead):
            self.model.set_head_rows(request.classes, request.rows)
            return None
        if isinstance(request, SetScale):
            self.model.set_scale(request.value, trains=request.trains)
            return None
        return {**(yield from self._evaluate(request)), **(yield from self._evaluate_held_out())}

    def _fit(self, request: Fit, job: Job) -> Generator[None, None, FitReport]:
        inputs, labels, private = self.source(request.source)
        indices = request.source.indices
        report = FitReport(steps=0, loss=0.0)
        for step in range(len(indices)):
            batches = Batches(
                inputs=inputs,
                labels=labels,
                indices=indices[step : step + 1],
                stochastic=private,
                seed=int(
                    np.random.default_rng([job.spec.seed, job.round, job.exchange, job.number, step]).integers(2**31)
                ),
            )
            report = self.model.fit(batches, at_step(request.objective, step), request.optim, request.part)
            self.meter.trained(self.model.spec, indices.shape[1], request.part, report.extra_flops)
            divergence.check_loss(report, step)
            yield
        divergence.check_weights(self.model)
        return FitReport(steps=len(indices), loss=report.loss)

    def _ask(self, source: Source, answer: Callable[[Floats], Floats]) -> Generator[None, None, Floats]:
        inputs, _, _ = self.source(source)
        steps = []
        for chosen in source.indices:
            steps.append(answer(inputs[chosen]))
            yield
        return np.stack(steps)  # (steps, b, k), or d

    def _class_means(self, request: ClassMeans) -> Generator[None, None, ClassRows]:
        """One pass in inference mode; sums and counts are divided once."""
        of_features = request.of == "features"
        found = []
        for part in slices(len(self._private)):
            x = self._private[part]
            found.append(self._features(x) if of_features else softmax(self._infer(x)))
            yield
        return self.class_means(found)

    def class_means(self, parts: Sequence[Floats]) -> ClassRows:
        """The mean of each class over rows (n, d) of all private samples, in pieces of INFERENCE_BATCH."""
        classes, at, counts = self._by_class  # (m,), (n,), (m,)
        sums = np.zeros((len(classes), parts[0].shape[1]))  # (m, d)
        for part, rows in zip(slices(len(at)), parts, strict=True):
            add_by_class(sums, at[part], rows)
        means = (sums / counts[:, None]).astype(np.float32)
        return ClassRows(classes=classes.astype(np.int32), rows=means, counts=counts.astype(np.int32))

    def _hyper_means(self, request: HyperMeans) -> Generator[None, None, HyperKnowledge]:
        classes, at, counts = self._by_class  # (m,), (n,), (m,)
        features = np.zeros((len(classes), self.model.spec.feature_dim))  # (m, d)
        soft = np.zeros((len(classes), self.model.spec.classes))  # (m, k)
        for part in slices(len(self._private)):
            f = self._features(self._private[part])
            add_by_class(features, at[part], shortened(f, request.clip))
            add_by_class(soft, at[part], softmax(self.model.head(f), request.temperature))
            yield
        return HyperKnowledge(
            classes=classes.astype(np.int32),
            features=(features / counts[:, None]).astype(np.float32),
            soft=(soft / counts[:, None]).astype(np.float32),
            counts=counts.astype(np.int32),
        )

    def _write_weights(self, request: WriteWeights) -> None:
        values = request.values
        if request.without_head:
            values = self.model.weights()
            values[~self.model.head_mask()] = request.values
        self.model.set_weights(values)

    def _mean_loss(self) -> Generator[None, None, float]:
        total = 0.0
        for part in slices(len(self._private)):
            labels = self._labels[part]
            total += len(labels) * CrossEntropy().value(Seen(self._infer(self._private[part]), labels))
            yield
        return total / len(self._private)

    def _evaluate(self, request: Evaluate) -> Generator[None, None, Mapping[str, float]]:
        if self._test is None or self.data.test is None or not len(self.data.test):
            return {}
        truth = self.data.test.y
        held = np.isin(truth, self._labels)  # (t,)
        predicted, nearest = np.empty((2, len(truth)), np.int64)
        for part in slices(len(truth)):
            predicted[part] = self._infer(self._test[part]).argmax(axis=1)
            if request.prototypes is not None:
                nearest[part] = self._nearest(request.prototypes, self._test[part])
            yield
        metrics = {"accuracy": float(np.mean(predicted == truth))}
        if held.any():
            metrics["local_accuracy"] = float(np.mean((predicted == truth)[held]))
            if request.prototypes is not None:
                metrics["prototype_accuracy"] = float(np.mean((nearest == truth)[held]))
        if self.discloses_classes:
            counts = np.bincount(self._labels, minlength=self.model.spec.classes)  # (k,)
            metrics |= personalised_accuracies(predicted == truth, truth, counts)
        return metrics

    def _evaluate_held_out(self) -> Generator[None, None, Mapping[str, float]]:
        """Accuracy on each part of the device's own data that is not trained on, where it keeps some."""
        metrics = {}
        for name, (inputs, labels) in self._held_out.items():
            right = 0
            for part in slices(len(labels)):
                right += int((self._infer(inputs[part]).argmax(axis=1) == labels[part]).sum())
                yield
            metrics[name] = right / len(labels)
        return metrics

    def _nearest(self, prototypes: ClassRows, x: Floats) -> Ints:
        """The class of the nearest prototype, of the classes that this device holds; -1 where it has none: (n,)."""
        own = np.isin(prototypes.classes, self._labels)  # (m,)
        if not own.any():
            return np.full(len(x), -1)
        rows = prototypes.rows[own].astype(np.float64)  # (m, d)
        # |f - c|^2 less |f|^2, which is the same for all c
        gaps = (rows**2).sum(axis=1) - 2 * self._features(x) @ rows.T  # (n, m)
        out: Ints = prototypes.classes[own][gaps.argmin(axis=1)].astype(np.int64)
        return out

    def _infer(self, x: Floats) -> Floats:
        self.count_inference(len(x))
        return self.model.logits(x)

    def _features(self, x: Floats) -> Floats:
        self.count_inference(len(x))
        return self.model.features(x)

    def count_inference(self, samples: int) -> None:
        """So many samples went through the model, as one batch."""
        self.meter.inferred(self.model.spec, samples)

    def source(self, source: Source) -> tuple[Floats, Ints | None, bool]:
        """Samples (n, c, h, w), their labels (n,) if any, and whether they are private.  Raises UsageError."""
        if isinstance(source, Private):
            return self._private, self._labels, True
        if self._public is None:
            raise UsageError("this method needs the public set, and this device was given none: pass public=")
        return self._public, None, False


def shortened(rows: Floats, most: float) -> Floats:
    """Rows (n, d), those that are longer than `most` shortened to it."""
    if most == np.inf:
        return rows
    lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1, keepdims=True))  # (n, 1)
    out: Floats = (rows * np.minimum(1.0, most / np.maximum(lengths, NORM_FLOOR))).astype(np.float32)
    return out


def add_by_class(sums: NDArray[np.float64], at: Ints, rows: Floats) -> None:
    """Add each of rows (n, d) to the one of sums (m, d) that `at` (n,) names; the same bits for the same order.

    What np.add.at does to rounding, in a tenth of its time.
    """
    order = np.argsort(at, kind="stable")
    present, starts = np.unique(at[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0, dtype=np.float64)


def slices(count: int) -> list[slice]:
    """What goes through a model between two pauses."""
    return [slice(start, start + INFERENCE_BATCH) for start in range(0, count, INFERENCE_BATCH)]
