"""FedHKD: the paper's worked numbers, thresholds, classes that go, and a run that learns."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import reduce
from pathlib import Path

import fleets
import numpy as np
import pytest
from laws import spec_of
from method_specs import job

from edge_sdk.methods.contract.base import NoState, OnDevice
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import HyperMeans
from edge_sdk.methods.fedhkd import FedHKD, Params, State, loss
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import (
    CrossEntropy,
    HeadDivergence,
    HeadMatch,
    Objective,
    Optim,
    PrototypeDistance,
    Seen,
    objective_loss,
    softmax,
)
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import HyperKnowledge, Weights
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

HEAD = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
TOLERANCE = 2e-6


def hyper(classes, features, soft, counts) -> HyperKnowledge:
    return HyperKnowledge(
        classes=np.array(classes, np.int32),
        features=np.array(features, np.float32),
        soft=np.array(soft, np.float32),
        counts=np.array(counts, np.int32),
    )


A = hyper([0, 1], [[1, 2], [0, 4]], [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], [9, 3])
B = hyper([0, 1, 2], [[3, -2], [2, 2], [-1, 1]], [[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]], [3, 1, 4])
ALL = hyper(
    [0, 1, 2], [[1.5, 1], [0, 4], [-1, 1]], [[0.65, 0.225, 0.125], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], [12, 3, 4]
)


def shared_by(means: HyperKnowledge, samples: int, **params: object) -> HyperKnowledge | None:
    """What a device uploads beside its weights."""
    spec = spec_of(FedHKD, **params)
    device = OnDevice(job=replace(job(spec, 0), samples=samples), state=NoState(), down={})
    stage = method_of(spec).hyper_knowledge(device)
    assert next(stage) == HyperMeans(Params(**params).temperature)
    with pytest.raises(StopIteration) as done:
        stage.send(means)
    return done.value.value.get("hyper")


def contribution(number: int, theta: tuple[float, float], samples: int, known: HyperKnowledge | None) -> Contribution:
    weights = Weights(values=np.array(theta, np.float32), layout=bytes(16), count=samples)
    extra = {} if known is None else {"hyper": known}
    return Contribution(number=number, samples=samples, knowledge={"weights": weights, **extra})


def finished(state: State, *ups: Contribution, **params: object) -> State:
    spec = spec_of(FedHKD, **{"start": "equal", **params})
    method = method_of(spec)
    return method.finish(spec, state, ExchangeId(0, 0), reduce(method.add, ups, method.zero()))


def test_the_worked_round() -> None:
    """methods.md A.6: A shares classes 0 and 1 (3/12 passes nu), B 0 and 2 (1/8 does not)."""
    a, b = shared_by(A, 12, nu=0.25, min_count=1), shared_by(B, 8, nu=0.25, min_count=1)
    assert a == A
    assert b is not None
    assert b.classes.tolist() == [0, 2]
    state = finished(State(), contribution(0, (1, 3), 12, a), contribution(1, (5, -1), 8, b))
    assert state.hyper is not None
    assert state.weights is not None
    np.testing.assert_allclose(state.hyper.features, ALL.features, atol=TOLERANCE)
    np.testing.assert_allclose(state.hyper.soft, ALL.soft, atol=TOLERANCE)
    np.testing.assert_allclose(state.weights.values, [2.6, 1.4], atol=TOLERANCE)


@pytest.mark.parametrize(("rounds", "classes"), [(0, [0, 1]), (1, [0, 1, 2])])
def test_a_class_that_nobody_shares_is_gone_or_carried(rounds: int, classes: list[int]) -> None:
    """methods.md A.6: only A arrives in the next round; one round later nothing is left to carry."""
    before = State(None, ALL, (0, 0, 0))
    after = finished(before, contribution(0, (1, 3), 12, A), carry_rounds=rounds)
    assert after.hyper is not None
    assert after.hyper.classes.tolist() == classes
    assert after.ages == (0, 0, 1)[: len(classes)]
    np.testing.assert_array_equal(after.hyper.features[0], A.features[0])
    later = finished(after, contribution(0, (1, 3), 12, A), carry_rounds=rounds)
    assert later.hyper is not None
    assert later.hyper.classes.tolist() == [0, 1]


def test_a_round_in_which_nobody_shares_any_class() -> None:
    after = finished(State(None, ALL, (0, 0, 0)), contribution(0, (1, 3), 12, None))
    assert (after.hyper, after.ages) == (None, ())
    kept = finished(State(None, ALL, (0, 0, 0)), contribution(0, (1, 3), 12, None), carry_rounds=2)
    assert kept.hyper == ALL


def test_hyper_knowledge_of_nets_that_began_differently_is_left_out() -> None:
    """Their weights are one device's; from the next round on all have that start, and means of features a meaning."""
    first = finished(State(), contribution(0, (1, 3), 12, A), contribution(1, (5, -1), 8, B), start="first")
    assert first.weights is not None
    assert first.weights.values.tolist() == [1, 3]
    assert (first.hyper, first.ages) == (None, ())
    assert finished(first, contribution(0, (1, 3), 12, A), start="first").hyper == A
    assert finished(State(), contribution(0, (1, 3), 12, A), start="first", share_weights=False).hyper == A


