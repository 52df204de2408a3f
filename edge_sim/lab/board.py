"""A board of a lab (`edge-sdk lab-device`): waits for runs, builds its device from their settings, and takes part.

`edge-sdk lab-device` is started once on the board, and needs no touch between runs.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from edge_sdk.agent.agent import Agent
from edge_sdk.agent.arguments import SimulatedId
from edge_sdk.errors import EdgeError, RemoteProtocolError, RunFailed, UsageError
from edge_sdk.policy.policy import Policy, load_policy
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import CoordinatorStatus, Message
from edge_sdk.protocol.operator_messages import LabHello, LabRun
from edge_sdk.protocol.topics import is_id
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport, TransportEvent
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url
from edge_sdk.version import __version__
from edge_sim.fleet.fleet import build_device
from edge_sim.lab.wire_settings import unpacked_settings

HELLO_S = 5.0
"""Seconds between two hellos of a board."""
POLL_S = 0.2
WHY_CHARACTERS = 512


def take_message(event: Incoming, say: Callable[[str], None]) -> Message | None:
    """Acknowledge a frame, and return its message, or None for an unreadable one, reported through `say`."""
    event.acknowledge()
    try:
        return codec.decode(event.frame).message
    except RemoteProtocolError as error:
        say(f"refused a frame on {event.topic}: {error}")
        return None


@dataclass(frozen=True, kw_only=True)
class BoardOptions:
    """The owner's choices when a board is started."""

    broker: str
    lab: str
    device: str
    """The board's id in the lab; in each run it has the id of its number."""
    number: int
    state: Path
    """The folder for the state of the present run."""
    data: Path
    """The folder with the files that settings may name."""
    host: str = ""
    modules: Collection[str] = ()
    """The modules whose functions settings may name."""
    tls: TlsFiles = NO_FILES
    policy: Policy = field(default_factory=Policy)


