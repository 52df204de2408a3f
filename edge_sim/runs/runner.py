"""The function `run`: it runs a whole federation on this machine, in virtual time or over a real broker."""

from __future__ import annotations

import logging
import mmap
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.config import to_toml
from coordinator.ledger import Ledger
from coordinator.record.observer import RunEnded, RunObserver
from coordinator.results.figures.insight import Insight
from coordinator.results.figures.outcome import final_prototypes
from coordinator.results.figures.result import Result
from coordinator.results.report.run_files import holds_finished_run, read_run, write_run
from coordinator.serving.server import Server
from coordinator.trace import recording_server
from coordinator.trace.log import TraceWriter, trace_writer
from edge_sdk.at_rest.files import make_folder, opened_or_anew
from edge_sdk.device.store import Store
from edge_sdk.errors import RunFailed, UsageError, is_out_of_memory
from edge_sdk.methods.contract import brought_code
from edge_sdk.policy.priority import limit_threads
from edge_sdk.protocol.messages import FOREVER
from edge_sdk.transport.mqtt.url import parse_broker_url
from edge_sim.clock.checkpoint import Checkpoints, how_to_go_on
from edge_sim.clock.store_parts import KeptStores
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.engines import choice
from edge_sim.engines.base import NONE
from edge_sim.engines.memory import MIB, freed_memory_kept, peak_bytes, rare_collection
from edge_sim.fleet import feasible
from edge_sim.fleet.fleet import Fleet, build_fleet, export_partition, rebuilt
from edge_sim.runs import run_folder
from edge_sim.runs.run_inputs import changed_inputs, check_same_inputs, remark, run_inputs, unused_settings
from edge_sim.runs.sample_alone import trained_sample
from edge_sim.runs.simulation_result import NOTHING, model_insight, sample_line, simulation_result
from edge_sim.shards.sharded_fleet import ShardedFleet, divided_run
from edge_sim.shards.shards import why_together

log = logging.getLogger(__name__)

_SPARE_BYTES = 4 * MIB
"""Address space, mapped but never written; released on failure, it leaves room to report the error."""

KeptState: TypeAlias = tuple[Ledger, Mapping[str, Store], dict[str, Any] | None]
"""The ledger, the stores of devices and the state of a simulation, or None for a new run."""
VirtualRun: TypeAlias = VirtualFleet | ShardedFleet
"""A run in virtual time."""
WhenFinished: TypeAlias = Callable[[VirtualRun], None]
ObserverFor = Callable[[str], RunObserver | None]
"""Makes an observer for the part of a run with this label."""


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    broker: str = "memory",
    out: str | Path | None = None,
    resume: bool = False,
    quarantine: bool = False,
    observer: ObserverFor = lambda _label: None,
    trace: bool = False,
    finished: WhenFinished = lambda _virtual: None,
) -> Result:
    """Run a federation and return its result.

    config: a TOML file, its tables, or a parsed Config.
    broker: `memory` (virtual time, one thread, bit-for-bit reproducible), or real processes in real time: `embedded`,
    `embedded:amqtt`, `embedded:mosquitto` or `mqtt://HOST[:PORT]`.
    out: the run directory, needed for every broker except memory.  No other run may use it at the same time.
    resume: whether to continue the run in that directory; a finished one is only read.
    quarantine: whether to set damaged state aside.  If it is the run's own state, the run restarts.
    trace: whether to keep the message log in the run directory.
    finished: called at the end of a run in memory with its fleet, whose models are trained.

    Raises UsageError, RunFailed or StoreError.
    """
    parsed = _parsed(config)
    if out is None:
        return run_in(None, parsed, broker=broker, observer=observer, trace=trace, finished=finished)
    folder = Path(out)
    if resume and run_folder.is_over(folder, parsed):
        return read_run(folder)
    with run_folder.claimed(folder):
        return run_in(
            folder,
            parsed,
            broker=broker,
            resume=resume,
            quarantine=quarantine,
            observer=observer,
            trace=trace,
            finished=finished,
        )


