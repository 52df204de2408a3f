"""`run`: a whole federation on this machine, in virtual time or over a real broker."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator import final_prototypes
from coordinator.config import to_toml
from coordinator.ledger import Ledger
from coordinator.report.files import write_run
from coordinator.report.result import Result
from coordinator.trace import TraceWriter, keeping
from coordinator.watcher import Watcher
from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt_url import parse_broker_url
from edge_sim import config as configs
from edge_sim import engines, feasible
from edge_sim import fleet as fleets
from edge_sim.checkpoint import Checkpoints
from edge_sim.config import Config
from edge_sim.insight import gather
from edge_sim.memory import MIB, peak_bytes
from edge_sim.outcome import NOTHING, result
from edge_sim.virtual import VirtualFleet

WatcherFor = Callable[[str], Watcher | None]
"""A watcher for the part of a run with this label."""


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    broker: str = "memory",
    out: str | Path | None = None,
    resume: bool = False,
    watcher: WatcherFor = lambda _label: None,
    trace: bool = False,
) -> Result:
    """Run a federation and return what came of it.

    config: a TOML file, its tables, or a parsed Config.  broker: `memory` (virtual time, one thread, repeatable bit for
    bit), `embedded`, `embedded:amqtt`, `embedded:mosquitto` or `mqtt://HOST[:PORT]` (real processes, real time).
    out: the run directory, needed for anything but memory.  trace: keep the message log there.
    Raises UsageError, RunFailed, StoreError.
    """
    parsed = _parsed(config)
    check_broker(broker)
    if out is not None:
        check_folder(Path(out), resume=resume)
    parsed, _ = engines.resolved(parsed, Path(out) if out else None)
    fleet = fleets.build(parsed)
    if broker == "memory":
        feasible.check(fleet)
    fleets.export_partition(parsed, fleet)
    begun_s, start_s = time.monotonic(), time.time()
    standalone = _standalone(parsed, watcher) if parsed.run.standalone and parsed.federation.method != "local" else None
    if standalone is not None and out is not None:
        write_run(standalone, to_toml(configs.alone(parsed).tables), Path(out) / "standalone")
    folder = Path(out) if out else Path("runs") / parsed.federation.name
    memory = NOTHING
    with keeping(folder, parsed.tables, parsed.file, wanted=trace, resume=resume) as kept:
        if broker == "memory":
            where = Path(out) if out else None
            virtual, memory = _in_memory(parsed, fleet, where, watcher(""), resume=resume, trace=kept)
            server, label, virtual_s, spent = virtual.server, "memory", virtual.clock.now_s, virtual.spent
            seen = gather(virtual, fleet.dataset)
        else:
            from edge_sim.processes import over_broker  # noqa: PLC0415  # paho only where there is a broker

            server, label = over_broker(parsed, fleet, broker, folder, watcher(""), resume=resume, trace=kept)
            virtual_s, spent, seen = 0.0, {}, final_prototypes.insight(server)
    took = {"wall_s": time.monotonic() - begun_s, "virtual_s": virtual_s, "start_s": start_s}
    found = result(server, fleet, transport=label, time=took, memory=memory, standalone=standalone, spent=spent)
    return replace(found, insight=seen)


def check_broker(broker: str) -> None:
    """Raise UsageError for anything but memory, embedded or an address."""
    known = ("memory", "embedded", "embedded:amqtt", "embedded:mosquitto")
    if broker not in known and not broker.startswith(("mqtt://", "mqtts://")):
        raise UsageError(f"--broker {broker}: expected {', '.join(known)} or mqtt://HOST[:PORT]")
    if broker not in known:
        parse_broker_url(broker)
    if broker == "embedded:mosquitto" and shutil.which("mosquitto") is None:
        raise UsageError(f"--broker {broker}: mosquitto is not on PATH; install it, or use embedded")


def check_folder(out: Path, *, resume: bool) -> None:
    """Make the folder.

    Raises UsageError where it cannot be, where a new run would overwrite an old one, or there is none to go on with.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made a folder ({error.strerror}); give another one") from None
    kept = any((out / name).exists() for name in ("checkpoint", "checkpoint.old"))
    if (kept or (out / "summary.json").exists()) and not resume:
        raise UsageError(f"{out}: holds a run already; add --resume to go on with it, or give --out another folder")
    if resume and not kept:
        raise UsageError(f"{out}: holds nothing to resume; start without --resume")


def unused(folder: Path) -> Path:
    """The folder, or the first of FOLDER-2, FOLDER-3 ... that does not exist yet."""
    candidates = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    return next(path for path in (folder, *itertools.islice(candidates, 10_000)) if not path.exists())


def _standalone(config: Config, watcher: WatcherFor) -> Result:
    alone = configs.alone(config)
    fleet = fleets.build(alone)
    begun_s = time.monotonic()
    virtual, memory = _in_memory(alone, fleet, None, watcher("alone"), resume=False)
    took = {"wall_s": time.monotonic() - begun_s, "virtual_s": virtual.clock.now_s}
    return result(virtual.server, fleet, transport="memory", time=took, memory=memory, spent=virtual.spent)


def _in_memory(
    config: Config,
    fleet: fleets.Fleet,
    out: Path | None,
    watcher: Watcher | None,
    *,
    resume: bool,
    trace: TraceWriter | None = None,
) -> tuple[VirtualFleet, Mapping[str, float]]:
    """The run, over, and what memory it took."""
    keeper = Checkpoints(out / "checkpoint") if out else None
    ledger, stores, world = keeper.load() if keeper and resume else (Ledger(None), {}, None)
    if any(fleets.needs_torch(device.kit.family) for device in fleet.devices):
        from edge_sim.torch_gpu import like_a_cpu  # noqa: PLC0415  # torch only where a device has it
        from edge_sim.torch_threads import one_thread  # noqa: PLC0415  # torch only where a device has it

        one_thread()
        like_a_cpu()
    engine = engines.opened(config.run, fleet)
    virtual = VirtualFleet(
        fleet,
        ledger=ledger,
        stores=stores,
        faults=config.faults,
        faults_seed=config.faults_seed,
        watcher=watcher,
        keeper=keeper,
        engine=engine,
        reduction=engines.reduction(config.run, fleet),
        world=world,
        trace=trace,
    )
    try:
        virtual.run()
    finally:
        engine.close()
        virtual.server.close()
    peak_mib = (peak_bytes() + engine.peak_bytes) / MIB
    return virtual, {"peak_mib": peak_mib} if peak_mib else NOTHING


def _parsed(config: Config | Mapping[str, Any] | str | Path) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return configs.parse({**config}, Path("config"))
    return configs.load(config)
