"""The handlers of the requests in edge_sdk/methods/contract/requests.py, on a device's workbench."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Doubles, Floats
from edge_sdk.device.training import divergence
from edge_sdk.device.training.evaluation import NearestPrototype, personalised_accuracies, share
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.private_release import check_finite, keyed_noise, released_once, version_of
from edge_sdk.device.training.term_shares import term_shares
from edge_sdk.device.training.workbench import Workbench, add_by_class, slices
from edge_sdk.errors import NotReleased, StoreError, UsageError
from edge_sdk.methods.contract import requests
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Source, serves
from edge_sdk.models.base import Batches, FitReport, fits_at_once, lent_weights
from edge_sdk.models.checks import check_weights
from edge_sdk.models.cosine_head import scaled
from edge_sdk.objectives import Coupling, CrossEntropy, Seen, at_step, at_steps, bounded, softmax
from edge_sdk.privacy.release import FROZEN, Assumptions, contributions, promised, sums_by_class
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Weights
from edge_sdk.protocol.low_rank import LowRank, as_matrix, factorised, joined

_T = TypeVar("_T")
PROXY = requests.Request(of="proxy")
"""A request about the proxy, to find its workbench."""
Serving: TypeAlias = Generator[None, None, _T]
"""A running handler: it yields at pauses and returns the answer."""


@serves(requests.Fit)
def serve_fit(bench: Workbench, request: requests.Fit, job: Job) -> Serving[FitReport]:
    """Take one step between two pauses, each with its own seed, or several if the model fits several at once."""
    source, done = request.source, 0
    steps, size = source.indices.shape
    report = FitReport(steps=0, loss=0.0)
    at_once = fits_at_once(bench.model, request.objective, stochastic=isinstance(source, requests.Private))
    while done < steps:
        chosen = slice(done, min(steps, done + (bench.pace.steps if at_once else 1)))
        batches = batches_of_steps(bench, source, job, chosen, draws=not at_once)
        begun_s = time.perf_counter()
        report = bench.model.fit(batches, at_steps(request.objective, chosen), request.optim, request.part)
        bench.pace.took(chosen.stop - done, time.perf_counter() - begun_s)
        bench.meter.trained(bench.model.spec, size, request.part, report.extra_flops, report.steps)
        done += report.steps
        divergence.check_loss(report, done - 1)
        yield
    divergence.check_weights_finite(bench.model)
    return FitReport(steps=steps, loss=report.loss, instruments=report.instruments)


def batches_of_step(bench: Workbench, source: Source, job: Job, step: int) -> Batches:
    """Return the mini-batch of one step of a fit, with the step's seed."""
    return batches_of_steps(bench, source, job, slice(step, step + 1))


def batches_of_steps(bench: Workbench, source: Source, job: Job, steps: slice, *, draws: bool = True) -> Batches:
    """Return the mini-batches of some steps of a fit, with the seed of the first.

    draws: whether the model may use the seed; if not, it is 0, and no generator is made.
    """
    inputs, labels, indices = bench.batches(source, steps, job)
    key = [job.spec.seed, job.round, job.exchange, job.number, steps.start]
    return Batches(
        inputs=inputs,
        labels=labels,
        indices=indices,
        stochastic=isinstance(source, requests.Private),
        seed=int(np.random.default_rng(key).integers(2**31)) if draws else 0,
    )


@serves(requests.TermShares)
def serve_term_shares(bench: Workbench, request: requests.TermShares, job: Job) -> Mapping[str, float]:
    """Measure each term on the fit's last mini-batch; not metered, because the method itself does not need it."""
    fit, last = request.fit, len(request.fit.source.indices) - 1
    if isinstance(fit, requests.FitBoth):
        return _shares_of_both(bench, fit, job, last)
    draws = not fits_at_once(bench.model, fit.objective, stochastic=isinstance(fit.source, requests.Private))
    batches = batches_of_steps(bench, fit.source, job, slice(last, last + 1), draws=draws)
    return term_shares(bench.model, batches, at_step(fit.objective, last), fit.part)


