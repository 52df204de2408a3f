"""A run over a real broker, as a deployment on one machine.

The coordinator runs in this process.  Devices that need torch share a few processes; each other device has its own.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.deploy import open_ledger
from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.serving.equipment import ready_method
from coordinator.serving.server import Server
from coordinator.trace import recording_server
from coordinator.trace.log import TraceWriter
from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.transport import MqttTransport
from edge_sdk.transport.mqtt.url import PASSWORD_VARIABLE, parse_broker_url, without_password
from edge_sim.config.settings import Config
from edge_sim.fleet.calendar import real_timetable
from edge_sim.fleet.fleet import Fleet
from edge_sim.over_broker.host import greeting

log = logging.getLogger(__name__)

CONNECT_S = 60.0
"""Maximum seconds until the broker answers."""
STOP_S = 15.0
"""Maximum seconds until device processes have stopped after the run."""
start_process = subprocess.Popen
"""Starts a device process; a test replaces it to read the commands."""


def over_broker(
    config: Config,
    fleet: Fleet,
    broker: str,
    out: Path,
    observer: RunObserver | None,
    *,
    resume: bool,
    quarantine: bool = False,
    trace: TraceWriter | None = None,
) -> tuple[Server, str]:
    """Run a federation over a broker; return the server and the name of the transport.

    quarantine: whether to set aside a damaged ledger and damaged states of devices.  Raises RunFailed.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _broker(broker) as (url, label, look_for_broker):
        tell = observer.noted if observer is not None else log.warning
        ledger = open_ledger(out, resume=resume, quarantine=quarantine, tell=tell)
        federation = fleet.federation
        _check_states(ledger, out, federation.spec.federation)
        name = f"coordinator-{federation.spec.federation}"
        server = recording_server.server(
            trace,
            spec=federation.spec,
            policy=federation.policy,
            method=ready_method(federation.spec, fleet.equipment),
            transport=MqttTransport(url, name, fresh=True, manual_ack=True, seed=random.SystemRandom().getrandbits(32)),
            ledger=ledger,
            roster=federation.roster,
            robust=federation.robust,
            timetable=real_timetable(fleet),
            observer=observer,
        )
        shown = without_password(url)
        server.observer.noted(f"broker: {shown}" if label == shown else f"broker: {label} at {shown}")
        with _hosts(config, fleet, url, out, server.observer.noted, quarantine=quarantine) as hosts:

            def check() -> str:
                look_for_broker()
                return hosts.check()

            server.run(check=check, connect_within_s=CONNECT_S)
            hosts.wait(STOP_S)
            hosts.check()  # also stopped devices whose process still runs for others
    return server, label


def _check_states(ledger: Ledger, out: Path, federation: str) -> None:
    """Raise UsageError where the state of a device in the ledger is missing: its model would restart untrained."""
    for device in sorted(ledger.enrolled()):
        if not (out / "devices" / device / f"{federation}.db").exists():
            ledger.close()
            raise UsageError(f"{out}: has no state of {device}: the run began in memory, continue without --broker")


@contextmanager
def _broker(name: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield the broker's address and name, and a check that raises RunFailed once it has ended.

    An embedded broker runs within the context; any other one is awaited.
    """
    kind, _, wanted = name.partition(":")
    if kind != "embedded":
        yield name, without_password(name), lambda: None
        return
    with EmbeddedBroker(wanted or "auto") as broker:  # type: ignore[arg-type]  # check_broker has validated the word
        yield broker.url, f"{broker.kind} {broker.version}", broker.check


_Processes: TypeAlias = "dict[tuple[str, ...], subprocess.Popen[bytes]]"
"""The processes by the ids of the devices that share them."""


class DeviceProcesses:
    """The device processes of a run."""

    def __init__(self, processes: _Processes, logs: Path, quorum: int, tell: Callable[[str], None]) -> None:
        self._processes, self._logs, self._quorum, self._tell = processes, logs, quorum, tell
        self._dead: dict[tuple[str, ...], str] = {}

    def check(self) -> str:
        """Report processes that have ended; return why the run cannot continue without them, or empty."""
        for names, process in self._processes.items():
            code = process.poll()
            if code and names not in self._dead:
                ended = f"with code {code}" if code > 0 else f"by signal {-code}"
                self._dead[names] = f"the process of {', '.join(names)} ended {ended}: {self._last_words(names)}"
                self._tell(self._dead[names])
        left = sum(len(names) for names in self._processes) - sum(len(names) for names in self._dead)
        return "; ".join(self._dead.values()) if left < self._quorum else ""

    def _last_words(self, names: tuple[str, ...]) -> str:
        """Return the last line of the log, or all lines in which its devices explain why they stopped."""
        file = self._logs / f"{names[0]}.log"
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        stopped = [line for line in lines if line.startswith(tuple(f"{name}: " for name in names))]
        return "; ".join(dict.fromkeys(stopped or lines[-1:])) or f"nothing in {file}"

    def wait(self, timeout_s: float) -> None:
        """Wait until all processes have stopped; kill those that do not."""
        for process in self._processes.values():
            _end(process, timeout_s)


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _hosts(
    config: Config, fleet: Fleet, url: str, out: Path, tell: Callable[[str], None], *, quarantine: bool
) -> Iterator[DeviceProcesses]:
    folders = {device.kit.id: out / "devices" / device.kit.id for device in fleet.devices}
    for device in fleet.devices:
        device.write(folders[device.kit.id])
    logs = out / "devices"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    password = parse_broker_url(url).password
    if password is not None:
        environment[PASSWORD_VARIABLE] = password  # not on the command line, which every user of the machine can read
    hello = greeting({name for device in fleet.devices for name in device.kit.brought})
    processes: _Processes = {}
    hosts = DeviceProcesses(processes, logs, fleet.federation.policy.quorum, tell)
    try:
        for group in groups(config, fleet):
            command = [sys.executable, "-m", "edge_sim.over_broker.host", "--broker", without_password(url)]
            command += ["--quarantine"] if quarantine else []
            command += ["--federation", fleet.federation.spec.federation, *(str(folders[name]) for name in group)]
            with (logs / f"{group[0]}.log").open("wb") as log:
                process = start_process(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
            processes[group] = process
            if process.stdin is not None:
                with suppress(OSError):  # it ended already: `check` reports why
                    process.stdin.write(hello)
                    process.stdin.flush()
        yield hosts
    finally:
        for process in processes.values():
            if process.stdin is not None:
                with suppress(OSError):  # of a process that ended before it read all
                    process.stdin.close()  # signals the end of the simulation to the host
        hosts.wait(STOP_S)


def groups(config: Config, fleet: Fleet) -> list[tuple[str, ...]]:
    """Return the ids of the devices of each process."""
    heavy = [device.kit.id for device in fleet.devices if device.kit.needs_torch]
    light = [device.kit.id for device in fleet.devices if not device.kit.needs_torch]
    count = config.run.broker_processes
    shared = [tuple(heavy[i::count]) for i in range(count)]
    return [group for group in shared if group] + [(name,) for name in light]