def run_in(
    out: Path | None,
    parsed: Config,
    *,
    broker: str = "memory",
    resume: bool = False,
    quarantine: bool = False,
    observer: ObserverFor = lambda _label: None,
    trace: bool = False,
    fleet: Fleet | None = None,
    finished: WhenFinished = lambda _virtual: None,
) -> Result:
    """Run a federation in a folder that the caller has claimed; for a resumed run it holds the state.

    fleet: built from `parsed`, if the caller has it already.  finished: see `run`.
    """
    with as_run_failed(out), rare_collection(), freed_memory_kept():
        check_broker(broker)
        if out is not None and not resume:
            run_folder.check_new(out)
        fleet = fleet or build_fleet(parsed)
        if out is not None and resume:
            run_folder.check_same_samples(out, run_folder.kept_samples(out), fleet.dataset.sha256)
            check_same_inputs(out, run_folder.kept_inputs(out), run_inputs(parsed, fleet))
        parsed, _ = choice.resolve_run(parsed, fleet, out)
        return _run_in(
            out,
            parsed,
            fleet,
            broker,
            resume=resume,
            quarantine=quarantine,
            observer=observer,
            trace=trace,
            finished=finished,
        )


def _run_in(
    out: Path | None,
    parsed: Config,
    fleet: Fleet,
    broker: str,
    *,
    resume: bool,
    quarantine: bool,
    observer: ObserverFor,
    trace: bool,
    finished: WhenFinished,
) -> Result:
    if trace and fleet.federation.policy.paced:
        raise UsageError("--trace: a run whose rounds wait for the time of day cannot be replayed; leave out --trace")
    if broker != "memory" and fleet.measured:
        raise UsageError("run.measured: a sample is measured in virtual time alone (--broker memory); leave it out")
    if broker == "memory":
        feasible.check_feasible(fleet, parsed.run.stacked or (), parsed.run.memory_bytes, out)
    if out is not None:
        run_folder.keep_settings(out, parsed)
        run_folder.keep_samples(out, fleet.dataset.sha256)
        run_folder.keep_inputs(out, run_inputs(parsed, fleet))
    export_partition(parsed, fleet)
    begun_s, start_s = time.monotonic(), time.time()
    wanted = trains_alone(parsed, sampled=bool(fleet.measured))
    public = 0 if fleet.dataset.public is None else len(fleet.dataset.public.samples)
    alone = settings.alone(
        replace(parsed, data=replace(parsed.data, public=public)),  # the devices alone hold the same samples
        every_round=parsed.run.standalone == "every-round",
    )
    alone_in = out / "standalone" if out else None
    standalone = _standalone(alone, fleet, alone_in, observer) if wanted else None
    folder = out or Path("runs") / parsed.federation.name
    memory = NOTHING
    virtual_time, ended = broker == "memory", ""
    unseen: tuple[str, ...] = ()
    with trace_writer(folder, parsed.tables, parsed.file, wanted=trace, resume=resume, virtual=virtual_time) as kept:
        if virtual_time:
            seen = Insight()

            def look(virtual: VirtualRun) -> None:
                nonlocal seen, unseen
                with brought_code.as_model_error(fleet.brought):
                    seen, unseen = model_insight(virtual.server, virtual.models(), fleet.dataset)
                finished(virtual)

            virtual, memory, ended = _in_memory(
                parsed, fleet, out, observer(""), resume=resume, quarantine=quarantine, trace=kept, look=look
            )
            server, label, virtual_s, spent = virtual.server, "memory", virtual.virtual_s, virtual.spent
            resumed, untraced = virtual.resumed, virtual.untraced
        else:
            from edge_sim.over_broker.processes import over_broker  # paho is imported only for a broker

            server, label = over_broker(
                parsed, fleet, broker, folder, observer(""), resume=resume, quarantine=quarantine, trace=kept
            )
            virtual_s, spent, seen = 0.0, {}, final_prototypes(server)
            resumed, untraced = NOTHING, NONE
    took = {"wall_s": time.monotonic() - begun_s, "virtual_s": virtual_s, "start_s": start_s}
    found = simulation_result(
        server, fleet, transport=label, time=took, memory=memory, resumed=resumed, standalone=standalone, spent=spent
    )
    left = (*remark(server, virtual_s), *unused_settings(parsed, virtual_s)) if virtual_time else ()
    slow = [f"model {name!r} trained without a trace, more slowly: {why}" for name, why in sorted(untraced)]
    public_taken = fleet.dataset.public_taken if parsed.data.public is None else ""  # else the user knows it
    remarks = (*parsed.remarks, *left, *slow, *unseen, public_taken, fleet.dataset.remark, sample_line(fleet))
    warnings = (*found.warnings, *filter(None, remarks))
    return replace(found, insight=seen, warnings=warnings, reason=ended or found.reason)