def _shares_of_both(bench: Workbench, fit: requests.FitBoth, job: Job, step: int) -> Mapping[str, float]:
    """Return the shares in both models' gradients, by names that begin with `own` and `proxy`."""
    unmetered = (copy.copy(each) for each in (bench, bench.of(PROXY)))
    both = [(each, batches_of_step(each, fit.source, job, step)) for each in unmetered]
    for each, _ in both:
        each.meter = Meter()
    seen = [_said(each, batches, fit.coupling) for each, batches in both]
    shares: dict[str, float] = {}
    for role, (each, batches), objective in zip(("own", "proxy"), both, fit.coupling.objectives(*seen), strict=True):
        found = term_shares(each.model, batches, objective)
        shares |= {f"{role}.{name}": share for name, share in found.items()}
    return shares


@serves(requests.Report)
def serve_report(_bench: Workbench, _request: requests.Report, _job: Job) -> None:
    """No-op: the Learner collects Report values."""


@serves(requests.FitBoth)
def serve_fit_both(bench: Workbench, request: requests.FitBoth, job: Job) -> Serving[Coupling]:
    """Take one step of each model between two pauses; both objectives are made before either model changes."""
    proxy, coupling = bench.of(PROXY), request.coupling
    for step in range(len(request.source.indices)):
        both = [(each, batches_of_step(each, request.source, job, step)) for each in (bench, proxy)]
        own_seen, proxy_seen = (_said(each, batches, coupling) for each, batches in both)
        objectives = coupling.objectives(own_seen, proxy_seen)
        coupling = coupling.after(own_seen, proxy_seen)
        optims = (request.optim, request.proxy_optim)
        for (each, batches), objective, optim in zip(both, objectives, optims, strict=True):
            report = each.model.fit(batches, objective, optim)
            each.meter.trained(each.model.spec, batches.indices.size, "all", report.extra_flops)
            divergence.check_loss(report, step)
        yield
    for each in (bench, proxy):
        divergence.check_weights_finite(each.model)
    return coupling


def _said(bench: Workbench, batches: Batches, coupling: Coupling) -> Seen:
    """Return a model's inference on one mini-batch."""
    (index,) = batches.indices
    inputs, found = batches.inputs[index], None if batches.labels is None else batches.labels[index]
    features = bench.features(inputs) if coupling.on_features else None  # (b, d)
    if features is not None and "head-rows" in bench.model.spec.capabilities:
        return Seen(bench.model.head(features), found, features=features)
    return Seen(bench.logits(inputs), found, features=features)


@serves(requests.Logits)
def serve_logits(bench: Workbench, request: requests.Logits, job: Job) -> Serving[Floats]:
    """Compute the logits batch by batch."""
    return (yield from _answers(bench, request.source, job, bench.logits))


@serves(requests.Features)
def serve_features(bench: Workbench, request: requests.Features, job: Job) -> Serving[Floats]:
    """Compute the features batch by batch."""
    return (yield from _answers(bench, request.source, job, bench.features))


def _answers(bench: Workbench, source: Source, job: Job, answer: Callable[[Floats], Floats]) -> Serving[Floats]:
    steps = []
    for step in range(len(source.indices)):
        inputs, _, chosen = bench.batch(source, step, job)
        steps.append(answer(inputs[chosen]))
        yield
    return np.stack(steps)  # (steps, b, k), or d


@serves(requests.ClassMeans)
def serve_class_means(bench: Workbench, request: requests.ClassMeans, _job: Job) -> Serving[ClassRows]:
    """Compute the means in one pass in inference mode; sums are divided by counts once."""
    found = []
    for part in slices(len(bench.samples)):
        x = bench.samples[part]
        found.append(bench.features(x) if request.rows == "features" else softmax(bench.logits(x)))
        yield
    return bench.class_means(found)


@serves(requests.HyperMeans)
def serve_hyper_means(bench: Workbench, request: requests.HyperMeans, _job: Job) -> Serving[HyperKnowledge]:
    """Compute the means in one pass in inference mode; sums are divided by counts once."""
    classes, at, counts = bench.by_class  # (m,), (n,), (m,)
    sums = np.zeros((len(classes), bench.model.spec.feature_dim))  # (m, d)
    soft = np.zeros((len(classes), bench.model.spec.classes))  # (m, k)
    bare = bench.bare_classes()
    for part in slices(len(bench.samples)):
        features = bench.features(bench.samples[part])
        if not request.of_all:
            bare.see(part, features)
        f = bounded(features, request.clip, cube=request.cube)
        add_by_class(sums, at[part], f)
        add_by_class(soft, at[part], softmax(bench.model.head(f), request.temperature))
        yield
    rows = bench.class_rows((sums / counts[:, None]).astype(np.float32), bare)
    means = (soft / counts[:, None])[~bare.found].astype(np.float32)
    return HyperKnowledge(classes=rows.classes, features=rows.rows, soft=means, counts=rows.counts)