def test_the_thresholds() -> None:
    assert shared_by(B, 8, min_count=3).classes.tolist() == [0, 2]
    assert shared_by(B, 8, min_count=5) is None
    assert shared_by(B, 8, min_count=1, nu=0.5).classes.tolist() == [2]


def test_the_worked_loss() -> None:
    """methods.md A.6, client check; the cross-entropies there are of logits (1.5, 3, -1.5) and (0, 1, 0)."""
    features, labels = np.array([[1.5, 3], [0, 1]], np.float32), np.array([0, 1])
    logits = features @ HEAD.T
    (ce, head, near) = objective = loss(Params(), ALL)
    asked = {"head": lambda f: f @ HEAD.T}
    assert ce.value(Seen(logits, labels, 0)) == pytest.approx(1.130950, abs=TOLERANCE)
    assert head.value(Seen(logits, labels, 0, **asked)) / 0.05 == pytest.approx(0.254719, abs=TOLERANCE)
    assert near.value(Seen(logits, labels, 0, features)) / 0.05 == pytest.approx(2.5, abs=TOLERANCE)
    assert objective_loss(objective, Seen(logits, labels, 0, features, **asked)) == pytest.approx(
        1.268686, abs=TOLERANCE
    )


def test_without_hyper_knowledge_and_without_weights_the_terms_are_left_out() -> None:
    def names(objective: Objective) -> list[str]:
        return [term.name for term in objective]

    assert names(loss(Params(), None)) == ["cross-entropy"]
    assert names(loss(Params(feature_weight=0), ALL)) == ["cross-entropy", "head-match"]
    assert names(loss(Params(soft_weight=0), ALL)) == ["cross-entropy", "prototype-distance"]


def test_the_gradients_are_those_of_the_losses() -> None:
    """Central differences in f8; a sample that stands on its prototype has gradient 0, not NaN."""
    rng = np.random.default_rng(0)
    k, d, step = 3, 4, 1e-6
    term = HeadMatch(features=rng.normal(size=(2, d)), soft=rng.dirichlet(np.ones(k), 2), temperature=0.5, weight=0.7)
    z = rng.normal(size=(2, k))
    found, expected = term.slope(Seen(head=lambda _f: z)), np.empty((2, k))
    for at in np.ndindex(2, k):
        shift = np.zeros((2, k))
        shift[at] = step
        up, down = (term.value(Seen(z, None, 0, head=lambda _f, s=s: z + s)) for s in (shift, -shift))
        expected[at] = (up - down) / (2 * step)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    near = PrototypeDistance(classes=np.array([0, 2]), rows=rng.normal(size=(2, d)), weight=0.7)
    features, labels = rng.normal(size=(4, d)), np.array([0, 1, 2, 0])
    features[3] = near.rows[0]
    slopes, expected = near.slope(Seen(labels=labels, features=features)), np.empty((4, d))
    for at in np.ndindex(4, d):
        shift = np.zeros((4, d))
        shift[at] = step
        up, down = (near.value(Seen(np.zeros((4, k)), labels, 0, features + s)) for s in (shift, -shift))
        expected[at] = (up - down) / (2 * step)
    np.testing.assert_allclose(slopes, expected, atol=1e-5)
    assert (slopes[3] == 0).all()


