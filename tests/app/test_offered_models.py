"""A new model for the fleet: offered by an operator, tried on held-out samples, kept or taken back, through power cuts."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, agent_of, federation, samples_of, wait_for

import edge_sdk
from coordinator.serving.server import Server
from edge_sdk.errors import UsageError
from edge_sdk.models.base import Batches
from edge_sdk.models.onnx_file.ending import chosen_endings
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.model_offers import ModelOffer, OfferedFile
from edge_sdk.public_set import transfer
from edge_sdk.serving import offers
from edge_sdk.tools.operator.link import OperatorLink
from edge_sdk.transport.memory.hub import Hub

SEEN = samples_of(7)


def net(seed: int = 1, steps: int = 0, *, inputs: int = 8, classes: int = CLASSES) -> edge_sdk.NumpyModel:
    """A small net, trained for some steps on samples like those of all devices."""
    model, samples = edge_sdk.NumpyModel(classes, (1, 1, inputs), seed=seed, hidden=(16,)), samples_of(9)
    if steps:
        x = model.spec.preprocess(samples.x)
        indices = np.random.default_rng(0).integers(0, len(x), (steps, 32))
        model.fit(Batches(inputs=x, labels=samples.y, indices=indices), (CrossEntropy(),), Optim(learning_rate=0.02))
    return model


def content(model: edge_sdk.NumpyModel) -> bytes:
    return model.onnx_bytes(np.zeros((1, 1, 1, 8), np.float32))


GOOD, BAD = content(net(5, 60)), content(net(6))


def file_of(content: bytes, name: str = "new.onnx", classes: int = CLASSES) -> OfferedFile:
    return OfferedFile(sha256=hashlib.sha256(content).digest(), total_bytes=len(content), name=name, classes=classes)


def accuracy(agent: edge_sdk.Agent) -> float:
    return float(np.mean(agent.predict(SEEN.x).argmax(axis=1) == SEEN.y))


@pytest.mark.parametrize("hidden", [(16,), (5,)])
def test_under_shared_weights_all_change_at_once_by_another_run(
    tmp_path: Path, serve: Callable[..., Any], hidden: tuple[int, ...]
) -> None:
    """As the refusal says: the app brings the model, the coordinator starts in a new folder, and that model is the start."""
    hub, over = Hub(), ""
    fedavg = {"name": "fedavg", "devices": 1, "local_steps": 0}
    first = federation(hub, rounds=10**6, models=tmp_path / "models", **fedavg)
    ending = serve(first, lambda: over)
    data = edge_sdk.LocalData(train=samples_of(3), validation=SEEN)
    kept: dict[str, Any] = {"data": data, "state": tmp_path / "d0", "share_weights": True}
    agent = agent_of(hub, "d0", model=edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1, hidden=hidden), **kept)
    agent.start()
    wait_for(lambda: len(first.record.rounds) > 1)
    with pytest.raises(UsageError, match=r"ship new.onnx with the app .* another --out"):
        OperatorLink(hub.link("operator"), "app", "operator", timeout_s=10).roll_out(file_of(GOOD), 1.0, "")
    agent.stop()
    over = "an operator stops it"
    ending.join(10)
    serve(federation(hub, rounds=1, **fedavg))
    agent = agent_of(hub, "d0", model=net(5, 60), **kept)
    agent.start()
    wait_for(lambda: not agent.running)
    assert agent.error is None
    assert accuracy(agent) > 0.9


class Fleet:
    """A coordinator with devices in threads; the app's nets have learnt nothing, and method `local` hardly helps."""

    def __init__(
        self,
        folder: Path,
        serve: Callable[..., Any],
        *,
        accepting: int,
        others: int = 0,
        model: Callable[[], Any] = net,
    ) -> None:
        self.hub, self.folder, self.over, self.model = Hub(), folder, "", model
        self.server: Server = federation(
            self.hub, devices=accepting + others, rounds=10**6, local_steps=0, quorum=1, models=folder / "models"
        )
        serve(self.server, lambda: self.over)
        self.agents = {f"d{n}": self.agent(f"d{n}", accepts=n < accepting) for n in range(accepting + others)}
        for agent in self.agents.values():
            agent.start()
        wait_for(lambda: len(self.server.hellos) == len(self.agents))
        self.link = OperatorLink(self.hub.link("operator"), "app", "operator", timeout_s=10)

    def agent(self, name: str, *, accepts: bool = True, **other: Any) -> edge_sdk.Agent:
        data = edge_sdk.LocalData(train=samples_of(3), validation=SEEN)
        given = {"model": self.model(), "data": data, "state": self.folder / name, "accepts_models": accepts}
        return agent_of(self.hub, name, **{**given, **other})

    def roll_out(self, content: bytes, share: float = 1.0, **other: Any) -> None:
        file = file_of(content, **other)
        while wanted := self.link.roll_out(file, share, "").wanted:
            self.link.send_blocks(file, content, wanted)

    def state(self) -> str:
        return "\n".join(self.link.ask(self.link.inquiry("rollout")).lines)

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in self.state())

    def counted(self, device: str) -> Counter[str]:
        """What the coordinator refused of a device; for the device itself, what that refused."""
        return self.agents[device].participant.incoming.refused

    def stop(self) -> None:
        self.over = "the test is over"
        for agent in self.agents.values():
            agent.stop()


