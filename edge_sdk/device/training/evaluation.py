"""Measurements of a device's model: accuracies, the nearest prototype, each loss term's share of the gradient."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.workbench import Workbench, slices
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, serves
from edge_sdk.models.base import Batches, Model, step_norms
from edge_sdk.models.optim import PLAIN_STEP
from edge_sdk.objectives import Objective, Term
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import OF_CLASS


@serves(Evaluate)
def serve_evaluate(bench: Workbench, request: Evaluate, _job: Job) -> Generator[None, None, Mapping[str, float]]:
    """Return the metrics by name."""
    if not request.recorded:  # an instrument, which the method itself does not need
        bench = copy.copy(bench)
        bench.meter = Meter()
    measured = yield from _on_test_set(bench, request)
    if not request.of_own_classes:
        return {name: value for name, value in measured.items() if name == "accuracy"}
    return {**measured, **(yield from _on_held_out(bench, request))}


def _on_test_set(bench: Workbench, request: Evaluate) -> Generator[None, None, Mapping[str, float]]:
    if bench.test is None or bench.data.test is None or not len(bench.data.test):
        return {}
    truth = bench.data.test.y
    counts = np.array(bench.class_counts)  # (k,)
    held = counts[truth] > 0  # (t,)
    by_head, of_own, of_all = yield from _predicted(bench, request.prototypes, bench.test, counts)
    by_prototype = request.predicts_by == "prototype"
    predicted = of_all if by_prototype else by_head
    right = predicted == truth  # (t,)
    metrics = {"accuracy": share(right)}
    if len(bench.by_class[0]) > 1 and (predicted == predicted[0]).all() and (truth != truth[0]).any():
        metrics["constant_prediction"] = 1.0
    if held.any():
        metrics["local_accuracy"] = share(right[held])
    metrics |= class_figures(bench, "test", right, truth)
    if by_prototype:
        metrics["head_accuracy"] = share(by_head == truth)
    elif request.prototypes is not None:
        metrics["prototype_accuracy_all"] = share(of_all == truth)
        if held.any():
            metrics["prototype_accuracy"] = share((of_own == truth)[held])
    if bench.discloses_classes:
        metrics |= personalised_accuracies(right, truth, counts)
    return metrics


def _on_held_out(bench: Workbench, request: Evaluate) -> Generator[None, None, Mapping[str, float]]:
    """Return the accuracy on each held-out part of the device's own data."""
    metrics = {}
    by_prototype = request.predicts_by == "prototype"
    for name, (inputs, labels) in bench.held_out.items():
        prototypes = request.prototypes if by_prototype else None
        by_head, _, of_all = yield from _predicted(bench, prototypes, inputs, np.array(bench.class_counts))
        right = (of_all if by_prototype else by_head) == labels
        metrics[name] = share(right)
        metrics |= class_figures(bench, name, right, labels)
    return metrics


def class_figures(bench: Workbench, part: str, right: NDArray[np.bool_], truth: Ints) -> dict[str, float]:
    """Return the accuracy on the samples of each class that the device holds, if this is the part that counts for it.

    part: a metric's name in `held_out`, or `test`.  right, truth: (t,).  As for the control group, the device's own
    test part counts, else `test`, else its validation part.  Empty where classes are not measured.
    """
    counts = "local_accuracy" if bench.data.local_test else "test" if bench.data.test else "validation_accuracy"
    if not bench.measures_classes or part != counts:
        return {}
    held = truth if part != "test" else truth[np.array(bench.class_counts)[truth] > 0]
    return {f"{OF_CLASS}{each}": share(right[truth == each]) for each in np.unique(held).tolist()}


def _predicted(
    bench: Workbench, prototypes: ClassRows | None, x: Floats, counts: Ints
) -> Generator[None, None, tuple[Ints, Ints, Ints]]:
    """Return the classes of samples (n, c, h, w) by the head, by the nearest prototype of own classes, and of all.

    Each is (n,); without prototypes the last two are -1.
    """
    nearest = [NearestPrototype(prototypes, each) for each in (counts, np.ones_like(counts))] if prototypes else []
    found = np.full((3, len(x)), -1)
    for part in slices(len(x)):
        yield from bench.ahead(x[part])
        if nearest:
            logits, features = bench.outputs(x[part])
            found[1:, part] = [each(features) for each in nearest]
        else:
            logits = bench.logits(x[part])
        found[0, part] = logits.argmax(axis=1)
        yield
    return found[0], found[1], found[2]