@serves(requests.ReleaseSums)
def serve_release(bench: Workbench, request: requests.ReleaseSums, job: Job) -> Serving[requests.Released]:
    """Sum in one pass in inference mode; the budget ledger holds the release before the answer is returned."""
    ledger, cost = bench.budget, request.cost
    private = ledger is not None
    assumed = Assumptions(
        frozen_extractor=FROZEN in bench.model.spec.inert_terms,
        noised_counts=private,
        figures_withheld=private,
        once_per_data=private,
    )
    if request.insists and (cost is None or assumed != Assumptions(frozen_extractor=True)):
        raise UsageError(f"privacy: {promised(assumed, cost)}")
    found = []
    for part in slices(len(bench.samples)):
        found.append(bench.features(bench.samples[part]))
        yield
    features = np.concatenate(found)  # (n, d)
    version = version_of(features, bench.labels, request.clip)

    def make() -> Doubles:
        sums = sums_by_class(contributions(features, request.clip), bench.labels, bench.model.spec.classes)
        return keyed_noise(sums, cost, job.secret, version)

    check_finite(features, bench.labels)
    if ledger is None or cost is None:
        return requests.Released(make(), version)
    try:
        return released_once(ledger, version, cost, make, earlier=request.version)
    except (UsageError, StoreError) as error:
        raise NotReleased(str(error)) from error


@serves(requests.HeadGradients)
def serve_head_gradients(bench: Workbench, request: requests.HeadGradients, _job: Job) -> Serving[ClassRows]:
    """Sum (softmax(W h + b) - onehot(y)) (h, 1) of each class in f8, and divide once."""
    classes, at, counts = bench.by_class  # (m,), (n,), (m,)
    layer = request.layer.astype(np.float64)
    sums = np.zeros((len(classes), *layer.shape))  # (m, k, d + 1)
    bare = bench.bare_classes()  # one sample's gradient is a multiple of its feature
    for part in slices(len(bench.samples)):
        features = bench.features(bench.samples[part])
        bare.see(part, features)
        h = features.astype(np.float64)
        h = np.concatenate([h, np.ones((len(h), 1))], axis=1)  # (b, d + 1)
        errors = softmax(h @ layer.T)  # (b, k)
        errors[np.arange(len(h)), bench.labels[part]] -= 1
        for each in np.unique(at[part]):
            own = at[part] == each
            sums[each] += errors[own].T @ h[own]
        yield
    rows = (sums / counts[:, None, None]).reshape(len(classes), -1).astype(np.float32)
    return bench.class_rows(rows, bare)


@serves(requests.BoundedShare)
def serve_bounded_share(bench: Workbench, request: requests.BoundedShare, _job: Job) -> Serving[float]:
    """Count the features that the bound changes, in one pass in inference mode."""
    changed = 0
    for part in slices(len(bench.samples)):
        f = bench.features(bench.samples[part])
        changed += int((bounded(f, request.clip, cube=request.cube) != f).any(axis=1).sum())
        yield
    return changed / len(bench.samples)


@serves(requests.MeanLoss)
def serve_mean_loss(bench: Workbench, _request: requests.MeanLoss, _job: Job) -> Serving[float]:
    """Sum the loss over all samples, and divide once."""
    total = 0.0
    for part in slices(len(bench.samples)):
        labels = bench.labels[part]
        total += len(labels) * CrossEntropy().value(Seen(bench.logits(bench.samples[part]), labels))
        yield
    return total / len(bench.samples)


@serves(requests.ReadWeights)
def serve_read_weights(bench: Workbench, request: requests.ReadWeights, _job: Job) -> Weights:
    """Return the weights.

    Raises ModelError if their number differs from the declared one, UsageError for a model with a proxy, whose weights
    never leave.
    """
    bench.check_may_leave()
    values = lent_weights(bench.model) if request.lent else bench.model.weights()
    if bench.model.spec.parameters:
        check_weights(bench.model.spec, values)
    if request.without_head:
        values = values[~bench.model.head_mask()]
    return Weights(values=values, layout=bench.model.spec.layout)


