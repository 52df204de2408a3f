"""FedNH: the paper's worked numbers, the first prototypes, the update's corners, and who may take part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import CLASSES, WIDTH, spec_of
from method_specs import rows_of
from properties import examples

from edge_sdk.errors import EmptyRound, RemoteProtocolError, UsageError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, Fit, ReadWeights, SetScale, WriteHead, WriteWeights
from edge_sdk.methods.fednh import DeviceState, FedNH, State, first_prototypes, updated_prototypes
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import softmax
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import TrainSpec
from edge_sdk.reductions import Contribution

W0 = np.array([[1, 0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
A = rows_of([0, 1], [[0, 0.5], [-0.6, 0.8]], [3, 1])
B = rows_of([0], [[1, 0]], [1])
WORKED = {
    "counts": [(0.994855, 0.101307), (-0.510330, 0.859979), (-0.5, -0.866025)],
    "paper": [(0.999654, 0.026307), (-0.505444, 0.862859), (-0.5, -0.866025)],
}


def state_of(rows: Any) -> State:
    rows = np.array(rows, np.float32)
    return State(None, rows_of([*range(len(rows))], rows))


def finished(state: State, ups: Sequence[tuple[ClassRows, tuple[float, ...]]], **params: Any):
    spec = spec_of(FedNH, **{"warm_rounds": 0, "start": "equal", **params})
    method = method_of(spec)
    aggregate = method.zero()
    for number, (means, body) in enumerate(ups):
        weights = {"weights": Weights(values=np.array(body, np.float32), layout=bytes(16))} if body else {}
        up = Contribution(number=number, samples=4, knowledge={"means": means, **weights})
        aggregate = method.add(aggregate, up)
    return method.finish(spec, state, ExchangeId(0, 0), aggregate)


# -- worked numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", WORKED)
def test_the_worked_round(update: str) -> None:
    """methods.md D.6."""
    after = finished(state_of(W0), [(A, (1, 3)), (B, (5, -1))], update=update)
    np.testing.assert_allclose(after.prototypes.rows, WORKED[update], atol=2e-6)
    np.testing.assert_array_equal(after.weights.values, [3, 1])


def test_the_worked_logits() -> None:
    """methods.md D.6, the client: s = 30, r = (.6, .8), from features of another length."""
    model = NumpyModel(3, (1, 1, 2), seed=0, head="cosine")
    model.set_head_rows(np.arange(3), np.hstack([7 * W0, np.ones((3, 1))]).astype(np.float32))
    model.set_scale(30, trains=False)
    logits = model.logits(np.array([[[[3, 4]]]], np.float32))
    np.testing.assert_allclose(logits, [[18, 11.784610, -29.784610]], atol=1e-5)
    np.testing.assert_allclose(softmax(logits), [[0.998006, 0.001994, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, 0.10), (0.5, 0.053), (0.1, 0.011)], ids=["all", "half", "a tenth"]
)
def test_with_the_papers_weights_rare_classes_hardly_move(share: float, expected: float) -> None:
    """methods.md D.5, trap 2: the share of the new direction in the new prototype."""
    devices = 10
    holders = round(share * devices)
    ups = [(rows_of([0], [[0, 1]] if i < holders else [[0, 0]]), ()) for i in range(devices)]
    row = finished(state_of([[1, 0]]), ups, update="paper", share_body=False).prototypes.rows[0]
    assert row[1] / row.sum() == pytest.approx(expected, abs=5e-4)


# -- the first prototypes -------------------------------------------------------------------------------------------


def largest_cosine(rows: np.ndarray) -> float:
    cosines = rows @ rows.T
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-12)
    return float((cosines - 3 * np.eye(len(rows))).max())


@pytest.mark.parametrize(("k", "d"), [(2, 1), (3, 2), (10, 9), (10, 192)])
def test_a_simplex_is_regular(k: int, d: int) -> None:
    """methods.md D.3: every cosine is -1 / (K - 1), so that M^2 = 2 K / (K - 1), 2.2222 for ten classes."""
    rows = first_prototypes(k, d, "auto", np.random.default_rng(1))
    cosines = rows @ rows.T
    np.testing.assert_allclose(cosines[~np.eye(k, dtype=bool)], -1 / (k - 1), atol=1e-12)
    assert ((rows[0] - rows[1]) ** 2).sum() == pytest.approx(2 * k / (k - 1))


@examples(30)
@given(k=st.integers(2, 24), d=st.integers(2, 12), seed=st.integers(0, 2**32 - 1))
def test_the_first_prototypes_are_unit_and_no_closer_than_they_need_be(k: int, d: int, seed: int) -> None:
    rows = first_prototypes(k, d, "auto", np.random.default_rng(seed))
    assert rows.shape == (k, d)
    found = largest_cosine(rows)
    if k <= d + 1:
        assert found == pytest.approx(-1 / (k - 1), abs=1e-9)
    elif k <= 2 * d:
        assert found == pytest.approx(0, abs=1e-9)
    elif d == 2:
        assert found == pytest.approx(np.cos(2 * np.pi / k), abs=1e-9)
    else:
        assert found < 0.9


def test_descent_finds_what_there_is_a_closed_form_for_and_beats_chance() -> None:
    for (k, d), best in {(4, 3): -1 / 3, (6, 3): 0.0}.items():
        found = largest_cosine(first_prototypes(k, d, "optimised", np.random.default_rng(0)))
        assert best - 1e-9 <= found < best + 0.02
    random = np.random.default_rng(0).normal(size=(100, 32))
    drawn = largest_cosine(random / np.linalg.norm(random, axis=1, keepdims=True))
    assert largest_cosine(first_prototypes(100, 32, "auto", np.random.default_rng(0))) < 0.5 * drawn


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match=r'^method\.initial: simplex .*5 .*3 .*"auto"'):
        FedNH.under({"initial": "simplex"}).begin(spec_of(FedNH, initial="simplex", warm_rounds=0))
    with pytest.raises(UsageError, match=r"^method\.initial: auto .*3 .*1 features"):
        first_prototypes(3, 1, "auto", np.random.default_rng(0))
    (warning,) = FedNH().warnings(spec_of(FedNH, warm_rounds=0))
    assert re.match(f"W9: {CLASSES} prototypes .*{WIDTH} features", warning)


# -- the update -----------------------------------------------------------------------------------------------------


def test_a_class_without_holder_keeps_its_bits() -> None:
    before = FedNH().begin(spec_of(FedNH, warm_rounds=0))
    after = finished(before, [(rows_of([1], [[1, 0, 0]]), ())], share_body=False)
    np.testing.assert_array_equal(np.delete(after.prototypes.rows, 1, 0), np.delete(before.prototypes.rows, 1, 0))
    assert (after.prototypes.rows[1] != before.prototypes.rows[1]).any()


@pytest.mark.parametrize("update", WORKED)
@pytest.mark.parametrize(("rho", "mean"), [(0.9, [0, 0]), (0.0, [0, 0]), (0.5, [-1, 0])])
def test_means_that_cancel_leave_the_prototype(update: str, rho: float, mean: list[float]) -> None:
    after = finished(state_of(W0), [(rows_of([0], [mean]), ())], update=update, rho=rho, share_body=False)
    np.testing.assert_array_equal(after.prototypes.rows, W0.astype(np.float32))


@examples(50)
@given(seed=st.integers(0, 2**32 - 1), rho=st.floats(0, 1))
def test_prototypes_stay_directions_between_the_old_and_the_new(seed: int, rho: float) -> None:
    rng = np.random.default_rng(seed)
    before, targets = rng.normal(size=(2, 6, 4))
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    after = updated_prototypes(before, targets, rho)
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, atol=1e-12)
    assert (
        (after * before).sum(axis=1)
        >= np.minimum(1, (targets * before).sum(axis=1) / np.linalg.norm(targets, axis=1)) - 1e-9
    ).all()


def literal(before: np.ndarray, ups: Sequence[ClassRows], rho: float, update: str) -> np.ndarray:
    """The update once more, class by class and device by device."""
    after = before.copy()
    for c in range(len(before)):
        total, held = np.zeros(before.shape[1]), 0
        for up in ups:
            for label, mean, n in zip(up.classes, up.rows.astype(float), up.counts, strict=True):
                if label == c:
                    held += 1
                    total += mean / len(ups) if update == "paper" else n * mean / np.linalg.norm(mean)
        if held:
            target = total if update == "paper" else total / np.linalg.norm(total)
            mixed = rho * before[c] + (1 - rho) * target
            after[c] = mixed / np.linalg.norm(mixed)
    return after


@pytest.mark.parametrize("update", WORKED)
@examples(20)
@given(seed=st.integers(0, 2**32 - 1), devices=st.integers(1, 6))
def test_the_update_is_that_of_its_literal_twin(update: str, seed: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    ups = []
    for _ in range(devices):
        held = np.flatnonzero(rng.random(CLASSES) < 0.6)
        held = held if len(held) else np.array([0])
        ups.append(rows_of(held.tolist(), rng.normal(size=(len(held), WIDTH)), rng.integers(1, 50, len(held)).tolist()))
    before = FedNH().begin(spec_of(FedNH, warm_rounds=0))
    after = finished(before, [(up, ()) for up in ups], update=update, rho=0.7, share_body=False)
    expected = literal(before.prototypes.rows.astype(float), ups, 0.7, update)
    np.testing.assert_allclose(after.prototypes.rows, expected, atol=2e-5)


def test_bodies_that_stay_at_home_are_not_waited_for() -> None:
    assert finished(state_of(W0), [(A, ())], share_body=False).weights is None
    with pytest.raises(EmptyRound, match="no means"):
        finished(state_of(W0), [], share_body=False)


# -- the device -----------------------------------------------------------------------------------------------------


def asked(down: dict[str, Any], *, begun: bool, round_: int = 1, **params: Any) -> tuple[list[Any], dict[str, Any]]:
    """What one exchange asks of the device, and what it uploads."""
    spec = spec_of(FedNH, **{"warm_rounds": 0, **params})
    job = Job(spec=spec, number=0, round=round_, exchange=0, closing=round_ == spec.rounds, samples=9, learns=True)
    step = method_of(spec).step(DeviceState(begun), down, job)
    requests, answer = [], None
    while True:
        try:
            request = step.send(answer)
        except StopIteration as stop:
            return requests, stop.value[1]
        requests.append(request)
        answer = None
        if isinstance(request, ClassMeans):
            answer = A
        if isinstance(request, ReadWeights):
            answer = Weights(values=np.ones(2, np.float32), layout=bytes(16), count=9)


PROTOTYPES = rows_of([0, 1, 2], W0)


def test_a_round_on_the_device() -> None:
    body = Weights(values=np.ones(2, np.float32), layout=bytes(16))
    requests, up = asked({"prototypes": PROTOTYPES, "weights": body}, begun=True, round_=0)
    assert [type(each) for each in requests] == [
        SetScale,
        WriteHead,
        WriteWeights,
        Fit,
        ClassMeans,
        ReadWeights,
        Evaluate,
    ]
    assert requests[0] == SetScale(None, trains=True)
    assert requests[1].rows.shape == (3, 3)
    assert (requests[2].without_head, requests[3].part, requests[5].without_head) == (True, "body", True)
    assert [term.name for term in requests[3].objective] == ["cross-entropy"]
    assert up == {"means": A, "weights": body}


def test_at_the_end_it_takes_over_measures_and_sends_nothing() -> None:
    requests, up = asked({"prototypes": PROTOTYPES}, begun=True)
    assert [type(each) for each in requests] == [SetScale, WriteHead, Evaluate]
    assert up == {}


def test_variants_on_the_device() -> None:
    requests, up = asked(
        {"prototypes": PROTOTYPES}, begun=False, round_=0, share_body=False, update="paper", scale=30.0
    )
    assert requests[0] == SetScale(30.0, trains=True)
    assert up == {"means": ClassRows(classes=A.classes, rows=A.rows, counts=np.ones(2, np.int32))}
    requests, _ = asked({"prototypes": PROTOTYPES}, begun=True, train_scale=False)
    assert requests[0] == SetScale(20.0, trains=False)


def test_prototypes_that_are_no_directions_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^prototypes: .*length .*0\.5"):
        asked({"prototypes": rows_of([0, 1], [[1, 0], [0, 1.5]])}, begun=True)


# -- the scale and its warm rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("train_scale", [True, False])
def test_the_scale_rises_over_the_warm_rounds(train_scale: bool) -> None:
    method = method_of(spec_of(FedNH, scale=16.0, warm_rounds=4, train_scale=train_scale))
    rising = [method.scale_at(round_, begun=round_ > 0) for round_ in range(5)]
    assert rising == pytest.approx([1, 2, 4, 8, 16])
    assert method.scale_at(5, begun=True) == (None if train_scale else 16.0)  # None: as it was trained
    assert method.scale_at(9, begun=False) == 16.0  # a device that comes late
    plain = method_of(spec_of(FedNH, scale=16.0, warm_rounds=0))
    assert [plain.scale_at(0, begun=False), plain.scale_at(1, begun=True)] == [16.0, None]


# -- warnings in the course of a run --------------------------------------------------------------------------------


def test_prototypes_that_come_close_are_told_of() -> None:
    method = method_of(spec_of(FedNH, warm_rounds=0))
    assert method.course(state_of(W0)) == ()
    near = np.array([[1, 0], [0.9999**0.5, 0.0001**0.5], [-1, 0]])
    (told,) = method.course(state_of(near))
    assert told.startswith("W21")
    assert method.course(state_of(near[[0, 2]])) == ()


@pytest.mark.parametrize(
    ("train", "scale", "told"),
    [
        ({"optimiser": "sgd"}, 20.0, True),
        ({"optimiser": "sgd", "clip_norm": 10.0}, 20.0, False),
        ({"optimiser": "sgd"}, 1.0, False),
        ({"optimiser": "adam"}, 20.0, False),
    ],
)
def test_a_large_scale_under_sgd_without_a_clip_is_told_of(train: dict[str, Any], scale: float, told: bool) -> None:
    spec = replace(spec_of(FedNH, scale=scale, warm_rounds=0), train=TrainSpec(**train), feature_dim=64)
    assert [text[:3] for text in method_of(spec).warnings(spec)] == (["W22"] if told else [])
