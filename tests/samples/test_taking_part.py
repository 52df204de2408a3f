"""Devices whose samples come while they take part: a coordinator and agents on a hub, driven without a clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.memory.hub import Hub

CLASSES, WIDTH = 4, 8


def federation(hub, *, method="local", devices=1, quorum=1, rounds=3, class_names=()):
    made = load_method(method)()
    spec = FederationSpec(
        federation="stream",
        method=method,
        contract=made.digest,
        classes=CLASSES,
        rounds=rounds,
        feature_dim=WIDTH,
        train=TrainSpec(local_steps=3, learning_rate=0.05, batch_size=8),
        class_names=class_names,
    )
    exchanges = len(made.exchanges)
    policy = RoundPolicy(expected=devices, quorum=quorum, rounds=rounds, exchanges=exchanges, join_grace_s=0.0)
    server = Server(spec=spec, policy=policy, method=made, transport=hub.link("coordinator"), ledger=Ledger(None))
    server.connect()
    return server


def store(path: Path | None = None, **more):
    return edge_sdk.SampleStore(path, classes=CLASSES, **{"split": (1, 0, 0), **more})


def fill(samples, count, *, first=0, labels=range(CLASSES)):
    for i in range(first, first + count):
        rng, y = np.random.default_rng(i), labels[i % len(labels)]
        samples.observe(rng.normal(size=WIDTH).astype(np.float32) + 3 * np.eye(WIDTH, dtype=np.float32)[y], y)
    return samples


def agent(hub, data, *, name="left", news=None, connect=True, **more):
    made = edge_sdk.Agent(
        federation="stream",
        broker=hub.link(name),
        identity=name,
        model=edge_sdk.NumpyModel(CLASSES, (1, 1, WIDTH), seed=1),
        data=data,
        **more,
    )
    made.on_link((news if news is not None else []).append)
    if connect:
        made.connect()
    return made


class World:
    """A server and agents, and the time that they are told."""

    def __init__(self, server, *agents):
        self.server, self.agents, self.now_s = server, list(agents), 0.0

    def turn(self):
        """Let everybody handle what has come, and compute what there is to compute."""
        self.now_s += 0.1
        while (event := self.server.transport.poll(0.0)) is not None:
            self.server.handle(event, self.now_s)
        self.server.flush(self.now_s)
        self.server.tick(self.now_s)
        for each in self.agents:
            while (event := each.transport.poll(0.0)) is not None:
                each.handle(event, self.now_s)
            each.tick(self.now_s)
            while each.computing:
                if each.work_slice():
                    each.finish_work(self.now_s)

    def until(self, condition, turns=300):
        for _ in range(turns):
            if condition():
                return
            self.turn()
        raise AssertionError("nothing happened")


def completed(server):
    return lambda: server.rounds.phase is RoundPhase.DONE


def test_a_device_without_samples_waits_and_nobody_waits_for_it():
    hub, news = Hub(), []
    server = federation(hub, devices=2, rounds=40)
    late = store()
    world = World(server, agent(hub, fill(store(), 40)), agent(hub, late, name="right", news=news))
    world.until(lambda: server.rounds.place.round >= 5)
    assert server.rounds.members == {"left"}
    assert world.agents[1].begun == 0
    assert any("no labelled samples" in line for line in news)
    fill(late, 40)
    world.until(completed(server))
    assert server.rounds.members == {"left", "right"}
    assert server.record.rounds_done["right"] >= 30
    assert server.record.rounds_done["left"] == 40


def test_samples_that_come_while_it_joins_are_told_at_once():
    hub = Hub()
    server, samples = federation(hub), store()
    device = agent(hub, samples)
    world = World(server, device)
    device.handle(device.transport.poll(0.0), 0.0)  # connected: its Hello has no samples
    while (event := server.transport.poll(0.0)) is not None:
        server.handle(event, 0.0)
    fill(samples, 20)  # before the Welcome arrives
    world.until(completed(server), turns=60)  # 6 s; a Hello would be sent again after 60 s
    assert server.record.rounds_done["left"] == 3


def test_labels_that_come_later_begin_it_too():
    hub = Hub()
    server, samples = federation(hub), store()
    ids = [samples.observe(np.full(WIDTH, i, np.float32)) for i in range(6)]
    world = World(server, agent(hub, samples))
    for _ in range(30):
        world.turn()
    assert server.rounds.phase is RoundPhase.GATHERING
    for i, each in enumerate(ids):
        samples.label(each, i % CLASSES)
    world.until(completed(server))
    assert server.record.rounds_done["left"] == 3


def test_each_round_trains_on_what_is_there_when_it_begins():
    hub = Hub()
    server, samples = federation(hub, rounds=6), fill(store(), 10)
    world = World(server, agent(hub, samples, disclose_classes=True))
    world.agents[0].on_round(lambda report: fill(samples, 5, first=100 + 5 * report.round))
    world.until(completed(server))
    assert len(world.agents[0].bench.data.train) > 10
    assert server.hellos["left"].samples > 10
    assert server.hellos["left"].class_counts == world.agents[0].bench.class_counts
    assert sum(server.hellos["left"].class_counts) == server.hellos["left"].samples


def test_a_class_that_comes_later_is_shared():
    hub = Hub()
    server = federation(hub, method="fedproto", devices=2, quorum=2, rounds=6)
    samples = fill(store(), 20, labels=[0, 1])
    world = World(
        server,
        agent(hub, samples, disclose_classes=True),
        agent(hub, fill(store(), 40), name="right", disclose_classes=True),
    )
    world.until(lambda: server.rounds.place.round == 2)
    fill(samples, 60, first=100, labels=[2, 3])
    world.until(completed(server))
    assert not server.record.refused_frames
    assert set(np.flatnonzero(server.hellos["left"].class_counts)) == {0, 1, 2, 3}


def test_a_restart_computes_the_round_again_from_the_same_samples(tmp_path):
    hub = Hub()
    server, path, state = federation(hub, rounds=30), tmp_path / "samples.db", tmp_path / "state"
    samples = fill(store(path), 12)
    world = World(server, agent(hub, samples, state=state))
    for life in range(4):
        world.until(lambda life=life: server.rounds.place.round >= 2 + 2 * life)
        fill(samples, 10, first=100 + 20 * life)
        device = world.agents[0]
        device._rebuild()  # as if the power failed now: the exchange at hand is lost
        before, held = device.bench.model.state_bytes(), len(device.bench.data.train)
        fill(samples, 10, first=110 + 20 * life)
        samples.close()
        device.transport.close()
        device.store.close()
        samples = store(path)
        world.agents[0] = agent(hub, samples, state=state)
        assert world.agents[0].bench.model.state_bytes() == before
        assert len(world.agents[0].bench.data.train) <= held < len(samples)
    world.until(completed(server))
    assert len(world.agents[0].bench.data.train) == len(samples) == 92
    samples.close()


def test_a_restart_with_another_store_is_told_and_goes_on(tmp_path, caplog):
    hub, news = Hub(), []
    server, state = federation(hub, rounds=10), tmp_path / "state"
    world = World(server, agent(hub, fill(store(tmp_path / "one.db"), 12), state=state))
    world.until(lambda: server.rounds.place.round >= 2)
    world.agents[0].store.close()
    world.agents[0].transport.close()
    world.agents[0] = agent(hub, fill(store(tmp_path / "two.db"), 20), state=state, news=news)
    assert "two.db: lacks samples" in caplog.text
    assert len([line for line in news if "two.db: lacks samples" in line]) == 1
    world.until(completed(server))
    assert server.record.rounds_done["left"] == 10


@pytest.mark.parametrize("discloses", [False, True])
def test_a_lost_class_is_told_to_the_owner_and_to_operators_only_where_classes_are_disclosed(discloses):
    hub, news = Hub(), []
    server, samples = federation(hub, rounds=8), fill(store(), 20)
    one = samples.observe(np.full(WIDTH, 9, np.float32), 3)
    device = agent(hub, samples, news=news, disclose_classes=discloses)
    world = World(server, device)
    world.until(lambda: server.rounds.place.round >= 2)
    for i in range(3, 20, 4):
        rng = np.random.default_rng(i)
        samples.observe(rng.normal(size=WIDTH).astype(np.float32) + 3 * np.eye(WIDTH, dtype=np.float32)[3], 0)
    samples.discard(one)
    world.until(completed(server))
    assert len([line for line in news if "class 3" in line]) == 1  # not in each round that follows
    assert any("class 3" in line for line in device.last_lines()) == discloses


def test_a_device_that_loses_all_its_samples_withholds():
    hub = Hub()
    server = federation(hub, devices=2, rounds=12)
    samples = store()
    ids = [samples.observe(np.full(WIDTH, i, np.float32), i % 2) for i in range(8)]
    world = World(server, agent(hub, samples), agent(hub, fill(store(), 40), name="right"))
    world.until(lambda: server.rounds.place.round >= 3)
    for each in ids:
        samples.discard(each)
    world.until(completed(server))
    assert server.record.rounds_done["left"] < 6
    assert server.record.rounds_done["right"] == 12


def test_a_run_whose_only_device_loses_its_samples_says_so():
    hub = Hub()
    server, samples = federation(hub, rounds=12), store()
    ids = [samples.observe(np.full(WIDTH, i, np.float32), i % 2) for i in range(8)]
    world = World(server, agent(hub, samples))
    world.until(lambda: server.rounds.place.round >= 3)
    for each in ids:
        samples.discard(each)
    world.until(lambda: server.rounds.phase is RoundPhase.FAILED)
    assert "left the last: this device has no labelled samples; label samples on it; " in server.rounds.reason
    assert "learning_rate" not in server.rounds.reason


@pytest.mark.parametrize("share_weights", [True, False])
def test_a_model_without_weights_is_not_told_to_share_them(*, share_weights):
    hub = Hub()
    world = World(
        federation(hub, method="fedavg"),
        edge_sdk.Agent(
            federation="stream",
            broker=hub.link("left"),
            identity="left",
            model=PredictOnly(lambda x: np.zeros((len(x), CLASSES), np.float32), classes=CLASSES),
            data=fill(store(), 8).take_snapshot().data,
            share_weights=share_weights,
        ),
    )
    (device,) = world.agents
    device.connect()
    world.until(lambda: device.refusal is not None)
    assert "if its model has weights to share and its owner agrees, let them leave" in device.refusal.remedy
    assert device.refusal.remedy.endswith("has no weights that can be shared)") is share_weights


def test_a_full_disk_leaves_the_round_with_the_samples_of_the_last(tmp_path, monkeypatch):
    hub, news = Hub(), []
    server, samples = federation(hub, rounds=8), fill(store(tmp_path / "s.db"), 20)
    world = World(server, agent(hub, samples, news=news))
    world.until(lambda: server.rounds.place.round >= 2)

    def refuse(*_, **__):
        raise edge_sdk.errors.StoreError("disk full")

    monkeypatch.setattr(type(samples._file), "commit", refuse)
    fill(samples, 8, first=100)
    world.until(completed(server))
    assert any("disk full" in line for line in news)
    assert len(world.agents[0].bench.data.train) == 20
    monkeypatch.undo()
    assert samples.take_snapshot().data.train.x.shape == (28, WIDTH)


def test_a_store_for_another_model():
    with pytest.raises(UsageError, match="5 classes"):
        agent(Hub(), edge_sdk.SampleStore(None, classes=5), connect=False)
    with pytest.raises(UsageError, match="SampleStore"):
        agent(Hub(), [1, 2, 3], connect=False)


NAMES = ("cat", "cow", "dog", "pig")


@pytest.mark.parametrize(
    ("own", "of_federation", "why"),
    [
        (NAMES, NAMES, ""),
        (NAMES, (), ""),
        ((), NAMES, ""),
        (("cow", "cat", "dog", "pig"), NAMES, "class 0 is 'cow' in its data, and 'cat' in the federation"),
        (("cat", "dog"), NAMES, "its data have the classes cat, dog, the federation cat, cow, dog, pig"),
        (("cat", "dog"), (), "its data have 2 class names (cat, dog), the federation 4 classes without names"),
    ],
)
def test_a_device_whose_class_names_are_others_is_refused_in_one_line(own, of_federation, why):
    hub, news = Hub(), []
    server = federation(hub, class_names=of_federation)
    x = np.random.default_rng(0).normal(size=(20, WIDTH)).astype(np.float32)
    y = np.arange(20) % 2
    data = edge_sdk.LocalData(train=edge_sdk.Samples(x, np.array(own)[y] if own else y, own))
    world = World(server, agent(hub, data, news=news))
    if not why:
        world.until(completed(server))
        assert not any("class" in line for line in news)
        assert world.agents[0].class_names == NAMES
        return
    world.until(lambda: world.agents[0].refusal is not None, turns=20)
    assert world.agents[0].refusal.message == why
    assert "class_names=[" in world.agents[0].refusal.remedy
