"""FedMD's client half, driven by hand."""

from __future__ import annotations

import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, spec_of

from edge_sdk.errors import EmptyRound, RemoteProtocolError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedmd import DeviceState, FedMD, leave_one_out
from edge_sdk.objectives import LogitMatch, Seen
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.reductions import Contribution

BATCH = 4


def mean_of(spec: FederationSpec, round_: int, seed: int = 0, contributors: int = 3) -> PublicLogits:
    """A mean as it comes down in the round after `round_`."""
    values = np.random.default_rng([seed, 99]).normal(size=(BATCH, spec.classes)).astype(np.float32)
    digest = batch_digest(spec, batch_indices(spec, round_, 0, BATCH))
    return PublicLogits(values=values, batch=digest, contributors=contributors)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def test_the_first_round_trains_and_scores(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH)
    state, up = device.run(first_step({}, job(spec, 0)))
    assert device.kinds == ["fit private: cross-entropy", "logits of public"]
    fit, score = device.requests
    assert fit.source.indices.shape == (2, 4)
    assert np.array_equal(fit.source.indices, job(spec, 0).private_batches(2).indices)
    assert fit.optim == job(spec, 0).optim
    chosen = batch_indices(spec, 0, 0, BATCH)
    assert np.array_equal(score.source.indices, chosen[None])
    assert np.array_equal(up["logits"].values, device.logits(1, (1, BATCH))[0])
    assert up["logits"].batch == batch_digest(spec, chosen)
    assert (state.round, state.sent.tolist()) == (0, up["logits"].values.tolist())


def test_a_later_round_digests_before_it_trains(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH, temperature=2.0, digest_steps=2)
    sent = np.random.default_rng(5).normal(size=(BATCH, 3)).astype(np.float32)
    mean = mean_of(spec, 1)
    device.run(method_of(spec).step(DeviceState(round=1, sent=sent), {"mean": mean}, job(spec, 2)))
    assert device.kinds == [
        "fit public: distill",
        "evaluate 2",
        "fit private: cross-entropy",
        "logits of public",
    ]
    digest = device.requests[0]
    assert np.array_equal(digest.source.indices, np.stack([batch_indices(spec, 1, 0, BATCH)] * 2))
    (term,) = digest.objective
    assert term.logits == pytest.approx(np.stack([(3 * mean.values - sent) / 2] * 2), abs=1e-6)
    assert term.temperature == 2.0


@pytest.mark.parametrize(
    ("state_round", "params", "roles"),
    [
        (1, {"target": "all"}, ["mean"]),
        (0, {}, ["mean"]),
        (1, {}, ["mean", "others"]),
    ],
    ids=["target all", "was not there in that round", "its upload came too late"],
)
def test_the_mean_is_taken_as_it_is(device: FakeDevice, state_round: int, params: dict, roles: list[str]) -> None:
    spec = spec_of("fedmd", public_batch=BATCH, **params)
    state = DeviceState(round=state_round, sent=np.ones((BATCH, 3), np.float32))
    mean = mean_of(spec, 1)
    device.run(method_of(spec).step(state, dict.fromkeys(roles, mean), job(spec, 2)))
    assert np.array_equal(device.requests[0].objective[0].logits[0], mean.values)


def test_a_device_that_was_the_only_one_has_nobody_to_learn_from(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH)
    state = DeviceState(round=1, sent=np.ones((BATCH, 3), np.float32))
    device.run(method_of(spec).step(state, {"mean": mean_of(spec, 1, contributors=1)}, job(spec, 2)))
    assert device.kinds[0] == "evaluate 2"


def test_measures_every_so_often(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH, rounds=6, evaluate_every=2)
    measured = []
    for round_ in range(7):
        device.run(method_of(spec).step(DeviceState(), {}, job(spec, round_)))
        measured += [kind for kind in device.kinds if kind.startswith("evaluate")]
    assert measured == ["evaluate 2", "evaluate 4", "evaluate 6"]


def test_the_closing_exchange_digests_measures_and_sends_nothing(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH)
    state, up = device.run(method_of(spec).step(DeviceState(), {"mean": mean_of(spec, 4)}, job(spec, 5)))
    assert device.kinds == ["fit public: distill", "evaluate 5"]
    assert up == {}
    assert state == DeviceState()


