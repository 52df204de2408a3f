"""FedKF: the two means, what a device asks for, the worked losses, and a whole run against a literal twin."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import draws
import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_specs import FakeDevice, first_step, job, spec_of

from coordinator.results.figures.metrics import averaged_performance, worst_performance
from coordinator.serving.devices import admission
from edge_sdk.methods.contract.base import Registered
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Evaluate, Fit, ReadWeights, WriteWeights
from edge_sdk.methods.fedkf import FedKF
from edge_sdk.methods.parts.fedkf_term import DataFree
from edge_sdk.objectives import CrossEntropy, Seen
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions import Contribution
from edge_sim.config import settings


def weights(*values: float, count: int = 1) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=bytes(16), count=count)


def up(number: int, now: Weights, before: Weights | None = None) -> Contribution:
    held = {} if before is None else {"weights": before}
    return Contribution(number=number, samples=9, knowledge={"weights": now}, before=held)


# -- the coordinator ------------------------------------------------------------------------------------------------


def test_the_worked_table() -> None:
    """methods.md C.6, as the reference reads it: three devices, of which one stays away in each round."""
    spec = spec_of("fedkf", start="equal")
    again, state = weights(3, -1, count=30), method_of(spec).begin(spec)
    assert FedKF().common(state, ExchangeId(0, 0)) == {}
    for round_, ups in enumerate(
        (
            (up(1, weights(1, 1, count=10)), up(2, again)),
            (up(2, weights(2, 0, count=30), again), up(3, weights(4, 2, count=60))),
        )
    ):
        total = reduce(FedKF().add, ups, FedKF().zero())
        state = method_of(spec).finish(spec, state, ExchangeId(round_, 0), total)
        if round_ == 0:
            down = FedKF().common(state, ExchangeId(1, 0))
            np.testing.assert_allclose(down["weights"].values, [2.5, -0.5], rtol=1e-6)
            assert set(down) == {"weights"}  # both means are the same, and travel once
    down = FedKF().common(state, ExchangeId(2, 0))
    np.testing.assert_allclose(down["teacher"].values, [3.1, 1.3], rtol=1e-6)
    np.testing.assert_allclose(down["weights"].values, [10 / 3, 4 / 3], rtol=1e-6)
    assert FedKF().common(state, ExchangeId(spec.rounds, 0)) == {
        "weights": down["teacher"]
    }  # the result is the OCA model


# -- the device -----------------------------------------------------------------------------------------------------


class Device(FakeDevice):
    """Also trades weights."""

    def answer(self, request: Any) -> Any:
        if isinstance(request, (WriteWeights, ReadWeights)):
            return weights(5, 6) if isinstance(request, ReadWeights) else None
        return super().answer(request)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", [1.0, -0.2]), ("uniform", [4 / 3, 0.0])])
def test_slots_of_all_devices_begin_at_the_first_weights(weighting: str, expected: list[float]) -> None:
    """methods.md C.6, as the paper has it: w_0 = 0, and the third device of 60 samples has not answered."""
    spec = spec_of("fedkf", start="equal", slots="all", weighting=weighting)
    counts = (10, 30) if weighting == "samples" else (1, 1)
    method = method_of(spec)
    method.registered = Registered(devices=3, samples=100)
    state = replace(method.begin(spec), first=weights(0, 0))
    ups = (up(1, weights(1, 1, count=counts[0])), up(2, weights(3, -1, count=counts[1])))
    state = method.finish(spec, state, ExchangeId(0, 0), reduce(method.add, ups, method.zero()))
    down = method.common(state, ExchangeId(1, 0))
    np.testing.assert_allclose(down["teacher"].values, expected, atol=1e-6)
    ups = (up(3, weights(4, 2, count=60 if weighting == "samples" else 1)),)
    state = method.finish(spec, state, ExchangeId(1, 0), reduce(method.add, ups, method.zero()))
    assert state.unseen == 0


@pytest.mark.torch
def test_in_a_run_devices_that_were_never_asked_hold_the_teacher_back(pictures: Path) -> None:
    runs = []
    for slots in ("seen", "all"):
        tables = fleets.tables(pictures, "fedkf", devices=6, rounds=3, participants=2)
        tables["method"] = {"slots": slots, "gamma": 0.0}
        tables["fleet"][0]["model"] = "mlp"
        runs.append(fleets.Run(settings.parse(tables, Path("test.toml"))).finished())
    seen, everybody = (run.server.method_state for run in runs)
    assert everybody.student.values.tobytes() == seen.student.values.tobytes()
    declared = sum(hello.samples for hello in runs[1].server.hellos.values())
    assert everybody.unseen == declared - everybody.slots.count > 0
    method = runs[1].server.method
    behind = [
        np.linalg.norm(each.values - everybody.first.values)
        for each in (method.teacher(seen), method.teacher(everybody))
    ]
    assert behind[1] < behind[0]


def asked(down: dict[str, Weights], round_: int, **params: Any) -> tuple[list[Any], dict[str, Weights]]:
    spec, device = spec_of("fedkf", **params), Device()
    _, sent = device.run(first_step(down, job(spec, round_)))
    return device.requests, sent


def test_a_device_measures_the_teacher_trains_the_student_and_shares_it() -> None:
    requests, sent = asked({"weights": weights(1, 2), "teacher": weights(3, 4)}, 2, gamma=0.5, adversarial=True)
    first, measured, second, fit, read, trained = requests
    assert (first.values.tolist(), second.values.tolist()) == ([3, 4], [1, 2])
    assert (measured.model, measured.rounds_done, trained.model, trained.rounds_done) == ("global", 2, "personal", 3)
    assert isinstance(read, ReadWeights)
    assert isinstance(fit, Fit)
    own, term = fit.objective
    assert (own.name, term.name) == ("cross-entropy", "data-free")
    assert term.teacher.tolist() == [3, 4]
    assert (term.weight, term.adversarial, term.generator, term.noise_dim) == (0.5, True, "board", 32)
    assert sent["weights"].count == 9


def test_where_the_means_are_one_it_is_the_teacher_too() -> None:
    requests, _ = asked({"weights": weights(1, 2)}, 2)
    assert [type(each) for each in requests] == [WriteWeights, Evaluate, Fit, ReadWeights, Evaluate]
    assert requests[2].objective[1].teacher.tolist() == [1, 2]


def test_the_first_round_and_no_gamma_are_plain_training() -> None:
    for down, round_, params in (({}, 0, {}), ({"weights": weights(1, 2)}, 2, {"gamma": 0.0})):
        (fit,) = [each for each in asked(down, round_, **params)[0] if isinstance(each, Fit)]
        assert [type(term) for term in fit.objective] == [CrossEntropy]


def test_a_model_that_is_not_differentiated_with_respect_to_its_inputs_is_refused(pictures: Path) -> None:
    hello = fleets.Run(fleets.built(pictures, "local")).hello(0)
    turned = admission.refusal(hello, spec_of("fedkf", classes=4), FedKF(), ())
    assert turned is not None
    assert (turned.reason, "data-free" in turned.message) == ("term", True)


def test_the_papers_generator_is_warned_of() -> None:
    assert FedKF().warnings(spec_of("fedkf")) == ()
    (warning,) = FedKF.under({"generator": "paper", "noise_dim": 1000}).warnings(spec_of("fedkf"))
    assert warning.startswith("method.generator = paper: ")
    assert "128,128 weights" in warning
    assert warning.endswith("(W7)")


# -- the worked losses ----------------------------------------------------------------------------------------------

LOGITS = np.array([[2, 0], [0, 1]], np.float32)
FEATURES = np.array([[1, -2], [0, 3]], np.float32)
STUDENT = np.array([[1, 0], [0, 0]], np.float32)
TEACHER = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("raw", "certain", "active", "expected"),
    [
        (True, 0, 0, -0.681894),
        (True, 1, 0, -0.681894 + 0.220095),
        (True, 0, 1, -0.681894 - 3.0),
        (True, 0.1, 0.1, -0.959885),
        (False, 0, 0, 0.016235),
        (False, 0, 1, 0.016235 - 1.5),
    ],
)
def test_the_worked_loss_of_the_generator(raw: bool, certain: float, active: float, expected: float) -> None:
    term = DataFree(teacher=TEACHER, raw=raw, certain=certain, active=active)
    assert term.generator_loss(LOGITS, FEATURES) == pytest.approx(expected, abs=1e-6)


def test_the_worked_loss_of_the_student_and_its_slope() -> None:
    term = DataFree(teacher=TEACHER, weight=2.0)
    assert term.value(Seen(own=(LOGITS, STUDENT))) == pytest.approx(2 * 0.089037, abs=1e-6)
    slope = term.slope(Seen(own=(LOGITS, STUDENT)))
    for place in np.ndindex(STUDENT.shape):
        nudge = np.zeros_like(STUDENT)
        nudge[place] = 1e-2
        ends = [term.value(Seen(own=(LOGITS, STUDENT + sign * nudge))) for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(slope[place], abs=1e-3)
    with pytest.raises(ValueError, match="generated samples"):
        term.value(Seen())


# -- Theorem 5.1 ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_any_mixture_of_devices_scores_at_least_the_worst_one(devices: list[tuple[float, int]]) -> None:
    """FedKF Lemma 5.1: MP on sum_k p_k Dis_k is sum_k p_k a_k, and no less than min_k a_k for whatever p."""
    accuracy = {str(i): value for i, (value, _) in enumerate(devices)}
    mixture = {str(i): share for i, (_, share) in enumerate(devices)}
    assert averaged_performance(accuracy, mixture) >= worst_performance(accuracy) - 1e-12


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=8), st.lists(st.lists(st.integers(1, 99), min_size=8), min_size=1)
)
def test_the_worst_of_any_mixtures_is_no_worse_than_the_worst_device(
    values: list[float], mixtures: list[list[int]]
) -> None:
    """FedKF Theorem 5.1: devices whose data are mixtures of those of the training have no lower WLP."""
    accuracy = {str(i): value for i, value in enumerate(values)}
    mixed = {
        str(q): averaged_performance(accuracy, {str(i): share for i, share in enumerate(shares[: len(values)])})
        for q, shares in enumerate(mixtures)
    }
    assert worst_performance(mixed) >= worst_performance(accuracy) - 1e-12


# -- a whole run ----------------------------------------------------------------------------------------------------

RATE = 0.1


def made(pictures: Path, **params: Any) -> fleets.Run:
    tables = fleets.tables(pictures, "fedkf", devices=3, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"start": "equal", **params}
    tables["fleet"] = [{"count": 3, "model": "mlp"}]
    return fleets.Run(settings.parse(tables, Path("test.toml")))


@pytest.mark.torch
@pytest.mark.parametrize(
    "params",
    [{}, {"warm": False, "raw_loss": True, "certain": 0.5}, {"adversarial": True, "active": 1.0}],
    ids=["warm", "cold", "adversarial"],
)
def test_a_run_is_its_literal_twin(pictures: Path, params: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from fedkf_twin import Twin  # needs torch

    run = made(pictures, gamma=30.0, **params)
    spec = run.fleet.federation.spec
    twins = [
        Twin(virtual, spec.seed, FedKF.read(spec.params), RATE, noise_vectors=spec.train.batch_size)
        for virtual in run.devices
    ]
    shared, counts = None, [len(twin.y) for twin in twins]
    for round_ in range(3):
        trained = []
        for twin in twins:
            drawn = draws.private_batches(
                seed=spec.seed,
                number=twin.number,
                round_=round_,
                samples=len(twin.y),
                size=spec.train.batch_size,
                steps=3,
            )
            trained.append(twin.round(round_, shared, drawn))
        shared = np.average(trained, axis=0, weights=counts)
    run.finished()
    found = run.server.method_state.slots.mean().values
    np.testing.assert_allclose(found, shared, atol=1e-5)
    for virtual in run.devices:  # the closing Assign brought the last mean
        np.testing.assert_array_equal(virtual.participant.context.bench.model.weights(), found)
    plain = made(pictures, gamma=0.0, **params).finished()
    assert np.abs(plain.server.method_state.slots.mean().values - found).max() > 1e-2  # the tolerance means something


@pytest.mark.torch
def test_the_device_pays_for_the_generator_and_the_teacher(pictures: Path) -> None:
    pytest.importorskip("torch")
    plain, full = (made(pictures, gamma=gamma).finished() for gamma in (0.0, 1.0))
    flops = [sum(device.participant.context.bench.meter.train_flops for device in run.devices) for run in (plain, full)]
    assert flops[1] > 3 * flops[0]