@serves(requests.ReadChange)
def serve_read_change(bench: Workbench, request: requests.ReadChange, _job: Job) -> Serving[LowRank]:
    """Factorise the change array by array; a model that declares no shapes counts as one vector."""
    bench.check_may_leave()
    spec, values = bench.model.spec, bench.model.weights()
    shapes = [as_matrix(shape) for shape in spec.shapes or ((values.size,),)]
    change = values if request.base is None else values - request.base
    found, begin = [], 0
    for a, b in shapes:
        array, begin = change[begin : begin + a * b].reshape(a, b), begin + a * b
        if request.base is None:
            found.append((0, array.ravel()))
            continue
        found.append(factorised(array, request.energy))
        bench.meter.train_flops += _svd_flops(a, b)
        yield
    return joined(shapes, found, spec.layout)


def _svd_flops(a: int, b: int) -> int:
    """Return the operations of a thin singular value decomposition (Golub and Van Loan, R-SVD: 6 m n^2 + 20 n^3)."""
    m, n = max(a, b), min(a, b)
    return 6 * m * n**2 + 20 * n**3 if n > 1 else 0


@serves(requests.WriteWeights)
def serve_write_weights(bench: Workbench, request: requests.WriteWeights, _job: Job) -> None:
    """Write the weights; the last layer stays unchanged if its weights are not given."""
    values = request.values
    if request.without_head:
        values = bench.model.weights()
        values[~bench.model.head_mask()] = request.values
    bench.model.set_weights(values)


@serves(requests.ReadHead)
def serve_read_head(bench: Workbench, request: requests.ReadHead, _job: Job) -> Floats:
    """Return a copy of the head rows."""
    rows = bench.model.head_rows()
    return rows if request.bias else rows[:, :-1].copy()


@serves(requests.WriteHead)
def serve_write_head(bench: Workbench, request: requests.WriteHead, _job: Job) -> None:
    """Write the rows of these classes."""
    rows = request.rows
    if rows.shape[1] == bench.model.spec.feature_dim:
        rows = np.hstack([rows, bench.model.head_rows()[request.classes, -1:]])
    bench.model.set_head_rows(request.classes, rows)


@serves(requests.SetScale)
def serve_set_scale(bench: Workbench, request: requests.SetScale, _job: Job) -> None:
    """Set the scale.  Raises Unsupported for a model without a cosine head."""
    scaled(bench.model).set_scale(request.value, trains=request.trains)


@serves(requests.Evaluate)
def serve_evaluate(bench: Workbench, request: requests.Evaluate, _job: Job) -> Serving[Mapping[str, float]]:
    """Return the metrics by name."""
    measured = yield from _on_test_set(bench, request)
    if not request.of_own_classes:
        return {name: value for name, value in measured.items() if name == "accuracy"}
    return {**measured, **(yield from _on_held_out(bench))}


def _on_test_set(bench: Workbench, request: requests.Evaluate) -> Serving[Mapping[str, float]]:
    if bench.test is None or bench.data.test is None or not len(bench.data.test):
        return {}
    truth = bench.data.test.y
    counts = np.array(bench.class_counts)  # (k,)
    held = counts[truth] > 0  # (t,)
    nearest_of = NearestPrototype(request.prototypes, counts) if request.prototypes is not None else None
    predicted, nearest = np.empty((2, len(truth)), np.int64)
    for part in slices(len(truth)):
        if nearest_of is None:
            logits = bench.logits(bench.test[part])
        else:
            logits, features = bench.outputs(bench.test[part])
            nearest[part] = nearest_of(features)
        predicted[part] = logits.argmax(axis=1)
        yield
    right = predicted == truth  # (t,)
    metrics = {"accuracy": share(right)}
    if len(bench.by_class[0]) > 1 and (predicted == predicted[0]).all() and (truth != truth[0]).any():
        metrics["constant_prediction"] = 1.0
    if held.any():
        metrics["local_accuracy"] = share(right[held])
        if nearest_of is not None:
            metrics["prototype_accuracy"] = share((nearest == truth)[held])
    if bench.discloses_classes:
        metrics |= personalised_accuracies(right, truth, counts)
    return metrics


def _on_held_out(bench: Workbench) -> Serving[Mapping[str, float]]:
    """Return the accuracy on each held-out part of the device's own data."""
    metrics = {}
    for name, (inputs, labels) in bench.held_out.items():
        right = 0
        for part in slices(len(labels)):
            right += int((bench.logits(inputs[part]).argmax(axis=1) == labels[part]).sum())
            yield
        metrics[name] = right / len(labels)
    return metrics