class LabBoard:
    """Answers the desk of a lab, and takes part in one run at a time."""

    def __init__(
        self,
        options: BoardOptions,
        transport: Transport,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._transport, self._say, self._clock = options, transport, say, clock
        self._work: BoardRun | None = None
        self._told = ""
        """The state last reported to the desk."""
        self._hello_at_s, self._sequence = 0.0, 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let `serve` return soon; may be called from any thread."""
        self._stopping.set()

    def serve(self) -> None:
        """Wait for runs and take part in them, until `stop` is called."""
        self._transport.connect(topics.device_subscriptions(self._options.lab, self._options.device))
        try:
            while not self._stopping.is_set():
                event = self._transport.poll(POLL_S)
                if event is not None:
                    self._handle(event)
                state = self._work.state if self._work else "idle"
                if state != self._told or self._clock() >= self._hello_at_s:
                    self._greet()
        finally:
            self._end_work()
            self._greet()  # so that the desk does not wait for it
            self._transport.close()

    def _handle(self, event: TransportEvent) -> None:
        if isinstance(event, Connected):
            self._say(f"connected; board {self._options.number} of {self._options.lab} waits for runs")
            self._greet()
        elif isinstance(event, Disconnected):
            self._say(f"broker: {event.reason}")
        elif isinstance(event, Incoming):
            message = take_message(event, self._say)
            if isinstance(message, LabRun) and message.device == self._options.device:
                self._begin(message)
            elif isinstance(message, CoordinatorStatus) and message.state == "finished":
                self._end_work()
            elif isinstance(message, CoordinatorStatus) and message.state == "ready":
                self._greet()

    def _begin(self, run: LabRun) -> None:
        """Take part in a run, and leave another one; a repeated request changes nothing."""
        if self._work is None or self._work.run != run.run:
            self._end_work()
            self._work = BoardRun(run.run, run.settings, self._options, self._say)
            self._work.start()
        self._greet()

    def _end_work(self) -> None:
        if self._work is not None:
            self._work.stop()
            self._work = None

    def _greet(self) -> None:
        options, work = self._options, self._work
        self._told = work.state if work else "idle"
        self._hello_at_s = self._clock() + HELLO_S
        self._sequence += 1
        hello = LabHello(
            federation=options.lab,
            device=options.device,
            number=options.number,
            state=self._told,
            run=work.run if work else None,
            why=one_line(work.why, WHY_CHARACTERS) if work else "",
            host=options.host,
            sdk=__version__,
            data_sha256=work.data_sha256 if work else None,
            figures=work.figures if work else {},
        )
        frame = codec.encode(hello, Stamp(0, self._sequence))
        self._transport.send(topics.up(options.lab, options.device, "lab"), frame)


class BoardRun:
    """One run on one board, in a thread of its own: building may take minutes, and the desk wants to hear meanwhile."""

    def __init__(self, run: bytes, settings: bytes, options: BoardOptions, say: Callable[[str], None]) -> None:
        self.run, self._settings, self._options, self._say = run, settings, options, say
        self.state = "building"
        self.why = ""
        """Why the run is refused, or how it ended for this board."""
        self.data_sha256: bytes | None = None
        self._agent: Agent | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._take_part, name=f"run-{run.hex()[:8]}", daemon=True)

    @property
    def figures(self) -> dict[str, float]:
        """The cost of the run so far."""
        if self._agent is None:
            return {}
        meter = self._agent.participant.context.bench.meter
        return {"steps": float(meter.steps), "flops": float(meter.train_flops + meter.infer_flops)}

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the batch being computed, and wait for that."""
        self._stopping.set()
        if self._agent is not None:
            self._agent.stop()
        self._thread.join()

    def _take_part(self) -> None:
        label = f"run {self.run.hex()[:8]}"
        try:
            self._agent = agent = self._build()
            if self._stopping.is_set():
                agent.stop()
                return
            part = agent.participant.context
            self._say(f"{label}: {part.federation}, as {part.device}: {part.bench.model.spec.name}")
            self.state = "running"
            agent.run()
            self.state, self.why = "done", "" if agent.over else "stopped by the desk"
        except RunFailed as error:
            self.state, self.why = "done", str(error)
        except EdgeError as error:
            self.state, self.why = "refused", str(error)
        except Exception as error:  # noqa: BLE001  # a model or a plug-in may raise anything; the board must continue
            self.state, self.why = "refused", f"{type(error).__name__}: {error}"
        self._say(f"{label}: {self.state}{f': {one_line(self.why)}' if self.why else ''}")

    def _build(self) -> Agent:
        """Build this board's device.  Raises EdgeError for what it cannot build."""
        options = self._options
        config = unpacked_settings(self._settings, options.data, options.modules)
        if options.number >= len(config.ids):
            raise UsageError(f"number {options.number}: the run has {len(config.ids)} devices")
        device, dataset = build_device(config, options.number)
        self.data_sha256 = bytes.fromhex(dataset.sha256)
        if device.kit.needs_torch:
            from edge_sim.engines.torch_threads import (
                use_exact_arithmetic,  # a device without torch never loads it
                use_one_thread,  # a device without torch never loads it
            )

            use_one_thread()
            use_exact_arithmetic()
        return Agent(
            federation=config.federation.name,
            broker=options.broker,
            tls=options.tls if options.broker.startswith("mqtts:") else None,
            identity=SimulatedId(device.kit.id),
            model=device.kit.model(device.public),
            data=device.data,
            public=device.public,
            state=self._folder(),
            board=device.kit.board_name,
            disclose_classes=True,
            privacy=device.kit.budget,
            share_weights=True,
            share_sample_codes=True,
            secret=device.kit.secret,
            proxy=device.kit.proxy_model(device.public),
            policy=options.policy,
        )

    def _folder(self) -> Path:
        """Return the folder for the state of this run; those of earlier runs are deleted."""
        runs = self._options.state / "runs"
        mine = runs / self.run.hex()
        for folder in runs.iterdir() if runs.is_dir() else ():
            if folder != mine:
                shutil.rmtree(folder, ignore_errors=True)
        return mine


def open_link(options: BoardOptions) -> Transport:
    """Return the board's link to the desk, not connected yet."""
    from edge_sdk.transport.mqtt.transport import MqttTransport  # paho only where there is a broker

    name, seed = f"lab-{options.lab}-{options.device}", random.SystemRandom().getrandbits(32)
    return MqttTransport(options.broker, name, tls=options.tls, clean=True, seed=seed)


def command(args: argparse.Namespace) -> int:
    """Serve the lab until interrupted."""
    parse_broker_url(args.broker)
    host = host_id()
    number = _number(args, host)
    device = args.id or (host if args.list else f"device-{number:02d}")
    for what, name in (("--lab", args.lab), ("--id", device)):
        if not is_id(name):
            raise UsageError(f"{what} {name!r}: use a-z, 0-9 and -, at most 36 of them")
    if not args.data.is_dir():
        raise UsageError(f"--data {args.data}: no such folder; create it, or name the one with the data files")
    options = BoardOptions(
        broker=args.broker,
        lab=args.lab,
        device=device,
        number=number,
        state=args.state or Path("state") / f"lab-{args.lab}-{device}",
        data=args.data,
        host=host,
        modules=frozenset(args.allow_module),
        tls=TlsFiles(args.ca, args.cert, args.key),
        policy=load_policy(args.policy) if args.policy else Policy(),
    )
    board = LabBoard(options, open_link(options), say=lambda line: _say(f"{device}: {line}"))
    signal.signal(signal.SIGTERM, lambda _number, _frame: board.stop())
    board.serve()
    return 0


def host_id() -> str:
    """Return this machine's name as an id."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:36] or "device"


def read_list(file: Path) -> tuple[str, ...]:
    """Read a lab's list of boards: one id a line; the first one has number 0.  `#` begins a remark.

    Raises UsageError.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    names = tuple(name for line in lines if (name := line.partition("#")[0].strip()))
    for place, name in enumerate(names):
        if not is_id(name):
            raise UsageError(f"{file}: {name!r}: use a-z, 0-9 and -, at most 36 of them")
        if name in names[:place]:
            raise UsageError(f"{file}: {name} is listed twice")
    return names


def _number(args: argparse.Namespace, host: str) -> int:
    """Return the board's number: as given, or its place in the list.  Raises UsageError."""
    if (args.number is None) == (args.list is None):
        raise UsageError("give one of --number N and --list FILE: which device of each run this board is")
    if args.number is not None:
        number: int = args.number
        if not 0 <= number <= 10**6:
            raise UsageError(f"--number {number}: expected a whole number from 0")
        return number
    names, name = read_list(args.list), args.id or host
    if name not in names:
        raise UsageError(f"{args.list}: {name} is not in it; add it, or give the name that is there with --id")
    return names.index(name)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
