"""FedCache: relatives, the cache, what each half does in a round, and whole runs against a twin in plain autograd."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, spec_of

from edge_sdk.device.training.handlers import _CODES
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import EncodeSamples, OwnLogits, Request
from edge_sdk.methods.fedcache import NONE, FedCache, related, share_of_others
from edge_sdk.objectives import Distill
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Upload
from edge_sdk.protocol.sample_knowledge import SampleCodes, SampleLogits
from edge_sdk.protocol.wires import check_roles, expectation
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

SPEC = spec_of("fedcache", relatives=2, distill_weight=0.5, code_size=2)
OLD, NEW = bytes(16), bytes(range(16))


def codes_of(codes: Any, labels: list[int], version: bytes = OLD, inputs: int = 9) -> SampleCodes:
    return SampleCodes(
        codes=np.array(codes, np.float32), labels=np.array(labels, np.int32), inputs=inputs, version=version
    )


def logits_of(values: Any, version: bytes = OLD) -> SampleLogits:
    return SampleLogits(values=np.array(values, np.float32), version=version)


def reduced(ups: dict[int, dict[str, Payload]], state: Any = None, round_: int = 0) -> Any:
    method = method_of(SPEC)
    bag = method.zero()
    for number, knowledge in ups.items():
        bag = method.add(bag, Contribution(number=number, samples=9, knowledge=knowledge))
    return method.finish(SPEC, method.begin(SPEC) if state is None else state, ExchangeId(round_, 0), bag)


ONE = {"codes": codes_of([[1, 0], [0, 1]], [0, 1]), "logits": logits_of([[1, 0, 0], [0, 1, 0]])}
TWO = {"codes": codes_of([[2, 1], [1, 2], [-1, 0]], [0, 0, 0]), "logits": logits_of([[2, 0, 0], [4, 0, 2], [0, 9, 0]])}


def taught(state: Any, number: int) -> Any:
    return method_of(SPEC).personal(state, ExchangeId(1, 0), number).get("relatives")


# -- the worked numbers ---------------------------------------------------------------------------------------------


def test_the_worked_numbers() -> None:
    """docs/reference/methods/fedcache.md: the first sample's relatives are (2, 1) and (1, 2), not (-1, 0)."""
    state = reduced({0: ONE, 1: TWO})
    np.testing.assert_allclose(taught(state, 0).values[0], [3, 0, 1])
    np.testing.assert_array_equal(taught(state, 0).values[1], [0, 1, 0])  # nobody else has its label: its own
    np.testing.assert_allclose(taught(state, 1).values[0], [2.5, 0, 1])  # the other device's (1, 0), then (1, 2)
    assert share_of_others(state.cache) == 0.5


def test_relatives_are_the_nearest_of_a_label_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    codes, labels = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 3, 60).astype(np.int32)
    inputs = np.where(np.arange(60) < 50, 9, 16).astype(np.int32)
    found = related(codes, labels, inputs, 4)
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    for i in range(60):
        others = [j for j in range(60) if j != i and labels[j] == labels[i] and inputs[j] == inputs[i]]
        best = sorted(others, key=lambda j: -float(unit[i] @ unit[j]))[:4]
        assert found[i].tolist() == best + [NONE] * (4 - len(best))


# -- the cache ------------------------------------------------------------------------------------------------------


def test_newest_logits_replace_older_ones_and_those_of_absent_devices_stay() -> None:
    state = reduced({0: ONE, 1: TWO})
    after = reduced({0: {"logits": logits_of([[7, 0, 0], [0, 7, 0]])}}, state, 1)
    np.testing.assert_allclose(taught(after, 1).values[0], [5.5, 0, 1])
    np.testing.assert_array_equal(taught(after, 0).values[0], taught(state, 0).values[0])


def test_logits_of_samples_that_are_not_in_the_cache_are_left_out() -> None:
    state = reduced({0: ONE, 1: TWO})
    other = reduced({0: {"logits": logits_of([[7, 0, 0]], NEW)}, 2: {"logits": logits_of([[7, 0, 0]])}}, state, 1)
    assert other.cache.devices.tolist() == [0, 1]
    np.testing.assert_array_equal(other.cache.logits, state.cache.logits)
    changed = {"codes": codes_of([[0, 1]], [0], NEW), "logits": logits_of([[7, 0, 0]], NEW)}
    after = reduced({0: changed}, state, 1)
    assert after.cache.sizes.tolist() == [1, 3]
    assert taught(after, 0).version == NEW
    np.testing.assert_allclose(taught(after, 0).values, [[3, 0, 1]])


def test_samples_of_another_size_are_not_related() -> None:
    state = reduced({0: ONE, 1: {**TWO, "codes": replace(TWO["codes"], inputs=16)}})
    np.testing.assert_array_equal(taught(state, 0).values, ONE["logits"].values)
    assert taught(state, 5) is None


# -- on a device ----------------------------------------------------------------------------------------------------


class Encoding(FakeDevice):
    """A device with nine samples, which begin with version OLD."""

    version = OLD
    own = np.arange(27, dtype=np.float32).reshape(9, 3)

    def answer(self, request: Request) -> Any:
        if isinstance(request, EncodeSamples):
            return codes_of(np.ones((9, 2)), [0] * 9, self.version)
        if isinstance(request, OwnLogits):
            return self.own
        return super().answer(request)