def check_taken_part(result: Result) -> None:
    """Raise RunFailed, with the refusals, if no device could take part, or none sent an upload."""
    if result.completed or any(device.joined and device.rounds_done for device in result.devices):
        return
    words = dict.fromkeys(f"{each['message']}; {each['remedy']}" for each in result.refused_devices)
    why = " | ".join([*words][:3]) or result.reason or "none sent a message"
    count, of = len(result.refused_devices), len(result.devices)
    refused = f"{count} {'was' if count == 1 else 'were'} refused: " if count else ""
    if 0 < count < of:  # the others joined, and waited for more devices than were left
        raise RunFailed(f"no device of {of} took part, because {refused}{why}")
    raise RunFailed(f"no device of {of} could take part: {refused}{why}")


def trains_alone(config: Config, *, sampled: bool) -> bool:
    """Whether devices train alone first: not a sample in rounds without an end, whose number only the end tells.

    sampled: whether a sample of the devices is measured.
    """
    endless = sampled and config.federation.rounds == FOREVER
    return config.run.standalone != "off" and config.federation.method != "local" and not endless


def check_broker(broker: str) -> None:
    """Raise UsageError unless the broker is memory, embedded or an address."""
    known = ("memory", "embedded", "embedded:amqtt", "embedded:mosquitto")
    if broker not in known and not broker.startswith(("mqtt://", "mqtts://")):
        raise UsageError(f"--broker {broker}: expected {', '.join(known)} or mqtt://HOST[:PORT]")
    if broker not in known:
        parse_broker_url(broker)
    if broker == "embedded:mosquitto" and shutil.which("mosquitto") is None:
        raise UsageError(f"--broker {broker}: mosquitto is not on PATH; install it, or use embedded")


def _standalone(alone: Config, fleet: Fleet, folder: Path | None, observer: ObserverFor) -> Result:
    """Return the result of the devices alone; read from the folder if an earlier part of this run left it there.

    fleet: the fleet of the federation, whose data the devices alone use, too.
    """
    if folder is None:
        return _alone(alone, fleet, observer)
    settings, inputs = to_toml(alone.tables), run_inputs(alone, fleet)
    if holds_finished_run(folder) and run_folder.kept_settings(folder) == settings:
        kept = read_run(folder)
        same_samples = kept.data.get("sha256", fleet.dataset.sha256) == fleet.dataset.sha256
        if same_samples and not changed_inputs(run_folder.kept_inputs(folder), inputs):
            return kept
    found = _alone(alone, fleet, observer)
    make_folder(folder, f"--out {folder}")
    run_folder.keep_inputs(folder, inputs)
    write_run(found, settings, folder)
    return found


def _alone(alone: Config, federated: Fleet, observer: ObserverFor) -> Result:
    if federated.measured:
        return _sample_alone(alone, federated, observer(""))
    fleet = rebuilt(federated, alone)
    begun_s = time.monotonic()
    virtual, memory, _ = _in_memory(alone, fleet, None, observer("alone"), resume=False)
    took = {"wall_s": time.monotonic() - begun_s, "virtual_s": virtual.clock.now_s}
    return simulation_result(virtual.server, fleet, transport="memory", time=took, memory=memory, spent=virtual.spent)


def _sample_alone(alone: Config, federated: Fleet, observer: RunObserver | None) -> Result:
    sample = rebuilt(federated, alone, tuple(federated.measured_numbers.values()))
    _compute_exactly(sample)
    with brought_code.as_model_error(sample.brought):
        return trained_sample(sample, alone.ids, observer.noted if observer is not None else log.info)


def _compute_exactly(fleet: Fleet) -> None:
    """Have numpy and torch compute the same bits on any number of cores."""
    if any(device.kit.needs_torch for device in fleet.devices):
        from edge_sim.engines.torch_threads import use_exact_arithmetic  # torch is imported only if a device needs it

        use_exact_arithmetic()
    limit_threads(1)  # of numpy's library, too: with several threads sums have another order