@pytest.fixture
def fleet(tmp_path: Path, serve: Callable[..., Any]) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(**given: Any) -> Fleet:
        made.append(Fleet(tmp_path, serve, **given))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_a_stage_is_kept_and_grows_and_all_go_back(fleet: Callable[..., Fleet]) -> None:
    lab = fleet(accepting=2, others=1)
    before = {name: agent.predict(SEEN.x) for name, agent in lab.agents.items()}
    told = lab.link.roll_out(file_of(GOOD), 0.5, "", asks_cost=True).text
    assert f"1 of 3 devices; the owners of 1 allow no model; {len(GOOD):,} bytes to each" in told
    assert "no model was rolled out" in lab.state()
    lab.roll_out(GOOD, 0.5)
    lab.wait_for("stage of 50%, kept: of 1 device 1 run it; of 64 held-out samples")
    (first,) = [name for name, agent in lab.agents.items() if accuracy(agent) > 0.9]
    lab.roll_out(GOOD, 1.0)
    lab.wait_for("stage of 100%, kept: of 2 devices 2 run it")
    assert sorted(accuracy(agent) > 0.9 for agent in lab.agents.values()) == [False, True, True]

    lab.agents[first].stop()  # a restart begins with the file, and not with the app's model
    lab.agents[first] = again = lab.agent(first)
    assert accuracy(again) > 0.9
    again.start()

    lab.link.command("rollback")
    lab.wait_for("taken back: 0 of 2 devices still run it")
    wait_for(lambda: all(accuracy(agent) < 0.9 for agent in lab.agents.values()))
    for name, agent in lab.agents.items():
        np.testing.assert_array_equal(agent.predict(SEEN.x), before[name])


def test_a_worse_model_is_used_nowhere_and_taken_back_by_itself(fleet: Callable[..., Fleet]) -> None:
    lab = fleet(accepting=2)
    lab.roll_out(GOOD)
    lab.wait_for("2 run it")
    before = {name: agent.predict(SEEN.x) for name, agent in lab.agents.items()}
    parts = {name: agent.participant for name, agent in lab.agents.items()}
    lab.roll_out(BAD, name="worse.onnx")
    lab.wait_for("worse.onnx")
    lab.wait_for("taken back: 0 of 2 devices still run it")
    assert parts == {name: agent.participant for name, agent in lab.agents.items()}  # nobody changed to it
    for name, agent in lab.agents.items():
        np.testing.assert_array_equal(agent.predict(SEEN.x), before[name])


