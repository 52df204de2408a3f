"""The coordinator process of a deployment."""

from __future__ import annotations

import argparse
import dataclasses
import random
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from coordinator.config import (
    Federation,
    Settings,
    federation,
    load_toml,
    public_set,
    public_to_serve,
    read_section,
    read_settings,
    to_toml,
)
from coordinator.federation_table import words_of
from coordinator.lab.broker_settings import one_connection_each
from coordinator.lab.owner import finish_renewal, serve_federation
from coordinator.ledger import CONTENTS, LEDGER, Ledger, bound_spec
from coordinator.record.observer import ObserverGroup, RunObserver, RunView
from coordinator.record.run_record import RunRecord
from coordinator.record.units import of_rounds
from coordinator.results.figures.outcome import device_result, final_prototypes, run_result
from coordinator.results.figures.result import Result
from coordinator.results.page.feed import Feed
from coordinator.results.page.live import PageObserver
from coordinator.results.page.serving import page_feed
from coordinator.results.page.values import finished_state
from coordinator.results.plots.plots import draw_run
from coordinator.results.report.progress import EventLog
from coordinator.results.report.progress_file import NAME as PROGRESS
from coordinator.results.report.progress_file import About, ProgressFile, is_running, read_running
from coordinator.results.report.run_files import holds_finished_run, tell_finished, write_run
from coordinator.results.report.run_table import MOST_ROWS, run_table
from coordinator.results.report.summary import summary, summary_text
from coordinator.results.report.tables import show_table
from coordinator.results.writers.alerts import AlertObserver, AlertsTable
from coordinator.results.writers.opening import (
    NO_WRITERS,
    RunWriters,
    WriterOptions,
    options_of_run,
    run_writers,
    writer_options,
)
from coordinator.serving import restart
from coordinator.serving.equipment import Equipment, load_nets, ready_method
from coordinator.serving.intake.canary import GuardTable, read_canary
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.round_pacing import Timetable
from coordinator.serving.server import Server
from coordinator.systemd import SystemdNotifier
from coordinator.trace import recording_server
from coordinator.trace.log import NAME as TRACE
from coordinator.trace.log import trace_writer
from edge_sdk import toml
from edge_sdk.at_rest.files import make_folder, opened_or_anew
from edge_sdk.durable import refuse_emptied
from edge_sdk.errors import InUse, MissingExtra, StoreError, UsageError
from edge_sdk.methods.contract.brought_code import as_method_error
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.transport.mqtt import send_queue
from edge_sdk.transport.mqtt.tls import NO_FILES, OF_LAB, TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport
from edge_sdk.transport.mqtt.url import PASSWORD_VARIABLE, parse_broker_url, without_password


class SystemdObserver(RunObserver):
    """Passes the events of a run on to systemd."""

    def __init__(self, notifier: SystemdNotifier | None = None) -> None:
        """notifier: by default that of the process."""
        self._notifier = notifier or SystemdNotifier()

    def begun(self, view: RunView) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the coordinator serves."""
        self._notifier.ready()

    def waited(self, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the loop turns."""
        self._notifier.alive()

    def noted(self, message: str) -> None:
        """Show the line in `systemctl status`."""
        self._notifier.status(message)


QUESTION_EXPIRES_S = 2
"""Seconds for which the broker keeps an operator's question while the coordinator is offline."""


def command(args: argparse.Namespace) -> int:
    """Run `edge-sdk coordinator`; returns the exit code."""
    options = writer_options(args)
    with page_feed(args.page) as feed:
        return run_coordinator(
            args.file,
            args.broker,
            args.overrides,
            args.out,
            tls=TlsFiles(args.ca, args.cert, args.key),
            lab=args.lab,
            cloud_safe=args.cloud_safe,
            resume=args.resume,
            quarantine=args.quarantine,
            trace=args.trace,
            as_json=args.json,
            draws=not args.no_plots,
            feed=feed,
            tools=options,
            shown_by=options_of_run(args),
        )


