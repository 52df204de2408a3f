"""An app that is updated: its state began with another model than the one that it brings now."""

from __future__ import annotations

import hashlib
import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, Slow, agent_of, federation, samples_of, wait_for

import edge_sdk
from coordinator.rounds import RoundPhase
from coordinator.serving.server import Server
from edge_sdk.arrays import Floats, Ints
from edge_sdk.device import recovery
from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart, SqliteStore
from edge_sdk.device.training.app_model import choose_model, origin_of
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import UsageError
from edge_sdk.transport.memory.hub import Hub

HELD_OUT = {"train": samples_of(), "validation": samples_of(7)}


class Frozen(Slow):
    """A head on an extractor that never changes."""

    def __init__(self, seed: int) -> None:
        super().__init__(CLASSES, (1, 1, 8), seed=1)
        self.projection = np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32)

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        return super().feature_rows(x, index) @ self.projection

    def frozen_digest(self) -> bytes:
        return hashlib.sha256(self.projection.tobytes()).digest()


def good() -> edge_sdk.NumpyModel:
    """Weights that classify all samples."""
    model = edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1)
    rows = np.zeros((CLASSES, 9), np.float32)
    rows[:, :CLASSES] = 3 * np.eye(CLASSES)
    model.set_head_rows(np.arange(CLASSES), rows)
    return model


def bad() -> edge_sdk.NumpyModel:
    """Weights that classify no sample."""
    model = good()
    model.set_head_rows(np.arange(CLASSES), np.roll(model.head_rows(), 1, axis=0))
    return model


def accuracy(agent: edge_sdk.Agent) -> float:
    seen = HELD_OUT["validation"]
    return float(np.mean(agent.predict(seen.x).argmax(axis=1) == seen.y))


class Updated:
    """A federation of one device, whose app is stopped after some rounds and brings another model then."""

    def __init__(self, serve: Any, state: Path, *, rounds: int = 5) -> None:
        self.hub, self.state, self.rounds = Hub(), state, rounds
        self.server: Server = federation(self.hub, devices=1, rounds=rounds, local_steps=2)
        serve(self.server)

    def agent(self, model: Any, **other: Any) -> edge_sdk.Agent:
        other.setdefault("data", edge_sdk.LocalData(**HELD_OUT))
        return agent_of(self.hub, "left", model=model, state=self.state, **other)

    def first_rounds(self, model: Any) -> None:
        before = self.agent(model)
        before.start()
        wait_for(lambda: len(self.server.record.rounds) >= 2)
        before.stop()

    def finish(self, agent: edge_sdk.Agent) -> None:
        agent.start()
        wait_for(lambda: not agent.running)
        assert agent.error is None
        assert self.server.rounds.phase is RoundPhase.DONE
        assert self.server.record.updates["accepted"] == self.rounds + 1  # each exchange once
        assert [entry.contributors for entry in self.server.record.rounds] == [1] * self.rounds


def slow(model: edge_sdk.NumpyModel) -> edge_sdk.NumpyModel:
    """The same model, whose batches take their time."""
    other = Slow(CLASSES, (1, 1, 8), seed=1)
    other.set_head_rows(np.arange(CLASSES), model.head_rows())
    return other


@pytest.fixture
def updated(serve, tmp_path: Path) -> Updated:
    return Updated(serve, tmp_path / "state")


def test_a_better_model_is_adopted_at_the_round_that_follows(
    updated: Updated, caplog: pytest.LogCaptureFixture
) -> None:
    updated.first_rounds(slow(bad()))
    with caplog.at_level(logging.WARNING):
        agent = updated.agent(good())
    (record,) = caplog.records
    news: list[str] = []
    agent.on_link(news.append)
    np.testing.assert_array_equal(agent.bench.model.head_rows(), good().head_rows())
    assert accuracy(agent) > 0.9
    updated.finish(agent)
    assert news[0] in record.getMessage()
    again = updated.agent(good())
    assert caplog.records == [record]  # decided once
    again.stop()


def test_what_was_learnt_is_kept_if_it_is_better(updated: Updated) -> None:
    updated.first_rounds(slow(good()))
    agent = updated.agent(bad())
    assert accuracy(agent) > 0.9
    updated.finish(agent)
    assert accuracy(agent) > 0.9


@pytest.mark.parametrize(("shipped", "adopted"), [(good, True), (bad, False)])
def test_without_held_out_samples_the_training_samples_decide(updated: Updated, shipped: Any, *, adopted: bool) -> None:
    data = edge_sdk.LocalData(train=samples_of())
    before = updated.agent(slow(bad() if adopted else good()), data=data)
    before.start()
    wait_for(lambda: len(updated.server.record.rounds) >= 2)
    before.stop()
    agent = updated.agent(shipped(), data=data)
    assert (agent.bench.model.head_rows() == shipped().head_rows()).all() == adopted
    updated.finish(agent)


@pytest.mark.parametrize(("wish", "adopted"), [("adopt", True), ("keep", False)])
def test_the_owner_decides(updated: Updated, wish: str, *, adopted: bool) -> None:
    updated.first_rounds(slow(bad()))
    shipped = bad() if adopted else good()
    shipped.set_head_rows(np.arange(CLASSES), shipped.head_rows() * np.float32(0.5))
    rows = shipped.head_rows()
    agent = updated.agent(shipped, on_new_model=wish)
    assert (agent.bench.model.head_rows() == rows).all() == adopted
    updated.finish(agent)