def test_what_a_guard_did_not_see_is_taken_back_by_the_samples_of_all(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = fleet(accepting=1)
    lab.roll_out(GOOD)
    lab.wait_for("kept")
    monkeypatch.setattr(offers, "is_worse", lambda *_given: False)
    lab.roll_out(BAD, name="worse.onnx")
    lab.wait_for("worse.onnx")
    wait_for(lambda: "taken back" in lab.state())
    wait_for(lambda: accuracy(lab.agents["d0"]) > 0.9)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"classes": CLASSES + 1}, "new.onnx has 5 classes, the federation 4"),
        ({"share": 0.0}, "a share of 0%"),
    ],
)
def test_an_order_that_cannot_be_is_refused_in_one_line(
    fleet: Callable[..., Fleet], given: dict[str, Any], line: str
) -> None:
    lab = fleet(accepting=0, others=1)
    with pytest.raises(UsageError, match="none of 1 devices can be offered it: the owners of 0 allow models"):
        lab.roll_out(GOOD)
    with pytest.raises(UsageError, match=line):
        lab.roll_out(GOOD, **given)


MOST_OTHERS = 2


class Snapshots:
    """The state folder as a power cut leaves it before each change of a file: what was not synced is empty."""

    def __init__(self, folder: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.into, self.count, self.on = folder, into, 0, False
        self._unsynced: set[str] = set()
        self._others = 0
        """Changes in a row outside the folder of offered models; rounds go on, and only the first of them matter."""
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda handle: (sync(handle), self._synced(handle)))
        sys.addaudithook(self._hear)

    def _synced(self, handle: int) -> None:
        with suppress(OSError):
            self._unsynced.discard(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if not self.on or not (writes or event in ("os.rename", "os.remove", "os.truncate", "os.mkdir")):
            return
        if not str(given[0]).startswith(str(self.folder)):
            return
        self._others = 0 if ".offered" in str(given[0]) else self._others + 1
        if self._others <= MOST_OTHERS:
            self.on = False  # the copies are not meant
            self._copy()
            self.on = True
        if writes:
            self._unsynced.add(str(given[0]))
        elif event == "os.rename" and str(given[0]) in self._unsynced:
            self._unsynced.add(str(given[1]))

    def _copy(self) -> None:
        for cut in (False, True) if self._unsynced else (False,):
            copy = self.into / str(self.count)
            shutil.copytree(self.folder, copy)
            for path in self._unsynced if cut else ():
                lost = copy / Path(path).relative_to(self.folder)
                if lost.exists() and lost.suffix not in (".db", ".db-wal"):  # SQLite's are tests/durable's
                    lost.write_bytes(b"")
            self.count += 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_power_cut_leaves_the_model_before_or_the_new_one(
    fleet: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = fleet(accepting=1)
    old = lab.agents["d0"].predict(SEEN.x)
    cuts = Snapshots(tmp_path / "d0", tmp_path / "cuts", monkeypatch)
    cuts.on = True
    lab.roll_out(GOOD)
    lab.wait_for("1 run it")
    new = lab.agents["d0"].predict(SEEN.x)
    lab.link.command("rollback")
    lab.wait_for("taken back: 0 of 1")
    wait_for(lambda: np.array_equal(lab.agents["d0"].predict(SEEN.x), old))
    cuts.on = False
    found = []
    for number in range(cuts.count):
        agent = lab.agent("d0", state=cuts.into / str(number))
        given = agent.predict(SEEN.x)
        found.append("old" if np.array_equal(given, old) else "new" if np.array_equal(given, new) else "neither")
        agent.stop()
    assert [each for each, _ in groupby(found)] == ["old", "new", "old"]


@pytest.mark.parametrize(
    ("content_", "line"),
    [
        (content(net(inputs=5)), "model 'new.onnx' takes samples of shape (1, 1, 5), found (1, 1, 8)"),
        (content(net(classes=3)), "new.onnx: without ONNX Runtime, its last linear layer does not show"),
        (b"no model", "new.onnx: "),
    ],
)
def test_a_file_that_a_device_cannot_use_is_refused_and_told(
    fleet: Callable[..., Fleet], content_: bytes, line: str
) -> None:
    lab = fleet(accepting=1)
    lab.roll_out(content_)
    lab.wait_for("1 refused it")
    assert f"d0: refused: {line}" in lab.state()
    assert lab.agents["d0"].running


def as_onnx() -> Any:
    pytest.importorskip("onnxruntime")
    return edge_sdk.OnnxModel(GOOD)


def as_torch() -> Any:
    pytest.importorskip("onnxruntime")
    nn = pytest.importorskip("torch.nn")
    return edge_sdk.TorchModel(nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES)), classes=CLASSES)