def run_coordinator(
    file: Path,
    broker: str | None,
    overrides: Sequence[str],
    out: Path | None,
    *,
    tls: TlsFiles,
    lab: Path | None,
    cloud_safe: bool,
    resume: bool,
    quarantine: bool,
    trace: bool,
    as_json: bool = False,
    draws: bool = True,
    feed: Feed | None = None,
    tools: WriterOptions = NO_WRITERS,
    shown_by: str = "",
) -> int:
    """Serve a federation until it is over; returns the exit code.  as_json: print the summary instead of the table.

    draws: draw pictures at the end.  lab: the folder of a lab, with keys, certificates, and the broker's address unless
    `broker` is given.  feed: of the live page, if there is one.  tools: outputs for other tools.
    shown_by: the options of the last three as typed, for the command that resumes the run.
    """
    reach = _reach(broker, tls, lab, trace=trace)  # first, to report mistakes before opening anything
    shown = without_password(reach.broker)
    toml.check_writer()
    tables = load_toml(file, overrides)  # unfiltered: with the sections that only a simulation reads
    settings = read_settings(tables, file)
    ready = federation(settings)
    alerts = read_section(AlertsTable, tables.get("alerts", {}), "alerts", file)
    alerts.check(f"{file}: alerts")
    guard = read_section(GuardTable, tables.get("guard", {}), "guard", file)
    nets = load_nets(settings.federation.nets) if guard.canary else []
    canary = read_canary(guard, method_of(ready.spec), file.parent, nets, f"{file}: guard")
    if canary is not None and trace:
        raise UsageError("--trace: a replay has no canary samples; leave out --trace, or guard.canary")
    if trace and ready.policy.paced:
        raise UsageError("--trace: a run whose rounds wait for the time of day cannot be replayed; leave out --trace")
    folder = out or Path("runs") / ready.spec.federation
    spec = ready.spec
    if resume and nothing_left(folder, spec):
        tell_finished(folder, as_json=as_json)
        return 0
    _refuse_second(reach, spec.federation)
    if lab is not None:
        serve_federation(lab, spec.federation)
    transport = _transport(reach, spec.federation, folder, cloud_safe=cloud_safe)
    with (
        reach.serving_alone(spec.federation),
        run_writers(
            tools,
            folder if resume else _made(folder),
            federation=spec.federation,
            method=spec.method,
            seed=spec.seed,
            tables=tables,
        ) as writers,
    ):
        progress = writers.lines("")
        ledger = open_ledger(folder, resume=resume, quarantine=quarantine, tell=progress.noted)
        begun_s, start_s = time.monotonic(), time.time()
        kept_options = f"{' --cloud-safe' * cloud_safe}{' --trace' * trace}{shown_by}"
        again = _resume_command(file, reach, overrides, folder, kept_options)
        with (
            trace_writer(folder, tables, file, wanted=trace, resume=resume) as kept,
            as_method_error(spec.method, f", then continue with: {again}; edge-sdk -v shows the traceback"),
        ):
            server = recording_server.server(
                kept,
                spec=ready.spec,
                policy=dataclasses.replace(ready.policy, open=not ready.roster),
                method=ready_method(ready.spec, _equipment(settings)),
                transport=transport,
                ledger=ledger,
                roster=ready.roster,
                robust=ready.robust,
                timetable=Timetable(pace=ready.pace),
                canary=canary,
                models=None if trace else folder / "models",
                public_server=public_set_server(ready, settings, folder),
                security=reach.security,
                observer=_observers(
                    ready, folder, progress, feed, writers, alerts=alerts, end_s=lambda: transport.certificate_end_s
                ),
            )
            earlier_s = server.record.wall_s
            for warning in server.warnings:
                progress.noted(warning)
            if resume:
                _note_resumption(progress, folder, server.rounds.place.round, spec.rounds, quarantine=quarantine)
            if words := words_of(ready.pace):
                progress.noted(words)
            progress.noted(f"waiting for {ready.policy.quorum} of {ready.policy.expected} devices on {shown}")
            _serve(server, progress, again)
        if server.drained:
            progress.noted(f"an operator stopped the run; continue with: {again}")
            return 0
        used = {"wall_s": earlier_s + time.monotonic() - begun_s, "start_s": start_s}
        result = _result(server, shown, used)
        write_run(result, to_toml(tables), folder)
        if feed is not None:
            feed.publish(finished_state(result, str(folder)))
        _show(result, folder, as_json=as_json)
        if draws:
            _draw(result, folder, progress)
        return 0 if result.completed else 1


def nothing_left(folder: Path, spec: FederationSpec) -> bool:
    """Whether the run in a folder was completed.  Raises UsageError if it has another configuration."""
    try:
        over = holds_finished_run(folder) and not is_running(folder)  # a restarted run still has the old results
    except UsageError:  # unreadable results: resuming writes them again
        return False
    if over:
        restart.check_same_federation(bound_spec(folder / LEDGER), spec)
    return over


def _made(folder: Path) -> Path:
    make_folder(folder, f"--out {folder}")
    return folder


