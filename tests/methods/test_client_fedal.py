"""FedAL's client half, driven by hand."""

from __future__ import annotations

import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, spec_of

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedal import TransferProgress
from edge_sdk.protocol.knowledge import LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices

BATCH, TAU = 4, 3


def fedal(**params: object) -> FederationSpec:
    return spec_of("fedal", **{"public_batch": BATCH, "tau": TAU, "max_devices": 4, **params})


def feedback(spec: FederationSpec, round_: int, iteration: int, *roles: str) -> dict[str, Payload]:
    """What iteration `iteration` computed for this device."""
    digest = batch_digest(spec, batch_indices(spec, round_, iteration, BATCH))
    values = np.random.default_rng([round_, iteration, 7]).normal(size=(2, BATCH, spec.classes)).astype(np.float32)
    found: dict[str, Payload] = {
        "mean": PublicLogits(values=values[0], batch=digest, contributors=2),
        "adversarial": LogitGradients(values=values[1], batch=digest),
    }
    return {role: found[role] for role in roles or ("mean", "adversarial")}


def snapshot_of(device: FakeDevice, request: int) -> np.ndarray:
    """The snapshot that came of the answer to a request: (tau, b, k)."""
    return device.logits(request, (TAU, BATCH))


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def test_the_first_exchange_of_the_first_round_has_no_local_anchor(device: FakeDevice) -> None:
    spec = fedal()
    state, up = device.run(first_step({}, job(spec, 0)))
    assert device.kinds == ["fit private: cross-entropy", "logits of public", "logits of public"]
    every, first = device.requests[1:]
    assert every.source.indices.shape == (TAU, BATCH)
    for i in range(TAU):
        assert np.array_equal(every.source.indices[i], batch_indices(spec, 0, i, BATCH))
    assert np.array_equal(first.source.indices, batch_indices(spec, 0, 0, BATCH)[None])
    assert up["logits"].batch == batch_digest(spec, batch_indices(spec, 0, 0, BATCH))
    assert state.local_rounds == 1
    assert np.array_equal(state.snapshot.reshape(TAU, BATCH, -1), snapshot_of(device, 1))


def test_later_rounds_hold_on_to_where_they_began(device: FakeDevice) -> None:
    spec = fedal(temperature=2.0, less_forgetting=0.5)
    device.run(method_of(spec).step(TransferProgress(local_rounds=1), {}, job(spec, 1)))
    assert device.kinds == [
        "logits of private",
        "fit private: cross-entropy + less-forgetting",
        "logits of public",
        "logits of public",
    ]
    anchor, fit = device.requests[:2]
    assert np.array_equal(anchor.source.indices, fit.source.indices)
    assert np.array_equal(fit.source.indices, job(spec, 1).private_batches(2).indices)
    term = fit.objective[1]
    assert np.array_equal(term.logits, device.logits(0, (2, 4)))
    assert (term.temperature, term.weight) == (2.0, 0.5)


def test_a_transfer_exchange_learns_from_the_iteration_before(device: FakeDevice) -> None:
    spec = fedal(temperature=3.0, adversarial=0.25, less_forgetting=0.5)
    snapshot = np.random.default_rng(3).normal(size=(TAU * BATCH, 3)).astype(np.float32)
    state = TransferProgress(local_rounds=3, snapshot=snapshot)
    down = feedback(spec, 2, 1)
    after, up = device.run(method_of(spec).step(state, down, job(spec, 2, 2)))
    assert device.kinds == ["fit public: less-forgetting + distill + logit-gradient", "logits of public"]
    fit, score = device.requests
    assert np.array_equal(fit.source.indices, batch_indices(spec, 2, 1, BATCH)[None])
    forgetting, distill, adversarial = fit.objective
    assert np.array_equal(forgetting.logits[0], snapshot.reshape(TAU, BATCH, 3)[1])
    assert np.array_equal(distill.logits[0], down["mean"].values)
    assert np.array_equal(adversarial.gradient[0], down["adversarial"].values)
    assert [forgetting.weight, distill.weight, adversarial.weight] == [0.5, 1.0, 0.25]
    assert [forgetting.temperature, distill.temperature] == [3.0, 3.0]
    assert np.array_equal(score.source.indices, batch_indices(spec, 2, 2, BATCH)[None])
    assert up["logits"].batch == batch_digest(spec, batch_indices(spec, 2, 2, BATCH))
    assert after == state


def test_the_last_exchange_learns_and_measures_and_sends_nothing(device: FakeDevice) -> None:
    spec = fedal()
    state = TransferProgress(local_rounds=3, snapshot=np.zeros((TAU * BATCH, 3), np.float32))
    _, up = device.run(method_of(spec).step(state, feedback(spec, 2, TAU - 1), job(spec, 2, TAU)))
    assert device.kinds == ["fit public: less-forgetting + distill + logit-gradient", "evaluate 3"]
    assert up == {}


