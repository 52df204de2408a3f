"""`edge-sdk doctor`: the list of its checks, and their report."""

from __future__ import annotations

import argparse
import importlib.util
import json
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TextIO

from edge_sdk.boards import profiles
from edge_sdk.policy.sensors import LinuxSensors
from edge_sdk.tools.doctor import broker, certificates, disk, machine
from edge_sdk.tools.doctor.broker import BrokerObservation
from edge_sdk.tools.doctor.finding import Check, CheckResult, CheckTarget, Finding, Level, run_checks
from edge_sdk.tools.doctor.machine import Requirement, plugin_checks
from edge_sdk.tools.selftest import open_mqtt, run_selftest
from edge_sdk.transport.mqtt.tls import TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url


def _package(requirement: Requirement, _target: CheckTarget) -> Finding:
    return machine.judge(requirement, machine.installed(requirement.name))


PACKAGES: tuple[Check, ...] = tuple(
    Check(requirement.name, partial(_package, requirement)) for requirement in machine.requirements()
)
MACHINE: tuple[Check, ...] = (
    Check("python", lambda _: machine.judge_python(machine.python_version())),
    Check("board", lambda _: machine.judge_board(profiles.detect())),
    Check("open files", lambda _: machine.judge_files(machine.files_limit())),
    Check("clock", lambda _: machine.judge_clock(time.gmtime().tm_year, machine.is_synchronized())),
    Check("heat", lambda _: machine.check_heat(LinuxSensors(warn=lambda _line: None))),
    Check("runtimes", lambda _: machine.judge_runtimes(machine.load_faults())),
    Check("state folder", lambda p: disk.judge_writable(p.state)),
    Check("state medium", lambda p: disk.judge_medium(p.state, disk.filesystem(p.state, disk.read_mounts()))),
    Check("state sync", lambda p: disk.judge_sync(disk.measure_sync_s(p.state))),
    Check("state speed", lambda p: disk.judge_speed(disk.measure_bytes_per_s(p.state))),
    Check("state room", lambda p: disk.judge_room(disk.free_bytes(p.state))),
    Check("msgpack coder", lambda _: machine.judge_msgpack(machine.msgpack_packer())),
    Check("mosquitto", lambda _: machine.judge_mosquitto(machine.mosquitto_version(), amqtt=machine.has_amqtt())),
)
BROKER = (
    ("broker", broker.judge_link),
    ("broker latency", broker.judge_latency),
    ("broker packet size", broker.judge_size),
    ("broker wildcards", broker.judge_wildcards),
    ("broker retained", broker.judge_retained),
)


def broker_checks(observed: BrokerObservation) -> tuple[Check, ...]:
    """Return the checks of a broker, as far as the self-test came."""
    reachable = BROKER[:1] if observed.reason else BROKER[:2] if observed.echo_s is None else BROKER
    return tuple(Check(name, lambda _, judge=judge: judge(observed)) for name, judge in reachable)  # type: ignore[misc]  # mypy cannot type a bound default


def certificate_checks(target: CheckTarget) -> tuple[Check, ...]:
    """Return the checks of the dates of certificates: of each file that is given, and of a broker with TLS."""
    now = datetime.now(timezone.utc)
    files = (("authority", target.tls.ca), ("own certificate", target.tls.certificate))
    checks = [
        Check(name, lambda _, file=file: certificates.check_file_dates(Path(file), now))  # type: ignore[misc]  # as above
        for name, file in files
        if file is not None
    ]
    address = None if target.broker is None else parse_broker_url(target.broker)
    if address is not None and address.tls:
        checks.append(Check("broker certificate", lambda _: certificates.check_broker_dates(address, now)))
    return tuple(checks)


def run_all_checks(target: CheckTarget) -> tuple[CheckResult, ...]:
    """Run all checks.  Raises UsageError for a broker URL or TLS files that cannot be used."""
    checks = (*MACHINE, *PACKAGES, *plugin_checks(), *certificate_checks(target))
    if target.broker is not None:
        observed = run_selftest(target.broker, target.name, open_link=partial(open_mqtt, tls=target.tls))
        checks += broker_checks(observed)
    return run_checks(checks, target)


def command(args: argparse.Namespace) -> int:
    """Examine and report; the exit code is 1 if a check failed."""
    name = f"doctor-{secrets.token_hex(6)}"
    results = run_all_checks(
        CheckTarget(state=args.state, broker=args.broker, tls=TlsFiles(args.ca, args.cert, args.key), name=name)
    )
    if args.json:
        sys.stdout.write(as_json(results) + "\n")
    else:
        show(results, sys.stdout)
    return 0 if healthy(results) else 1


# -- The report of all checks, for people and as JSON -----------------------------------------------------------------

REPORT_VERSION = 1
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def healthy(results: Sequence[CheckResult]) -> bool:
    """Whether no check failed."""
    return all(each.finding.level is not Level.FAIL for each in results)


def as_json(results: Sequence[CheckResult]) -> str:
    """Return the report as JSON with `version`, `ok` and `checks`: name, level, found and remedy of each."""
    checks = [
        {
            "name": each.name,
            "level": each.finding.level.value,
            "found": each.finding.found,
            "remedy": each.finding.remedy,
        }
        for each in results
    ]
    return json.dumps({"version": REPORT_VERSION, "ok": healthy(results), "checks": checks}, indent=2)


def render(results: Sequence[CheckResult]) -> str:
    """Return the report as plain text: a line for each check, and below a fault what to do."""
    return "\n".join([*(_line(each) for each in results), "", verdict(results)]) + "\n"


def _line(each: CheckResult) -> str:
    line = f"{each.finding.level.value:<5} {each.name:<20} {each.finding.found}"
    return f"{line}\n{'':<27}-> {each.finding.remedy}" if each.finding.remedy else line


def verdict(results: Sequence[CheckResult]) -> str:
    """Return the last line of the report."""
    counts = {level: sum(each.finding.level is level for each in results) for level in Level}
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} of {len(results)} checks failed: repair these first"
    if counts[Level.WARN]:
        return f"works; {counts[Level.WARN]} of {len(results)} checks could be better"
    return f"all {len(results)} checks are fine"


def show(results: Sequence[CheckResult], stream: TextIO) -> None:
    """Write the report, in colour if rich is installed and the stream is a terminal."""
    if importlib.util.find_spec("rich") is None or not stream.isatty():
        stream.write(render(results))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for each in results:
        level = each.finding.level
        console.print(Text.assemble((f"{level.value:<5} ", _COLOURS[level]), f"{each.name:<20} ", each.finding.found))
        if each.finding.remedy:
            console.print(Text(f"{'':<27}-> {each.finding.remedy}", style="dim"))
    console.print(Text(f"\n{verdict(results)}", style="bold"))