def _serve(server: Server, progress: RunObserver, again: str) -> None:
    """Serve until the run is over.  again: the command that resumes it after an interrupt."""
    try:
        server.run()
    except KeyboardInterrupt:
        progress.noted(f"interrupted; continue with: {again}" if server.numbers else "interrupted before it began")
        raise


def _result(server: Server, broker: str, used: Mapping[str, float]) -> Result:
    """The result of a finished run.  used: its times in seconds."""
    devices = tuple(device_result(server, name) for name in sorted(server.hellos))
    result = run_result(server, devices, broker, used)
    return dataclasses.replace(result, insight=final_prototypes(server))


def _draw(result: Result, folder: Path, progress: RunObserver) -> None:
    try:
        draw_run(result, folder / "plots")
    except MissingExtra as missing:
        progress.noted(f"no plots: {missing}")


def _refuse_second(reach: Reach, federation: str) -> None:
    """Raise UsageError if another coordinator of this federation answers on this broker.

    A lab skips this: connecting with this machine's certificate would take the other coordinator's place.  There a lock
    in the lab's folder keeps out a second coordinator on this machine.
    """
    if reach.security is not None:
        return
    name, seed = f"operator-{secrets.token_hex(6)}", secrets.randbits(32)
    transport = MqttTransport(reach.broker, name, tls=reach.tls, clean=True, seed=seed, expires_s=QUESTION_EXPIRES_S)
    if restart.another_serves(transport, federation, name):
        raise UsageError(
            f"another coordinator of {federation!r} is running on {without_password(reach.broker)}: stop it, or give "
            "this federation another name"
        )


def _transport(reach: Reach, federation: str, folder: Path, *, cloud_safe: bool) -> MqttTransport:
    return MqttTransport(
        reach.broker,
        f"coordinator-{federation}",
        tls=reach.tls,
        fresh=True,
        manual_ack=True,
        seed=random.SystemRandom().getrandbits(32),
        pace=send_queue.cloud_safe() if cloud_safe else None,
        chunk_file=folder / "broker.chunks",
    )


def _note_resumption(progress: RunObserver, folder: Path, done: int, rounds: int, *, quarantine: bool) -> None:
    """Log where a resumed run continues, and which rounds are lost.  done: the rounds that the ledger knows."""
    progress.noted(f"continuing at round {of_rounds(min(done + 1, rounds), rounds)}")
    lost = "" if quarantine else lost_rounds(folder, done)
    if lost:
        progress.noted(lost)


def _resume_command(file: Path, reach: Reach, overrides: Sequence[str], folder: Path, kept_options: str) -> str:
    """Return the command line that resumes this run; it names the password's variable, never the password."""
    options = "".join(f" --set {shlex.quote(each)}" for each in overrides)
    options += f"{reach.options}{kept_options} --out {shlex.quote(str(folder))}"
    secret = f"{PASSWORD_VARIABLE}=... " if without_password(reach.broker) != reach.broker else ""
    return f"{secret}edge-sdk coordinator {shlex.quote(str(file))}{options} --resume"


