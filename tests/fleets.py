"""Tiny federations: softmax models on made-up pictures, so that a whole run takes a moment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draws
import numpy as np

from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.results.figures.result import Result
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.server import Server
from coordinator.trace import recording_server
from coordinator.trace.log import TraceWriter
from edge_sdk.data import Preprocess
from edge_sdk.device.store import Store
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Request
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Assign, Hello, Message
from edge_sdk.protocol.transforms import Knowledge
from edge_sdk.transport.memory.hub import Faults, MemoryTransport
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.engines.base import Engine
from edge_sim.fleet import fleet as fleets
from edge_sim.fleet.fleet import Fleet
from edge_sim.fleet.hardware import DeviceCost
from edge_sim.runs.simulation_result import simulation_result

CLASSES = 4
SIDE = 4
WIDTH = SIDE * SIDE
"""Features of a softmax model: the pixels."""
PARAMS: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "fedmd": {"public_batch": 8},
    "fedal": {"public_batch": 8, "tau": 2, "max_devices": 8, "discriminator_rate": 0.05},
}
LIMIT_S = 100_000.0
"""Virtual seconds after which a run is called hung: no healthy one here takes a tenth of it."""


@dataclass
class Altered:
    """What a device sends in place of its own messages."""

    hello: Callable[[Hello], Hello] = lambda hello: hello
    knowledge: Callable[[Assign, Knowledge], Knowledge] = lambda _, knowledge: knowledge


def write_pictures(path: Path, *, classes: int = CLASSES, side: int = SIDE, seed: int = 0) -> Path:
    """Noisy pictures of one prototype a class, as the npz file that [data] reads."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(classes, side, side))
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60 * classes), ("test", 10 * classes)):
        y = np.arange(count) % classes
        arrays[f"x_{part}"] = (prototypes[y] + rng.normal(size=(count, side, side))).astype(np.float32)
        arrays[f"y_{part}"] = y
    np.savez(path, **arrays)
    return path


def tables(pictures: Path, method: str = "fedmd", devices: int = 6, **federation: Any) -> dict[str, Any]:
    """The tables of a run; change them before `settings.parse`."""
    return {
        "federation": {
            "name": "tiny",
            "method": method,
            "rounds": 3,
            "devices": devices,
            "seed": 7,
            "feature_dim": WIDTH,
            **federation,
        },
        "method": dict(PARAMS.get(method, {})),
        "train": {"batch_size": 8, "local_steps": 3, "learning_rate": 0.05},
        "data": {"source": "npz", "path": str(pictures), "public": 40},
        "partition": {"kind": "classes_per_device", "classes_per_device": 2},
        "fleet": [{"count": devices, "model": "softmax"}],
        "run": {"standalone": False},
    }


def config(pictures: Path, method: str = "fedmd", devices: int = 6, **federation: Any) -> Config:
    """A parsed run."""
    return settings.parse(tables(pictures, method, devices, **federation), Path("test.toml"))


@functools.cache
def built(pictures: Path, method: str = "fedmd", devices: int = 6, **federation: Any) -> Fleet:
    """The fleet of such a run; shared, for nothing in it changes."""
    return fleets.build_fleet(config(pictures, method, devices, **federation))


class FinishedRun:
    """What a run of this fleet came to."""

    fleet: Fleet
    server: Server
    clock: VirtualClock
    spent: dict[str, DeviceCost]

    @property
    def result(self) -> Result:
        """What came of it."""
        return simulation_result(
            self.server, self.fleet, transport="memory", time={"virtual_s": self.clock.now_s}, spent=self.spent
        )

    @property
    def coordinator_bytes(self) -> bytes:
        """The method's state on the coordinator."""
        return storage.serialise(self.server.method_state)