@pytest.mark.parametrize(
    "swap", [lambda: Frozen(2), lambda: edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1, head="cosine")]
)
def test_a_head_is_never_kept_for_another_extractor_or_architecture(updated: Updated, swap: Any) -> None:
    first = Frozen(1)
    updated.first_rounds(first)
    for wish in ("keep", "error"):
        with pytest.raises(UsageError, match="on_new_model") as refused:
            updated.agent(swap(), on_new_model=wish)
        assert "'keep'" not in str(refused.value)  # it would be refused, too
    fresh = swap().state_bytes()
    agent = updated.agent(swap())
    assert agent.bench.model.state_bytes() == fresh
    updated.finish(agent)


def test_the_former_model_can_come_back_after_an_error(updated: Updated) -> None:
    updated.first_rounds(slow(good()))
    with pytest.raises(UsageError):
        updated.agent(bad(), on_new_model="error")
    agent = updated.agent(slow(good()), on_new_model="error")
    assert accuracy(agent) > 0.9
    updated.finish(agent)


def test_an_adoption_that_is_cut_off_leaves_the_old_state(updated: Updated, monkeypatch: pytest.MonkeyPatch) -> None:
    updated.first_rounds(slow(bad()))
    path = updated.state / "app.db"

    def contents() -> tuple[Any, ...]:
        store = SqliteStore(path)
        found = store.origin(), store.round_start(), store.finished()
        store.close()
        return found

    class Cut(BaseException):
        """The power failed."""

    def fail(*_: object) -> None:
        raise Cut

    before = contents()
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_replace_start", fail)  # within the transaction
        with pytest.raises(Cut):
            updated.agent(good())
    assert contents() == before
    agent = updated.agent(good())
    assert accuracy(agent) > 0.9
    updated.finish(agent)


# -- the parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda path: SqliteStore(path / "app.db"), lambda _: MemoryStore()])
def test_an_adoption_keeps_the_exchanges_and_the_welcome(tmp_path: Path, make: Any) -> None:
    store = make(tmp_path)
    store.enter_run(b"welcome", RoundStart(0, b"old", b"caches"), b"origin")
    done = FinishedExchange(3, 0, b"assign", b"upload")
    store.save(done, RoundStart(3, b"older", b"caches"))
    store.adopt(RoundStart(4, b"new", b""), b"other")
    assert store.origin() == b"other"
    assert store.round_start() == RoundStart(4, b"new", b"")
    assert (store.saved_round(), store.finished(), store.welcome()) == (4, (done,), b"welcome")
    store.close()


class Learns:
    """As much of a learner as a recovery asks for; a round has two exchanges."""

    def __init__(self) -> None:
        self.lock, self.skipped_round, self.restored = nullcontext(), None, b""
        self.membership = SimpleNamespace(is_last=lambda exchange: exchange == 1)
        self.state = {"old": "caches"}

    def restore(self, start: RoundStart) -> None:
        self.restored = start.model

    def skip_round(self, round_: int, _reason: object) -> None:
        self.skipped_round = round_

    def snapshot(self, round_: int) -> RoundStart:
        return RoundStart(round_, b"new", b"")


@pytest.mark.parametrize(("last_exchange", "skipped"), [(0, 3), (1, None)])
def test_a_model_that_came_within_a_round_sits_the_rest_of_it_out(last_exchange: int, skipped: int | None) -> None:
    store = MemoryStore()
    store.save(FinishedExchange(3, 0, b"", b""), RoundStart(3, b"old", b""))
    for exchange in range(1, last_exchange + 1):
        store.save(FinishedExchange(3, exchange, b"", b""))
    learner: Any = Learns()
    start = recovery.start_with_new_model(learner, store)
    assert start.round == 4
    store.adopt(start, b"other")
    recovery.recompute_round(learner, store, lacks_public_set=False)
    assert learner.restored == b"new"
    assert learner.skipped_round == skipped


def test_words_that_are_none() -> None:
    with pytest.raises(UsageError, match="on_new_model 'newest'"):
        agent_of(Hub(), "left", on_new_model="newest")


def test_a_swapped_onnx_file_gets_a_head_of_its_own() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from onnx_files import CLASSES as KINDS
    from onnx_files import classifier

    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel

    rng = np.random.default_rng(0)
    data = edge_sdk.LocalData(train=edge_sdk.Samples(rng.random((9, 6, 6), np.float32), np.arange(9) % KINDS))
    benches = [Workbench(OnnxModel(classifier(seed=seed)), data) for seed in (0, 1)]
    origins = [origin_of(bench) for bench in benches]
    brought = benches[1].state_bytes()
    choice = choose_model(benches[1], benches[0].state_bytes(), *origins, "better")
    assert choice.adopt
    assert "extractor" in choice.line
    assert benches[1].state_bytes() == brought
    assert origin_of(Workbench(OnnxModel(classifier()), data)) == origins[0]