def _in_memory(
    config: Config,
    fleet: Fleet,
    out: Path | None,
    observer: RunObserver | None,
    *,
    resume: bool,
    quarantine: bool = False,
    trace: TraceWriter | None = None,
    look: WhenFinished = lambda _virtual: None,
) -> tuple[VirtualRun, Mapping[str, float], str]:
    """Run the federation in virtual time; return its final fleet and the memory used.

    look: is called with the fleet at the end, while its models exist.  The text is why an observer ended the
    run early, or empty.
    """
    checkpoints = Checkpoints(out / "checkpoint") if out else None
    tell = observer.noted if observer is not None else log.warning
    ledger, stores, state = (
        _kept(checkpoints, quarantine=quarantine, tell=tell) if checkpoints and resume else (Ledger(None), {}, None)
    )
    if state is not None and fleet.federation.policy.buffer:
        tell(
            "resumed with a buffer: devices that computed begin again with the newest version, so this run differs "
            "from one without the interrupt"
        )
    _compute_exactly(fleet)
    new_server = partial(recording_server.server, trace)
    with brought_code.as_method_error(config.federation.method):
        virtual = _opened(config, fleet, (ledger, stores, state), observer, checkpoints, new_server=new_server)
    if state is not None:
        of = "" if config.federation.rounds == FOREVER else f" of {config.federation.rounds}"
        tell(f"resumed after round {virtual.server.record.done}{of}")
    if isinstance(stores, KeptStores):
        stores.close()  # before the next checkpoint moves its files
    ended = ""
    try:
        try:
            with brought_code.as_method_error(config.federation.method), brought_code.as_model_error(fleet.brought):
                virtual.run()  # inside, because the coordinator may hold nets
        except RunEnded as why:
            ended = str(why)
        own_bytes = peak_bytes()
        look(virtual)
    finally:
        virtual.close()
    peak_mib = (own_bytes + virtual.peak_bytes) / MIB
    return virtual, {"peak_mib": peak_mib} if peak_mib else NOTHING, ended


def _opened(
    config: Config,
    fleet: Fleet,
    kept: KeptState,
    observer: RunObserver | None,
    checkpoints: Checkpoints | None,
    *,
    new_server: Callable[..., Server],
) -> VirtualRun:
    """Return the fleet of a run, divided among the processes that its table asks for, if possible."""
    ledger, stores, state = kept
    if not config.run.one_process:
        why = why_together(fleet, config.faults, resumed=state is not None)
        if not why:
            return divided_run(
                config, fleet, ledger=ledger, observer=observer, checkpoints=checkpoints, new_server=new_server
            )
        line = f"run.processes: this run has one process: {why}"
        (observer.noted if observer is not None else log.warning)(line)
    return VirtualFleet(
        fleet,
        ledger=ledger,
        stores=stores,
        faults=config.faults,
        faults_seed=config.faults_seed,
        observer=observer,
        checkpoints=checkpoints,
        engine=choice.open_engine(config.run, fleet.devices, fleet.federation.spec),
        state=state,
        new_server=new_server,
        memory_bytes=config.run.memory_bytes,
    )


def _kept(checkpoints: Checkpoints, *, quarantine: bool, tell: Callable[[str], None]) -> KeptState:
    """Return the contents of the last checkpoint; with `quarantine` a damaged one is set aside for a new run."""

    def load() -> KeptState:
        return checkpoints.load() if checkpoints.folder.exists() else (Ledger(None), {}, None)

    return opened_or_anew(load, checkpoints.folder, quarantine=quarantine, tell=tell)


def _parsed(config: Config | Mapping[str, Any] | str | Path) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return settings.parse({**config}, Path("config"))
    return settings.load_config(config)


@contextmanager
def as_run_failed(out: Path | None) -> Iterator[None]:
    """Raise RunFailed with advice instead of an out-of-memory error.

    out: the run directory, if there is one.
    """
    try:
        with mmap.mmap(-1, _SPARE_BYTES):
            yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        remedy = "simulate fewer devices, in fewer processes ([run] processes) or with smaller mini-batches"
        on = how_to_go_on(Checkpoints(out / "checkpoint") if out else None)
        raise RunFailed(f"out of memory: {remedy}, or give it more, then {on}") from None