class NearestPrototype:
    """Classifies features by the nearest prototype among the classes that a device holds (FedProto, equation 4).

    Distances are f8.  They take a thirtieth of an evaluation, and f4 would need an equally slow second pass for near
    ties.
    """

    def __init__(self, prototypes: ClassRows, counts: Ints) -> None:
        """counts: the device's training samples of each class (k,)."""
        own = counts[prototypes.classes] > 0  # (m,)
        rows = prototypes.rows[own].astype(np.float64)  # (m, d)
        self._classes = prototypes.classes[own].astype(np.int64)
        self._squares, self._twice = (rows**2).sum(axis=1), np.ascontiguousarray(2 * rows.T)  # (m,), (d, m)

    def __call__(self, features: Floats) -> Ints:
        """Return the class of each sample, -1 without a prototype of the device's classes: (n, d) -> (n,)."""
        if not len(self._classes):
            return np.full(len(features), -1)
        gaps = self._squares - features @ self._twice  # |f - c|^2 minus |f|^2, which is the same for all c: (n, m)
        found: Ints = self._classes[gaps.argmin(axis=1)]
        return found


def share(right: NDArray[np.bool_]) -> float:
    """Return the accuracy of samples of equal weight; right: whether each was classified correctly (t,), t > 0."""
    return int(np.count_nonzero(right)) / len(right)


def weighted_accuracy(right: NDArray[np.bool_], truth: Ints, weights: Floats) -> float | None:
    """Return sum_j a(y_j) 1[right_j] / sum_j a(y_j) over the test samples j (FedNH, section on evaluation metrics).

    right: (t,) bool, whether each sample was classified correctly; truth: (t,) i8 labels; weights: the a of each
    class, (k,), not negative.  Returns None if the weights of all test samples are 0.
    """
    each = weights[truth].astype(np.float64)  # (t,)
    total = float(each.sum())
    return float(each[right].sum()) / total if total > 0 else None


def personalised_accuracies(right: NDArray[np.bool_], truth: Ints, counts: Ints) -> Mapping[str, float]:
    """Return FedNH's PM(V) and PM(L) of one device, as `pm_v` and `pm_l`.

    PM(V) gives all classes that the device holds the same weight.  PM(L) weighs each class by its share of the
    device's samples, as if the test were distributed like them.  FedNH defines both on a balanced test set.  Their
    exact values reveal something about the shares, so a device reports them only if its owner discloses the shares.

    right: (t,) bool; truth: (t,) i8; counts: (k,) the device's training samples of each class.
    """
    found = {
        "pm_v": weighted_accuracy(right, truth, (counts > 0).astype(np.float32)),
        "pm_l": weighted_accuracy(right, truth, (counts / max(1, counts.sum())).astype(np.float32)),
    }
    return {name: value for name, value in found.items() if value is not None}


def term_shares(model: Model, batches: Batches, objective: Objective, part: Part = "all") -> Mapping[str, float]:
    """Return each term's gradient norm over the sum of all terms' norms, by the names of `term_names`.

    batches: one mini-batch.  The gradient of one term is the difference of the weights before and after a step of plain
    SGD with this term alone.  Afterwards the model is restored, with optimiser moments and running statistics.  Terms
    that are inert for the model are left out.  Empty if fewer than two terms remain, the model does not expose its
    weights, or a gradient is not finite.
    """
    spec = model.spec
    named = {name: term for name, term in term_names(objective).items() if term.name not in spec.inert_terms}
    if len(named) < 2 or "weights" not in spec.capabilities:
        return {}
    terms = tuple(named.values())
    norms = step_norms(model, batches, terms, part)
    if norms is None:
        norms = _norms_of_steps(model, batches, terms, part)
    total = sum(norms)
    if not (isfinite(total) and total > 0):
        return {}
    return {name: norm / total for name, norm in zip(named, norms, strict=True)}


def _norms_of_steps(model: Model, batches: Batches, terms: Objective, part: Part) -> list[float]:
    """Compute step_norms for any model, by steps that are undone."""
    state, before = model.state_bytes(), model.weights()  # (p,)
    norms = []
    for term in terms:
        model.fit(batches, (term,), PLAIN_STEP, part)
        norms.append(float(np.linalg.norm((model.weights() - before).astype(np.float64))))
        model.load_state(state)
    return norms


def term_names(objective: Objective) -> dict[str, Term]:
    """Return the terms by name, with a number from 2 added if an earlier term has the same name."""
    found: dict[str, Term] = {}
    for place, term in enumerate(objective):
        earlier = sum(each.name == term.name for each in objective[:place])
        found[f"{term.name}.{earlier + 1}" if earlier else term.name] = term
    return found