def test_a_teacher_only_scores(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH)
    _, up = device.run(method_of(spec).step(DeviceState(), {"mean": mean_of(spec, 1)}, job(spec, 2, learns=False)))
    assert device.kinds == ["evaluate 2", "logits of public"]
    assert set(up) == {"logits"}


def test_logits_of_other_samples_are_refused(device: FakeDevice) -> None:
    spec = spec_of("fedmd", public_batch=BATCH)
    with pytest.raises(RemoteProtocolError, match="made on public batch") as caught:
        device.run(method_of(spec).step(DeviceState(), {"mean": mean_of(spec, 0)}, job(spec, 2)))
    assert caught.value.kind == "knowledge"


def test_the_original_form_regresses_on_the_mean_of_all(device: FakeDevice) -> None:
    """One pass over the samples scored, in mini-batches; the last one is filled from the front."""
    spec = spec_of("fedmd", form="digest", align=BATCH, public_batch=3, error="squared")
    sent = np.ones((BATCH, 3), np.float32)
    mean = mean_of(spec, 1)
    _, up = device.run(method_of(spec).step(DeviceState(round=1, sent=sent), {"mean": mean}, job(spec, 2)))
    assert device.kinds == ["fit public: logit-match", "evaluate 2", "fit private: cross-entropy", "logits of public"]
    digest, (term,) = device.requests[0], device.requests[0].objective
    order = [[0, 1, 2], [3, 0, 1]]
    assert np.array_equal(digest.source.indices, batch_indices(spec, 1, 0, BATCH)[order])
    assert np.array_equal(term.logits, mean.values[order])
    assert term.error == "squared"
    assert up["logits"].values.shape == (BATCH, 3)


@pytest.mark.parametrize(
    ("params", "left_out"),
    [({}, True), ({"form": "digest"}, False), ({"form": "digest", "target": "leave-one-out"}, True)],
)
def test_whose_mean_is_learnt_from(params: dict, left_out: bool) -> None:
    read = FedMD.read(params)
    assert read.leaves_out is left_out
    assert FedMD.under(params).terms == {"cross-entropy", "logit-match" if "form" in params else "distill"}


def test_how_much_is_scored_and_digested() -> None:
    fedal, original = FedMD.read({}), FedMD.read({"form": "digest", "align": 100})
    assert [(each.scored, each.steps) for each in (fedal, original)] == [(32, 1), (100, 4)]
    assert FedMD(original).exchanges[0].up["logits"].rows == 100
    assert FedMD.read({"digest_steps": 3}).steps == 3


# -- the mean -----------------------------------------------------------------------------------------------------------

EXAMPLE = np.array([[[2, 0], [0, 1]], [[0, 2], [2, 1]]], np.float32)


def test_the_example_of_two_devices() -> None:
    spec = spec_of("fedmd", classes=2, public_batch=2)
    method = FedMD()
    bag = method.zero()
    for number in (1, 0):
        logits = PublicLogits(values=EXAMPLE[number], batch=bytes(8))
        bag = method.add(bag, Contribution(number=number, samples=1, knowledge={"logits": logits}))
    state = method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)
    mean = method.common(state, ExchangeId(1, 0))["mean"]
    assert mean.values.tolist() == [[1, 1], [1, 1]]
    assert mean.contributors == 2
    assert leave_one_out(mean.values, EXAMPLE[0], 2).tolist() == [[0, 2], [2, 1]]
    assert [set(method.personal(state, ExchangeId(1, 0), number)) for number in (0, 1, 2)] == [set(), set(), {"others"}]


def test_the_example_in_the_original_form() -> None:
    """docs/reference/methods/fedmd.md: the first device is off by .75, with a class that all agree on by .5."""
    for logits, expected in ((EXAMPLE, 0.75), (np.concatenate([EXAMPLE, np.full((2, 2, 1), 3)], axis=2), 0.5)):
        mean = logits.mean(axis=0, dtype=np.float32)[None]
        for error in ("absolute", "squared"):
            assert LogitMatch(logits=mean, error=error).value(Seen(logits[0])) == pytest.approx(expected)


def test_leave_one_out_needs_another() -> None:
    assert leave_one_out(EXAMPLE[0], EXAMPLE[0], 1) is None


def test_no_upload_is_no_round() -> None:
    spec = spec_of("fedmd")
    method = FedMD()
    with pytest.raises(EmptyRound, match="round 3: no logits"):
        method.finish(spec, method.begin(spec), ExchangeId(3, 0), method.zero())
