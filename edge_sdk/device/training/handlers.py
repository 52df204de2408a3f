"""The handlers of the requests in edge_sdk/methods/contract/requests.py, on a device's workbench."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.device.training import divergence
from edge_sdk.device.training.evaluation import term_shares
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.private_release import check_finite, keyed_noise, released_once, version_of
from edge_sdk.device.training.workbench import Workbench, add_by_class, slices
from edge_sdk.errors import NotReleased, StoreError, UsageError
from edge_sdk.methods.contract import requests
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Source, serves
from edge_sdk.models.base import Batches, FitReport, fits_at_once, lent_weights, preparing
from edge_sdk.models.checks import check_weights, directed
from edge_sdk.models.cosine_head import scaled
from edge_sdk.models.spliced import Spliced, splice_fault
from edge_sdk.objectives import (
    NORM_FLOOR,
    Coupling,
    CrossEntropy,
    Objective,
    Optim,
    Seen,
    at_step,
    at_steps,
    bounded,
    softmax,
)
from edge_sdk.privacy.release import FROZEN, Assumptions, contributions, promised, sums_by_class
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Weights
from edge_sdk.protocol.low_rank import LowRank, as_matrix, factorised, joined
from edge_sdk.protocol.sample_knowledge import VERSION_BYTES, SampleCodes

_T = TypeVar("_T")
_CODES = 0x636F6465
"""Gives the projection of samples random numbers of its own in a federation."""
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
        if not done:
            yield from preparing(bench.model, batches, request.objective, request.part)
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
        if not step:
            for (each, batches), objective in zip(both, objectives, strict=True):
                yield from preparing(each.model, batches, objective, "all")
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
        return Seen(bench.model.head(features), found, features=features, head=bench.model.head)
    return Seen(bench.logits(inputs), found, features=features)


@serves(requests.ReadSplice)
def serve_read_splice(bench: Workbench, _request: requests.ReadSplice, _job: Job) -> Floats | None:
    """Return the rows that join both models' features, if there are any."""
    fault = splice_fault(bench.model.spec, bench.of(PROXY).model.spec)
    if fault:
        raise UsageError(fault)
    return None if bench.spliced is None else bench.spliced.rows


@serves(requests.WriteSplice)
def serve_write_splice(bench: Workbench, request: requests.WriteSplice, _job: Job) -> None:
    """Let both models predict together."""
    bench.spliced = Spliced(bench.model, bench.of(PROXY).model, request.rows)


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


@serves(requests.OwnLogits)
def serve_own_logits(bench: Workbench, _request: requests.OwnLogits, _job: Job) -> Serving[Floats]:
    """Compute the logits in one pass in inference mode."""
    found = []
    for part in slices(len(bench.samples)):
        yield from bench.ahead(bench.samples[part])
        found.append(bench.logits(bench.samples[part]))
        yield
    return np.concatenate(found)


_WORDS = 4096
"""Maximum number of buckets in which the tokens of a text are counted for its code."""


@serves(requests.EncodeSamples)
def serve_encode_samples(bench: Workbench, request: requests.EncodeSamples, _job: Job) -> SampleCodes:
    """Project the samples before preprocessing, which models may do differently."""
    if not bench.shares_codes:
        raise UsageError("share_sample_codes is not set here: codes and labels of single samples stay on this device")
    train = bench.data.train
    flat = train.x.reshape(len(train), -1)
    words = min(train.vocabulary or 0, _WORDS)
    inputs = words or flat.shape[1]
    projection = np.random.default_rng([request.seed, _CODES, inputs]).normal(size=(inputs, request.size))
    codes = np.empty((len(flat), request.size), np.float32)
    for part in slices(len(flat)):
        x = (_word_counts(flat[part], words) if words else flat[part]).astype(np.float64)
        x -= x.mean(axis=1, keepdims=True)
        lengths = np.sqrt((x**2).sum(axis=1, keepdims=True))
        codes[part] = (x / np.maximum(lengths, NORM_FLOOR)) @ projection
    version = hashlib.sha256(codes.tobytes() + bench.labels.tobytes()).digest()[:VERSION_BYTES]
    return SampleCodes(codes=codes, labels=bench.labels.astype(np.int32), inputs=inputs, version=version)


def _word_counts(ids: Floats, words: int) -> Floats:
    """Count the tokens of texts (n, t) in this many buckets (n, words): ids are names, without distances."""
    counts = np.zeros((len(ids), words), np.float32)
    np.add.at(counts, (np.arange(len(ids))[:, None], ids.astype(np.int64) % words), 1)
    return counts


@serves(requests.ClassMeans)
def serve_class_means(bench: Workbench, request: requests.ClassMeans, _job: Job) -> Serving[ClassRows]:
    """Compute the means in one pass in inference mode; sums are divided by counts once."""
    found = []
    for part in slices(len(bench.samples)):
        yield from bench.ahead(bench.samples[part])
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
        yield from bench.ahead(bench.samples[part])
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
        yield from bench.ahead(bench.samples[part])
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
        yield from bench.ahead(bench.samples[part])
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


@serves(requests.GuidanceGradients)
def serve_guidance_gradients(bench: Workbench, request: requests.GuidanceGradients, _job: Job) -> Serving[ClassRows]:
    """Take the step, and one of rate 1 on the quiz, whose change of the weights is the direction; then undo both."""
    model, before = bench.model, bench.model.state_bytes()
    labels, step = bench.labels[request.study], Optim(kind="sgd", learning_rate=request.rate)
    try:
        _one_step(bench, request.study, (CrossEntropy(), request.term), step)
        yield
        after = model.weights()
        _one_step(bench, request.quiz, (CrossEntropy(),), Optim(kind="sgd", learning_rate=1.0))
        direction = after - model.weights()
    finally:
        bench.model.load_state(before)
    yield
    moves = directed(model).directional(bench.samples[request.study], direction, request.of_what)  # (b, m)
    bench.meter.trained(bench.model.spec, len(labels), "all")  # a derivative costs about as much as a step
    classes, at = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), moves.shape[1]))
    add_by_class(sums, at, moves)
    rows = (sums * (2 * request.rate / moves.size)).astype(np.float32)
    return ClassRows(classes=classes.astype(np.int32), rows=rows, counts=np.ones(len(classes), np.int32))


def _one_step(bench: Workbench, indices: Ints, objective: Objective, optim: Optim) -> None:
    """Take one step on private samples, as they are and in inference mode."""
    batches = Batches(inputs=bench.samples, labels=bench.labels, indices=indices[None], stochastic=False, seed=0)
    divergence.check_loss(bench.model.fit(batches, objective, optim), 0)
    bench.meter.trained(bench.model.spec, len(indices), "all")


@serves(requests.BoundedShare)
def serve_bounded_share(bench: Workbench, request: requests.BoundedShare, _job: Job) -> Serving[float]:
    """Count the features that the bound changes, in one pass in inference mode."""
    changed = 0
    for part in slices(len(bench.samples)):
        yield from bench.ahead(bench.samples[part])
        f = bench.features(bench.samples[part])
        changed += int((bounded(f, request.clip, cube=request.cube) != f).any(axis=1).sum())
        yield
    return changed / len(bench.samples)


@serves(requests.MeanLoss)
def serve_mean_loss(bench: Workbench, _request: requests.MeanLoss, _job: Job) -> Serving[float]:
    """Sum the loss over all samples, and divide once."""
    total = 0.0
    for part in slices(len(bench.samples)):
        yield from bench.ahead(bench.samples[part])
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
