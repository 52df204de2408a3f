"""The desk of a lab: finds its boards, hands them the settings of each run, and serves the run.

A run is an ordinary federation over the broker, with the ordinary rules for devices that go away.  The desk's own
messages only say which run a board is to take part in.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.results.figures.outcome import final_prototypes
from coordinator.results.figures.result import ON_BOARDS, Result
from coordinator.serving.equipment import ready_method
from coordinator.serving.server import Server
from edge_sdk.errors import RunFailed, TransportError, UsageError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import CoordinatorStatus
from edge_sdk.protocol.operator_messages import LabHello, LabRun
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport, TransportEvent, Will
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sim.config.settings import Config
from edge_sim.fleet.calendar import real_timetable
from edge_sim.fleet.fleet import Fleet, build_fleet
from edge_sim.fleet.hardware import DeviceCost
from edge_sim.lab.board import HELLO_S, take_message
from edge_sim.lab.wire_settings import packed_settings
from edge_sim.runs.simulation_result import simulation_result

LOST_S = 4 * HELLO_S
"""A board without a hello for this long is away."""
RESEND_S = 3.0
"""Seconds after which a board that does not say that it has a run is asked again."""
LAST_S = 10.0
"""Longest wait in seconds for the last figures of boards after a run."""
CONNECT_S = 20.0
"""Longest wait in seconds for the broker."""
RETAINED_S = 0.5
"""Wait in seconds for the status that another desk may have left on the broker."""


class LabDesk:
    """The link of the desk with the boards of one lab; used as a context."""

    def __init__(
        self,
        broker: str,
        lab: str,
        *,
        tls: TlsFiles = NO_FILES,
        wait_s: float = 60.0,
        say: Callable[[str], None],
        open_transport: Callable[[str, str], Transport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """wait_s: longest wait for the boards of a run.  open_transport: makes a transport of URL and client id."""
        self._broker, self._lab, self._tls, self._wait_s = broker, lab, tls, wait_s
        self._say, self._clock = say, clock
        self._open = open_transport or self._mqtt
        self._transport = self._open(broker, f"desk-{lab}-{secrets.token_hex(4)}")
        self._epoch, self._sequence = time.time_ns(), 0
        self._linked, self._fault = False, "it does not answer"
        self._other_desk, self._at_work = False, False
        self._boards: dict[str, tuple[float, LabHello]] = {}
        """The last hello of each board, and when it came."""

    def __enter__(self) -> LabDesk:  # noqa: PYI034  # Self is not in Python 3.10
        will = Will(topics.coordinator_status(self._lab), self._status("lost"))
        self._transport.connect(topics.lab_subscriptions(self._lab), will)
        if not self._until(lambda: self._linked, CONNECT_S):
            self._transport.close()
            raise TransportError(f"no broker after {CONNECT_S:g} s: {self._fault}")
        if self._until(lambda: self._other_desk, RETAINED_S):
            self._transport.close()
            raise UsageError(f"another desk is at work in lab {self._lab}; wait for it, or give the boards two labs")
        self._at_work = True
        self._announce("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._announce("finished")
        self._transport.close()

    def run(self, config: Config, observer: RunObserver | None = None) -> Result:
        """Run a federation on the boards and return its result.

        Raises UsageError for settings that cannot travel, TransportError where too few boards are here, and RunFailed
        where boards refuse the run.
        """
        settings = packed_settings(config)
        fleet = build_fleet(config)
        quorum = fleet.federation.policy.quorum
        self._gather(len(config.ids), quorum)
        begun_s, start_s = time.monotonic(), time.time()
        with TemporaryDirectory(prefix="edge-sdk-lab-") as folder:
            server = self._server(fleet, Path(folder) / "ledger.db", observer)
            server.observer.noted(f"{len(self._here(len(config.ids)))} of {len(config.ids)} boards are here")
            asked = _Asked(secrets.token_bytes(16), settings, len(config.ids), fleet.dataset.sha256)
            server.run(check=lambda: self._look_after(asked, quorum), connect_within_s=CONNECT_S)
        wall_s = time.monotonic() - begun_s
        if asked.refused and server.rounds.reason:
            raise RunFailed("; ".join(asked.refused.values()))
        stayed = {
            device.kit.number
            for device in fleet.devices
            if server.record.rounds_done[device.kit.id] == server.record.done
        }
        self._until(lambda: self._all_done(asked, stayed), LAST_S)
        return self._result(server, fleet, asked, {"wall_s": wall_s, "start_s": start_s})

    # -- boards -------------------------------------------------------------------------------------------------------

    def _gather(self, count: int, quorum: int) -> None:
        """Wait until all boards are here; after `wait_s`, a quorum is enough.  Raises TransportError, UsageError."""
        self._until(lambda: len(self._here(count)) == count, self._wait_s)
        here = self._here(count)
        missing = ", ".join(str(number) for number in range(count) if number not in here)
        if len(here) < quorum:
            raise TransportError(
                f"{len(here)} of {count} boards of lab {self._lab} are here after {self._wait_s:g} s, and {quorum} are "
                f"needed; missing numbers: {missing}; on each of them, start edge-sdk lab-device --lab {self._lab} "
                "--number N"
            )
        if missing:
            self._say(f"boards that are not here, by number: {missing}")

    def _here(self, count: int) -> dict[int, LabHello]:
        """Return the boards that are here by number, those for `count` devices.  Raises UsageError for two of one."""
        found: dict[int, LabHello] = {}
        for seen_s, hello in self._boards.values():
            if hello.number >= count or self._clock() - seen_s > LOST_S:
                continue
            if hello.number in found:
                names = " and ".join(sorted(_named(each) for each in (hello, found[hello.number])))
                raise UsageError(f"number {hello.number} is that of two boards, {names}; give one another --number")
            found[hello.number] = hello
        return found

    def _look_after(self, asked: _Asked, quorum: int) -> str:
        """Hand the run to boards that do not have it; returns why it cannot continue, or empty."""
        self._take_all()
        here = self._here(asked.count)
        for number, hello in here.items():
            if hello.run != asked.run:
                self._hand_out(asked, hello)
            elif hello.state == "refused" or hello.data_sha256 not in (None, bytes.fromhex(asked.data_sha256)):
                why = hello.why or "it has another data set than the desk: copy the file to the board again"
                if number not in asked.refused:
                    asked.refused[number] = f"{_named(hello)} refused the run: {why}"
                    self._say(asked.refused[number])
        return "; ".join(asked.refused.values()) if asked.count - len(asked.refused) < quorum else ""

    def _hand_out(self, asked: _Asked, hello: LabHello) -> None:
        if self._clock() >= asked.again_s.get(hello.device, 0.0):
            asked.again_s[hello.device] = self._clock() + RESEND_S
            message = LabRun(federation=self._lab, device=hello.device, run=asked.run, settings=asked.settings)
            self._transport.send(topics.down(self._lab, hello.device, "lab"), codec.encode(message, self._stamp()))

    def _all_done(self, asked: _Asked, numbers: Collection[int]) -> bool:
        here = [hello for number, hello in self._here(asked.count).items() if number in numbers]
        return all(hello.state not in ("building", "running") for hello in here if hello.run == asked.run)

    # -- the run ------------------------------------------------------------------------------------------------------

    def _server(self, fleet: Fleet, ledger: Path, observer: RunObserver | None) -> Server:
        federation = fleet.federation
        return Server(
            spec=federation.spec,
            policy=federation.policy,
            method=ready_method(federation.spec, fleet.equipment),
            transport=self._open(self._broker, f"coordinator-{federation.spec.federation}"),
            ledger=Ledger(ledger),
            roster=federation.roster,
            robust=federation.robust,
            timetable=real_timetable(fleet),
            observer=observer,
        )

    def _result(self, server: Server, fleet: Fleet, asked: _Asked, took: dict[str, float]) -> Result:
        record = server.record
        spent = {}
        for number, hello in self._here(asked.count).items():
            name = fleet.devices[number].kit.id
            figures = hello.figures if hello.run == asked.run else {}
            spent[name] = DeviceCost(
                busy_s=float(record.sums["busy_s"][name]),
                energy_j=float(record.sums["energy_j"][name]),
                flops=int(figures.get("flops", 0)),
                steps=int(figures.get("steps", 0)),
            )
        found = simulation_result(server, fleet, transport=f"{ON_BOARDS} of {self._lab}", time=took, spent=spent)
        devices = tuple(
            dataclasses.replace(device, joules_source=record.joules_source.get(device.id, ""))
            for device in found.devices
        )
        return dataclasses.replace(found, devices=devices, insight=final_prototypes(server))

    # -- frames -------------------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Take frames in until a condition holds; returns whether it does."""
        end_s = self._clock() + within_s
        while not condition():
            if self._clock() >= end_s:
                return False
            event = self._transport.poll(0.1)
            if event is not None:
                self._take(event)
        return True

    def _take_all(self) -> None:
        while (event := self._transport.poll(0.0)) is not None:
            self._take(event)

    def _take(self, event: TransportEvent) -> None:
        if isinstance(event, Connected):
            self._linked = True
            if self._at_work:  # the broker has published the last will
                self._announce("ready")
        elif isinstance(event, Disconnected):
            self._linked, self._fault = False, event.reason
        elif isinstance(event, Incoming):
            message = take_message(event, self._say)
            if isinstance(message, LabHello) and message.device == topics.origin(event.topic).device:
                self._boards[message.device] = self._clock(), message
            elif isinstance(message, CoordinatorStatus):
                self._other_desk = message.state == "ready" and message.epoch != self._epoch

    def _announce(self, state: str) -> None:
        self._transport.send(topics.coordinator_status(self._lab), self._status(state), retain=True)

    def _status(self, state: str) -> bytes:
        return codec.encode(CoordinatorStatus(federation=self._lab, state=state, epoch=self._epoch), self._stamp())

    def _stamp(self) -> Stamp:
        self._sequence += 1
        return Stamp(self._epoch, self._sequence)

    def _mqtt(self, url: str, client_id: str) -> Transport:
        from edge_sdk.transport.mqtt.transport import MqttTransport  # paho only where there is a broker

        seed = random.SystemRandom().getrandbits(32)
        server = client_id.startswith("coordinator-")
        return MqttTransport(
            url, client_id, tls=self._tls, clean=not server, fresh=server, manual_ack=server, seed=seed
        )


@dataclasses.dataclass
class _Asked:
    """A run that boards are asked to take part in."""

    run: bytes
    settings: bytes
    count: int
    """The number of devices; the boards have the numbers below it."""
    data_sha256: str
    """The hash of the data set, as the desk has it."""
    again_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """When to ask each board again, in seconds of the desk's clock."""
    refused: dict[int, str] = dataclasses.field(default_factory=dict)
    """By number: the boards that refuse the run, and why."""


def _named(hello: LabHello) -> str:
    host = f" ({hello.host})" if hello.host and hello.host != hello.device else ""
    return f"board {hello.number}, {hello.device}{host}"