class Run(FinishedRun, VirtualFleet):
    """A virtual fleet that fails instead of going on for ever."""

    def __init__(
        self,
        fleet: Fleet | Config,
        *,
        faults: Faults | None = None,
        seed: int = 0,
        ledger: Ledger | None = None,
        stores: Mapping[str, Store] | None = None,
        caches: Path | None = None,
        serving: bool = True,
        engine: Engine | None = None,
        observer: RunObserver | None = None,
        trace: TraceWriter | None = None,
        state: Mapping[str, Any] | None = None,
        secured: Path | None = None,
        **options: Any,
    ) -> None:
        """caches: devices must fetch the public set; serving: whether the coordinator has it for them."""
        self.fleet = fleets.build_fleet(fleet) if isinstance(fleet, Config) else fleet
        public = self.fleet.dataset.public
        self.public_server = PublicSetServer(public) if caches and serving and public else None
        super().__init__(
            self.fleet,
            ledger=ledger or Ledger(None),
            faults=faults,
            faults_seed=seed,
            stores=stores,
            public_server=self.public_server,
            caches=caches,
            engine=engine,
            observer=observer,
            new_server=functools.partial(recording_server.server, trace),
            state=state,
            secured=secured,
            **options,
        )
        self.clock.at(LIMIT_S, self._hung)

    def _hung(self) -> None:
        phases = {d.device.kit.id: d.participant.context.session.phase.value for d in self.devices}
        raise AssertionError(
            f"hung: coordinator {self.server.rounds.phase.value} at {self.server.rounds.place}, {phases}"
        )

    def finished(self) -> Run:
        """Run to the end."""
        self.run()
        self.server.close()
        return self

    def slow_down(self, device: str, compute_s: float) -> None:
        """Let every exchange take this long on one device."""
        for each in self.devices:
            if each.device.kit.id == device:
                each.hardware.compute = lambda *_, **__: compute_s  # type: ignore[method-assign]

    def tap(self) -> list[Message]:
        """A list that fills with everything that is sent from now on."""
        sent: list[Message] = []
        self._listen(lambda message, _: sent.append(message))
        return sent

    def tap_frames(self) -> list[tuple[Message, int]]:
        """A list that fills with everything that is sent from now on, each message with its size in bytes."""
        sent: list[tuple[Message, int]] = []
        self._listen(lambda message, size: sent.append((message, size)))
        return sent

    def _listen(self, heard: Callable[[Message, int], None]) -> None:
        publish = self.hub.publish

        def listen(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
            heard(codec.decode(bytes(frame), Limits(2**24, 2**24)).message, len(frame))
            publish(sender, topic, frame, retain=retain)

        self.hub.publish = listen  # type: ignore[method-assign]  # what a tap is

    def hello(self, number: int) -> Hello:
        """What a device says of itself as it connects; before the run."""
        sent = self.tap()
        self.devices[number].connect()
        while not (said := [message for message in sent if isinstance(message, Hello)]):
            assert self.clock.step()
        return said[0]

    @property
    def model_bytes(self) -> dict[str, bytes]:
        """Every device's model and optimiser, and those of its proxy if it has one."""
        return {d.device.kit.id: d.participant.context.bench.state_bytes() for d in self.devices}

    @property
    def begun(self) -> dict[str, int]:
        """Exchanges begun by each device in its present life."""
        return {d.device.kit.id: d.participant.work.begun for d in self.devices}


def teacher(classes: int, input_shape: tuple[int, int, int], seed: int, preprocess: Preprocess) -> PredictOnly:
    """A family for [[fleet]], `fleets:teacher`: a finished linear classifier that cannot be trained."""
    weights = np.random.default_rng(seed).normal(size=(int(np.prod(input_shape)), classes)).astype(np.float32)
    return PredictOnly(
        lambda x: x.reshape(len(x), -1) @ weights, classes, preprocess=preprocess, name="teacher", runtime="numpy"
    )


def private_batches(run: Run, device: fleets.Device, round_: int, steps: int = 3) -> np.ndarray:
    """Indices of the batches that a device trains on in a round: (steps, b)."""
    spec = run.fleet.federation.spec
    return draws.private_batches(
        seed=spec.seed,
        number=device.kit.number,
        round_=round_,
        samples=len(device.data.train),
        size=spec.train.batch_size,
        steps=steps,
    )


def answer_of(bench: Workbench, request: Request) -> tuple[Any, int]:
    """A workbench's answer to a request that needs no job, and how often the work paused."""
    work, pauses = bench.serve(request, None), 0  # type: ignore[arg-type]  # these requests need no job
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value, pauses
        pauses += 1