def answer(slices: Generator[None, None, HyperKnowledge]) -> HyperKnowledge:
    """What a request gives in the end."""

    def through() -> Generator[None, None, None]:
        found.append((yield from slices))

    found: list[HyperKnowledge] = []
    for _ in through():
        pass
    return found[0]


def test_the_terms_of_the_authors_code() -> None:
    """methods.md A.6, its last line: KL .214238 and a mean squared error of 3.25."""
    hyper = HyperKnowledge(
        classes=np.arange(3, dtype=np.int32),
        features=np.array([[1.5, 1], [0, 4], [-1, 1]], np.float32),
        soft=np.array([[0.65, 0.225, 0.125], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], np.float32),
        counts=np.ones(3, np.int32),
    )
    _, head, near = loss(Params(forms="code", soft_weight=1.0, feature_weight=1.0), hyper)
    rows = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    assert head.value(Seen(None, None, 0, head=lambda f: f @ rows.T)) == pytest.approx(0.214238, abs=1e-6)
    features = np.array([[1.5, 3], [0, 1]], np.float32)
    assert near.value(Seen(None, np.array([0, 1]), 0, features=features)) == pytest.approx(3.25)
    assert FedHKD.under({"forms": "code"}).terms == {"cross-entropy", head.name, near.name}


def test_the_slope_of_the_codes_head_term() -> None:
    rng = np.random.default_rng(2)
    term = HeadDivergence(features=np.zeros((2, 3)), soft=rng.dirichlet(np.ones(4), 2), temperature=0.5, weight=0.7)
    logits = rng.normal(size=(2, 4))
    slope, step = term.slope(Seen(None, None, 0, head=lambda _: logits)), 1e-4
    for at in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[at] += step
        down[at] -= step
        rise = [term.value(Seen(None, None, 0, head=lambda _, each=each: each)) for each in (up, down)]
        assert slope[at] == pytest.approx((rise[0] - rise[1]) / (2 * step), abs=1e-4)


def test_the_hyper_means_of_a_device(pictures: Path) -> None:
    """One pass gives what two by hand give."""
    run = fleets.Run(_config(pictures, rounds=1)).finished()
    bench = run.devices[0].agent.bench
    found = answer(bench.serve(HyperMeans(0.5), None))
    model, x, y = bench.model, bench.samples, bench.labels
    assert isinstance(model, NumpyModel)
    for row, label in enumerate(found.classes):
        mine = x[y == label]
        np.testing.assert_allclose(found.features[row], model.features(mine).mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(found.soft[row], softmax(model.logits(mine), 0.5).mean(axis=0), atol=1e-5)
        assert found.counts[row] == len(mine)


def _config(pictures: Path, **federation: object) -> settings.Config:
    tables = fleets.tables(pictures, "fedhkd", devices=3, **federation)
    tables["method"] = {"min_count": 1, "start": "equal"}
    return settings.parse(tables, Path("test.toml"))


def test_the_head_learns_what_all_predict(pictures: Path) -> None:
    """With a heavy head term a device's head agrees with the soft predictions that it was given; alone it need not."""
    run = fleets.Run(_config(pictures, rounds=4)).finished()
    state = run.server.method_state
    assert state.hyper is not None
    model = run.devices[0].agent.bench.model
    features = state.hyper.features
    term = HeadMatch(features=features, soft=state.hyper.soft, weight=1.0)
    before = term.value(Seen(features, None, 0, head=model.head))
    work = run.devices[0].agent.bench
    job_batches = _batches(work)
    for _ in range(50):
        model.fit(job_batches, (CrossEntropy(weight=0.0), term), _sgd())
    assert term.value(Seen(features, None, 0, head=model.head)) < 0.5 * before


def _batches(bench):
    return Batches(inputs=bench.samples, labels=bench.labels, indices=np.arange(4)[None], stochastic=False)


def _sgd():
    return Optim(kind="sgd", learning_rate=0.5)