@pytest.mark.parametrize("model", [as_onnx, as_torch])
def test_devices_of_other_runtimes_take_it(fleet: Callable[..., Fleet], model: Callable[[], Any]) -> None:
    model()  # skips where it cannot be made
    lab = fleet(accepting=1, model=model)
    lab.roll_out(content(net(8, 60)))
    lab.wait_for("1 run it")
    wait_for(lambda: lab.agents["d0"].participant.context.bench.model.spec.name == "new.onnx")
    found = lab.agents["d0"].participant.context.bench.model
    assert (found.spec.runtime, accuracy(lab.agents["d0"]) > 0.9) == ("onnx", True)
    assert found.train == ("head" if model is as_onnx else "all")


def test_an_extractor_comes_under_the_last_layer_of_the_device(fleet: Callable[..., Fleet]) -> None:
    as_onnx()
    graph = read_graph(GOOD, "good")
    (ending,) = chosen_endings(graph, None, None)
    assert ending.layer is not None
    lab = fleet(accepting=1, model=as_onnx)
    lab.roll_out(graph.up_to([ending.layer.features]).content(), classes=0)
    lab.wait_for("1 run it")
    wait_for(lambda: lab.agents["d0"].participant.context.bench.model.spec.name == "new.onnx")
    assert accuracy(lab.agents["d0"]) > 0.9


def test_a_file_that_is_not_what_its_hash_says_is_used_nowhere(fleet: Callable[..., Fleet]) -> None:
    lab = fleet(accepting=1)
    file = file_of(GOOD)
    wanted = lab.link.roll_out(file, 1.0, "").wanted
    lab.link.send_blocks(file, bytes(len(GOOD)), wanted)  # on the way to the coordinator
    assert lab.link.roll_out(file, 1.0, "").wanted == wanted
    assert "no model was rolled out" in lab.state()
    (lab.folder / "models" / f"{file.sha256.hex()}.onnx").write_bytes(bytes(len(GOOD)))  # and on its disk
    lab.roll_out(GOOD)
    lab.wait_for(f"d0: refused: the file that arrived is not {file.sha256.hex()[:16]}, 2 times")


def test_a_disk_that_cannot_take_it_is_told_and_it_can_be_offered_again(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = fleet(accepting=1)
    free = transfer.shutil.disk_usage
    full = SimpleNamespace(free=2**20)
    with monkeypatch.context() as patch:
        patch.setattr(transfer.shutil, "disk_usage", lambda folder: full if "d0" in str(folder) else free(folder))
        lab.roll_out(GOOD)
        lab.wait_for("1 refused it")
        assert "1.0 MiB are free, the offered model needs" in lab.state()
    lab.roll_out(GOOD)
    lab.wait_for("1 run it")


def test_offers_of_before_and_of_others_change_nothing(fleet: Callable[..., Fleet]) -> None:
    lab = fleet(accepting=1, others=1)
    lab.roll_out(GOOD)
    lab.wait_for("1 run it")
    run = lab.server.ledger.run
    old = ModelOffer(federation="app", device="d0", file=file_of(BAD), number=0, run=run)
    send = lab.hub.link("somebody")
    send.connect(())
    for device, offer in (
        ("d0", old),
        ("d0", replace(old, number=9, run=bytes(16))),
        ("d1", replace(old, device="d1", number=9)),
    ):
        send.send(topics.down("app", device, "offer"), codec.encode(offer, Stamp(9, 1)))
    wait_for(lambda: lab.counted("d0")["replayed"] == 2 and lab.counted("d1")["knowledge"] == 1)
    assert accuracy(lab.agents["d0"]) > 0.9