def test_codes_are_sent_once_and_each_batch_learns_from_its_samples_relatives() -> None:
    device = Encoding()
    _, up = device.run(first_step({}, job(SPEC, 0)))
    assert set(up) == {"codes", "logits"}
    relatives = logits_of(-Encoding.own)
    _, up = device.run(first_step({"relatives": relatives}, job(SPEC, 1)))
    assert set(up) == {"logits"}
    (fit,) = [each for each in device.requests if hasattr(each, "objective")]
    distill = fit.objective[1]
    assert isinstance(distill, Distill)
    assert distill.weight == 0.5
    np.testing.assert_array_equal(distill.logits, relatives.values[job(SPEC, 1).private_batches(2).indices])


def test_knowledge_of_other_samples_is_not_used_and_codes_go_again() -> None:
    device = Encoding()
    device.version = NEW
    _, up = device.run(first_step({"relatives": logits_of(Encoding.own)}, job(SPEC, 1)))
    (fit,) = [each for each in device.requests if hasattr(each, "objective")]
    assert [term.name for term in fit.objective] == ["cross-entropy"]
    assert up["codes"].version == NEW


def test_without_the_owners_word_no_code_leaves(pictures: Path) -> None:
    run = fleets.Run(fleets.config(pictures, "fedcache", devices=3))
    virtual = run.devices[1]
    virtual.agent.participant.context.bench.shares_codes = False
    with pytest.raises(UsageError, match="share_sample_codes"):
        fleets.answer_of(virtual.agent.participant.context.bench, EncodeSamples(size=4, seed=0))
    run.finished()
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-01", "capability")
    assert "share_sample_codes=True" in refused["remedy"]


def test_a_device_with_too_many_samples_is_refused_in_one_line(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedcache", devices=3)
    tables["method"] = {"max_samples": 10}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    hello = run.hello(0)
    found = FedCache.under({"max_samples": 10}).objection(hello)
    assert found == f"{hello.samples} training samples, and at most 10 fit into a message; raise method.max_samples"


@pytest.mark.parametrize(
    "broken",
    [
        {"codes": codes_of(np.ones((2, 3)), [0, 1])},
        {"codes": codes_of(np.ones((2, 2)), [0, 3])},
        {"codes": codes_of(np.ones((2, 2)), [0])},
        {"logits": logits_of(np.ones((2, 2)))},
        {"logits": logits_of(np.ones((1001, 3)))},
    ],
    ids=["width", "label", "labels", "classes", "samples"],
)
def test_an_upload_that_does_not_fit_is_refused(broken: dict[str, Payload]) -> None:
    slots, expect = method_of(SPEC).exchanges[0].up, expectation(SPEC)
    fitting = {"codes": codes_of(np.ones((2, 2)), [0, 1]), "logits": logits_of(np.ones((2, 3)))}
    check_roles(fitting, slots, expect)
    with pytest.raises(RemoteProtocolError, match=r"Sample(Codes|Logits)"):
        check_roles({**fitting, **broken}, slots, expect)


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_run_is_its_naive_twin(pictures: Path) -> None:
    """Own models of two architectures; relatives by brute force."""
    torch, naive = pytest.importorskip("torch"), importlib.import_module("naive")
    tables = fleets.tables(pictures, "fedcache", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": 0.1}
    tables["method"] = {"relatives": 3, "code_size": 6, "temperature": 2.0}
    tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    spec = run.fleet.federation.spec
    twins = [naive.Naive(run, device) for device in run.fleet.devices]
    projection = np.random.default_rng([spec.seed, _CODES, 16]).normal(size=(16, 6))
    raw = np.concatenate([each.data.train.x.reshape(-1, 16) for each in run.fleet.devices]).astype(np.float64)
    raw -= raw.mean(axis=1, keepdims=True)
    codes = (raw / np.linalg.norm(raw, axis=1, keepdims=True)) @ projection
    unit, labels = codes / np.linalg.norm(codes, axis=1, keepdims=True), torch.cat([each.y for each in twins]).numpy()
    cosines = np.where((labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool), unit @ unit.T, -np.inf)
    relatives = np.argsort(-cosines, axis=1, kind="stable")[:, :3]
    cache, ce = None, torch.nn.functional.cross_entropy
    kl = torch.nn.KLDivLoss(reduction="batchmean")
    for round_ in range(3):
        begin, uploads = 0, []
        for twin in twins:
            own = slice(begin, begin + len(twin.y))
            begin = own.stop
            for batch in twin.batches(round_):
                logits = twin.net(twin.x[batch])
                loss = ce(logits, twin.y[batch])
                if cache is not None:
                    teacher = torch.softmax(cache[relatives[own][batch]].mean(dim=1) / 2, 1)
                    loss = loss + 1.5 * kl(torch.log_softmax(logits / 2, 1), teacher)
                naive.step(loss, twin.net.parameters(), 0.1)
            uploads.append(twin.net(twin.x).detach())
        cache = torch.cat(uploads)
    run.finished()
    np.testing.assert_array_equal(run.server.method_state.cache.relatives.reshape(-1, 3), relatives)
    np.testing.assert_allclose(run.server.method_state.cache.logits, cache.numpy(), atol=2e-6)
    for virtual, twin in zip(run.devices, twins, strict=True):
        np.testing.assert_allclose(virtual.agent.participant.context.bench.model.weights(), twin.weights, atol=2e-6)


def test_only_the_first_upload_has_codes(pictures: Path) -> None:
    run = fleets.Run(fleets.config(pictures, "fedcache", devices=3))
    sent = run.tap()
    run.finished()
    ups = [each for each in sent if isinstance(each, Upload) and not each.closing]
    assert {each.round for each in ups if "codes" in each.knowledge} == {0}
    assert len(ups) == 9