def test_measures_every_so_often_and_in_the_last_round(device: FakeDevice) -> None:
    spec = spec_of("fedal", public_batch=BATCH, tau=TAU, rounds=5, evaluate_every=2)
    measured = []
    for round_ in range(5):
        device.run(method_of(spec).step(TransferProgress(local_rounds=round_ + 1), {}, job(spec, round_, TAU)))
        measured += device.kinds
    assert measured == ["evaluate 2", "evaluate 4", "evaluate 5"]


@pytest.mark.parametrize("exchange", [1, 2])
def test_a_device_that_missed_the_iteration_skips_its_step(device: FakeDevice, exchange: int) -> None:
    spec = fedal()
    state = TransferProgress(local_rounds=3, snapshot=np.zeros((TAU * BATCH, 3), np.float32))
    device.run(method_of(spec).step(state, {}, job(spec, 2, exchange)))
    assert device.kinds == ["logits of public"]


def test_a_late_device_runs_its_local_stage_first(device: FakeDevice) -> None:
    """It comes in at exchange 2 of a round that it has not begun: local stage, snapshot, then that iteration."""
    spec = fedal()
    state, up = device.run(method_of(spec).step(TransferProgress(local_rounds=1), {}, job(spec, 2, 2)))
    assert device.kinds == [
        "logits of private",
        "fit private: cross-entropy + less-forgetting",
        "logits of public",
        "logits of public",
    ]
    assert np.array_equal(device.requests[1].source.indices, job(spec, 2).private_batches(2).indices)
    assert state.local_rounds == 3
    assert up["logits"].batch == batch_digest(spec, batch_indices(spec, 2, 2, BATCH))


def test_a_lone_device_learns_from_the_discriminator_alone(device: FakeDevice) -> None:
    spec = fedal()
    state = TransferProgress(local_rounds=1, snapshot=np.zeros((TAU * BATCH, 3), np.float32))
    device.run(method_of(spec).step(state, feedback(spec, 0, 0, "adversarial"), job(spec, 0, 1)))
    assert device.kinds[0].startswith("fit public: ")
    assert [term.name for term in device.requests[0].objective] == ["less-forgetting", "logit-gradient"]


def test_without_less_forgetting_no_snapshot_enters_the_loss(device: FakeDevice) -> None:
    spec = fedal(less_forgetting=0.0)
    device.run(method_of(spec).step(TransferProgress(local_rounds=1), {}, job(spec, 1)))
    assert device.kinds[0] == "fit private: cross-entropy"
    state = TransferProgress(local_rounds=2, snapshot=np.zeros((TAU * BATCH, 3), np.float32))
    device.run(method_of(spec).step(state, feedback(spec, 1, 0, "mean"), job(spec, 1, 1)))
    assert device.kinds[0] == "fit public: distill"


def test_with_one_iteration_a_round_has_two_exchanges(device: FakeDevice) -> None:
    """Its less-forgetting target is what was just sent, so that term pulls nowhere (warning W4)."""
    spec = fedal(tau=1)
    state, up = device.run(first_step({}, job(spec, 0)))
    assert set(up) == {"logits"}
    _, up = device.run(method_of(spec).step(state, feedback(spec, 0, 0), job(spec, 0, 1)))
    assert device.kinds == ["fit public: less-forgetting + distill + logit-gradient", "evaluate 1"]
    assert up == {}


def test_a_teacher_only_scores(device: FakeDevice) -> None:
    spec = fedal()
    for exchange in range(TAU):
        _, up = device.run(first_step({}, job(spec, 1, exchange, learns=False)))
        assert device.kinds == ["logits of public"]
        assert set(up) == {"logits"}
    device.run(first_step({}, job(spec, 1, TAU, learns=False)))
    assert device.kinds == ["evaluate 2"]


def test_the_closing_exchange_only_measures(device: FakeDevice) -> None:
    spec = fedal()
    state, up = device.run(method_of(spec).step(TransferProgress(local_rounds=5), {}, job(spec, 5)))
    assert device.kinds == ["evaluate 5"]
    assert (state.local_rounds, up) == (5, {})


@pytest.mark.parametrize("role", ["mean", "adversarial"])
def test_knowledge_of_other_samples_is_refused(device: FakeDevice, role: str) -> None:
    spec = fedal()
    state = TransferProgress(local_rounds=3, snapshot=np.zeros((TAU * BATCH, 3), np.float32))
    with pytest.raises(RemoteProtocolError, match="made on public batch") as caught:
        device.run(method_of(spec).step(state, feedback(spec, 2, 0, role), job(spec, 2, 2)))
    assert caught.value.kind == "knowledge"


# -- warnings ----------------------------------------------------------------------------------------------------------


def warnings(rounds: int = 5, **params: object) -> list[str]:
    spec = spec_of("fedal", rounds=rounds, **params)
    return [text.split(":")[0] for text in method_of(spec).warnings(spec)]


def test_warns_where_less_forgetting_cannot_work() -> None:
    assert warnings(tau=1) == ["W4"]
    assert warnings(tau=1, less_forgetting=0.0) == []
    assert warnings(tau=2) == []


def test_warns_of_too_many_round_trips() -> None:
    assert warnings(rounds=1000, tau=5) == []
    assert warnings(rounds=1001, tau=5) == ["W5"]
