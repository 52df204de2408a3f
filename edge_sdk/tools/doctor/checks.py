"""The list of checks, each with a name and a function that returns a finding."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from edge_sdk.boards import profiles
from edge_sdk.policy.linux_sensors import LinuxSensors
from edge_sdk.tools.doctor import broker, certificates, disk, machine, packages, runtimes
from edge_sdk.tools.doctor.broker import BrokerObservation
from edge_sdk.tools.doctor.finding import Check, CheckResult, CheckTarget, Finding, run_checks
from edge_sdk.tools.doctor.packages import Requirement
from edge_sdk.tools.doctor.runtimes import plugin_checks
from edge_sdk.tools.selftest import open_mqtt, run_selftest
from edge_sdk.transport.mqtt.url import parse_broker_url


def _package(requirement: Requirement, _target: CheckTarget) -> Finding:
    return packages.judge(requirement, packages.installed(requirement.name))


PACKAGES: tuple[Check, ...] = tuple(
    Check(requirement.name, partial(_package, requirement)) for requirement in packages.requirements()
)
MACHINE: tuple[Check, ...] = (
    Check("python", lambda _: machine.judge_python(machine.python_version())),
    Check("board", lambda _: machine.judge_board(profiles.detect())),
    Check("open files", lambda _: machine.judge_files(machine.files_limit())),
    Check("clock", lambda _: machine.judge_clock(time.gmtime().tm_year, machine.is_synchronized())),
    Check("heat", lambda _: machine.check_heat(LinuxSensors(warn=lambda _line: None))),
    Check("runtimes", lambda _: runtimes.judge_runtimes(runtimes.load_faults())),
    Check("state folder", lambda p: disk.judge_writable(p.state)),
    Check("state medium", lambda p: disk.judge_medium(p.state, disk.filesystem(p.state, disk.read_mounts()))),
    Check("state sync", lambda p: disk.judge_sync(disk.measure_sync_s(p.state))),
    Check("state speed", lambda p: disk.judge_speed(disk.measure_bytes_per_s(p.state))),
    Check("state room", lambda p: disk.judge_room(disk.free_bytes(p.state))),
    Check("msgpack coder", lambda _: packages.judge_msgpack(packages.msgpack_packer())),
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