def _show(result: Result, folder: Path, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(summary_text(summary(result)))
    else:
        show_table(run_table(result, MOST_ROWS), sys.stdout)
        sys.stdout.write(f"\nsummary: {folder / 'summary.json'}\n")


def _equipment(settings: Settings) -> Equipment:
    return Equipment(nets=lambda: load_nets(settings.federation.nets), public=lambda: public_set(settings))


def public_set_server(ready: Federation, settings: Settings, folder: Path) -> PublicSetServer | None:
    """The server of the public set, or None if none is served or the method needs none."""
    if not method_of(ready.spec).needs_public_set:
        return None
    public = public_to_serve(settings)
    return None if public is None else PublicSetServer(public, folder)


@dataclass(frozen=True, slots=True)
class Reach:
    """How a coordinator reaches its broker, and the keys of its lab."""

    broker: str
    tls: TlsFiles
    security: LabSecurity | None
    """The keys of the lab, or None if frames are not signed."""
    options: str
    """These options as typed, for the command that resumes the run."""
    one_connection: bool = False
    """Whether the broker gives each certificate of the lab one connection."""

    def serving_alone(self, federation: str) -> AbstractContextManager[None]:
        """Keep out other coordinators with this lab while this one runs.  Raises UsageError if one runs already."""
        if self.security is None:
            return nullcontext()
        return self.security.serving_alone(federation, one_connection=self.one_connection)


def _reach(broker: str | None, tls: TlsFiles, lab: Path | None, *, trace: bool) -> Reach:
    """Find the broker's address and open the keys of the lab.  Raises UsageError."""
    given = {"--lab": lab, "--ca": tls.ca, "--cert": tls.certificate, "--key": tls.key}
    options = "".join(f" {option} {shlex.quote(str(file))}" for option, file in given.items() if file is not None)
    options += "" if broker is None else f" --broker {shlex.quote(without_password(broker))}"
    if lab is None:
        if broker is None:
            raise UsageError("give --broker URL, or --lab DIR with the folder that edge-sdk lab init made")
        parse_broker_url(broker)
        return Reach(broker, tls, None, options)
    if trace:
        raise UsageError("--trace: a trace of signed frames cannot be replayed; leave out --trace or --lab")
    finish_renewal(lab)
    security = LabSecurity(lab)
    own = security.identity
    url = own.broker if broker is None else broker
    if tls == NO_FILES and parse_broker_url(url).tls:
        tls = TlsFiles(own.authority, own.certificate, own.tls_key, OF_LAB)
    return Reach(url, tls, security, options, url == own.broker and one_connection_each(lab))


def _observers(
    ready: Federation,
    folder: Path,
    progress: RunObserver,
    feed: Feed | None,
    writers: RunWriters,
    *,
    alerts: AlertsTable,
    end_s: Callable[[], float | None],
) -> RunObserver:
    """Return the observers of a run: its log lines, its files, its alerts, and its live page if it has one.

    end_s: returns when the first certificate of the link ends, in seconds since 1970, or None.
    """
    spec = ready.spec
    about = About(
        federation=spec.federation,
        method=spec.method,
        seed=spec.seed,
        rounds=spec.rounds,
        expected=ready.policy.expected,
        class_names=spec.class_names,
    )
    pages = [] if feed is None else [PageObserver(feed, about, str(folder), virtual=False)]
    file = ProgressFile(folder, about, say=progress.noted)
    log = EventLog(folder / "log.jsonl")
    lines = ObserverGroup(progress, log)
    webhook = writers.webhook(alerts.webhook) if alerts.webhook else None
    say = lines.noted
    watch = AlertObserver(alerts, spec.federation, say, show=writers.show, webhook=webhook, certificate_end_s=end_s)
    return ObserverGroup(lines, file, SystemdObserver(), *pages, *writers.observers("", progress), watch)


def open_ledger(folder: Path, *, resume: bool, quarantine: bool, tell: Callable[[str], None]) -> Ledger:
    """The ledger of a run directory; with `quarantine` a damaged one is set aside for a new one.

    tell: is called with a line about that.  Raises UsageError if it would overwrite a run, if another coordinator
    serves it, or if no run can be resumed; Damaged if its digests do not match.
    """
    path = folder / LEDGER
    log = path.with_name(f"{path.name}-wal")
    if resume and not path.exists() and not log.exists():
        raise UsageError(f"{folder}: nothing to resume here (no {LEDGER}); start without --resume")
    if not resume and path.exists():
        if _has_begun(path, folder):
            raise UsageError(
                f"{folder}: already holds a run; add --resume to continue it, or give --out another folder"
            )
        path.unlink()

    def found() -> Ledger:
        refuse_emptied(path, CONTENTS)
        return _opened(path, folder)

    private = (path.parent, folder / TRACE)
    return opened_or_anew(found, path, quarantine=quarantine, tell=tell, private=private)


def lost_rounds(folder: Path, done: int) -> str:
    """A line if the ledger knows fewer rounds than the progress file beside it, or empty.

    done: the rounds that the ledger knows.  The file may be one round ahead, because it is written first.
    """
    try:
        told = read_running(folder, whole=False).get("round", 0)
    except UsageError:  # unreadable: it only informs people, and the next round replaces it
        return ""
    if not isinstance(told, int) or told <= done + 1:
        return ""
    return (
        f"{folder / LEDGER}: knows {done} rounds, {folder / PROGRESS} lists {told}; the rounds between are lost; "
        "if its -wal file was deleted or an old copy put back, stop, put back the newest files, and resume again"
    )


def _has_begun(path: Path, folder: Path) -> bool:
    """Whether a ledger has something to resume: a device has joined, or the ledger cannot be read."""
    try:
        with closing(_opened(path, folder)) as ledger:
            return bool(ledger.enrolled()) or ledger.last_checkpoint() is not None
    except StoreError:
        return True


def _opened(path: Path, folder: Path) -> Ledger:
    """The ledger of a run directory.  Raises UsageError if another coordinator has it open."""
    try:
        return Ledger(path)
    except InUse:
        raise UsageError(
            f"{folder}: a coordinator already serves this run; stop it, or give --out another folder"
        ) from None
