"""Alerts: the lines, the webhook, and the rules for Prometheus against what is really served."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.address import ListenAddress
from coordinator.config import read_section
from coordinator.record.run_record import RunRecord
from coordinator.results import writers
from coordinator.results.writers.alerts import MOST_WAITING, AlertObserver, AlertsTable, Webhook, fleet_figures
from coordinator.results.writers.tools import PrometheusWriter
from edge_sdk.errors import UsageError

RULES = Path(writers.__file__).parent / "alert-rules.yml"
HARM = {f"device-{number:02}": -0.2 - number / 100 for number in range(4)}
"""Paired differences of a federation that does harm."""


class Watched:
    """An alert observer with a clock and a run of its own."""

    def __init__(self, table: AlertsTable = AlertsTable(), **given: Any) -> None:  # noqa: B008  # frozen
        self.now_s, self.said, self.record = 1e9, list[str](), RunRecord()
        self.observer = AlertObserver(table, "cameras", self.said.append, wall=lambda: self.now_s, **given)
        self.observer.begun(SimpleNamespace(record=self.record, exchange=lambda: SimpleNamespace(here=9)))

    def after(self, passed_s: float) -> list[str]:
        """The lines of a look after so many seconds."""
        self.now_s += passed_s
        self.said.clear()
        self.observer.waited(self.record)
        return list(self.said)

    def end_round(self, contributors: int) -> None:
        self.observer.round_done(SimpleNamespace(round=1, contributors=contributors), 5, self.record)  # type: ignore[arg-type]  # what an observer reads of it


def test_each_alert_is_said_once_and_its_end_once() -> None:
    run = Watched()
    assert run.after(86_000) == []
    assert run.after(1000) == ["alert nobody-trained: no device trained for 24h"]
    assert run.after(1000) == []
    run.end_round(contributors=0)
    assert run.after(1000) == []
    run.end_round(contributors=2)
    assert run.after(1000) == ["alert nobody-trained is over"]
    run.record.declining = {f"cam-{number}": ("temperature", "61 C") for number in range(2)}
    assert run.after(1000) == []
    run.record.declining["cam-9"] = ("throttled", "it slows down")
    assert run.after(1000) == ["alert boards-too-hot: 3 of 9 devices are too hot to train"]
    run.record.control.period, run.record.control.whole.pairs = 5, HARM
    (line,) = run.after(1000)
    assert line.startswith("alert uplift-below-0: the federation does harm: uplift -21.5 points, at most -")


class Hook(BaseHTTPRequestHandler):
    """A webhook that fails as often as a test says, and answers when it may."""

    failures, got = 0, list[dict[str, Any]]()
    may_answer = threading.Event()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        Hook.may_answer.wait(20)
        if Hook.failures:
            Hook.failures -= 1
            self.send_error(503)
            return
        Hook.got.append(json.loads(content))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    Hook.failures, Hook.got = 0, []
    Hook.may_answer.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path"
    server.shutdown()
    server.server_close()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.01)


def test_a_webhook_that_fails_gets_the_alert_again(address: str) -> None:
    hook = Webhook(address, tries_after_s=(0.01, 0.01))
    Hook.failures = 2
    run = Watched(webhook=hook)
    run.after(90_000)
    until(lambda: bool(Hook.got))
    hook.close()
    (found,) = Hook.got
    assert found == {
        "federation": "cameras",
        "alert": "nobody-trained",
        "state": "firing",
        "text": "no device trained for 24h",
        "time_s": 1e9 + 90_000,
    }
    assert hook.faults() == []


def test_a_dead_webhook_holds_nothing_up_and_its_address_stays_secret(address: str) -> None:
    hook = Webhook(address, tries_after_s=(0.01,))
    Hook.failures = 1000
    Hook.may_answer.clear()
    for _ in range(MOST_WAITING + 50):
        hook.post({"alert": "a"})  # returns although no answer comes
    Hook.may_answer.set()
    until(lambda: Hook.failures < 998)
    hook.close()
    faults = hook.faults()
    assert sum("is dropped" in line for line in faults) in (49, 50)  # one may be on its way
    assert "webhook at 127.0.0.1: a message was not taken after 2 tries: it answers 503" in faults
    assert not any("secret" in line for line in faults)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"webhook": "file:///etc/passwd"}, r"f: alerts.webhook: expected an address such as https://HOST/PATH"),
        ({"quiet": "soon"}, r"f: alerts.quiet: .*soon"),
        ({"hot_share": 2}, r"f: alerts.hot_share: .*2"),
        ({"web": "x"}, r"f: alerts.web: unknown key"),
    ],
)
def test_a_mistake_gets_one_line(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_section(AlertsTable, table, "alerts", Path("f")).check("f: alerts")


def test_a_certificate_that_ends_is_said_until_it_is_renewed() -> None:
    end_s: float | None = None
    run = Watched(certificate_end_s=lambda: end_s)
    assert run.after(60) == []
    end_s = run.now_s + 40 * 86_400
    run.end_round(contributors=2)
    assert run.after(60) == []
    run.now_s += 11 * 86_400
    run.end_round(contributors=2)
    assert run.after(0) == ["alert certificate-ends: a certificate of the coordinator's link ends in 29 days: renew it"]
    end_s += 365 * 86_400
    assert run.after(60) == ["alert certificate-ends is over"]


def served(record: RunRecord, *, here: int, idle_s: float, days: float) -> dict[str, float]:
    """What Prometheus would scrape, by metric."""
    writer = PrometheusWriter(ListenAddress("127.0.0.1", 0), {"federation": "cameras", "method": "fedmd"})
    try:
        writer.write(1, {"accuracy/mean": 0.5})
        writer.show(fleet_figures(record, here, idle_s, days))
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        writer.close()
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and line[0] != "#"}


def holds(expression: str, metrics: dict[str, float]) -> bool:
    """Whether a rule of this file holds: comparisons of gauges with one series each, joined by `and`."""
    names = dict.fromkeys(re.findall(r"edge_sdk_\w+", expression))
    if not names.keys() <= metrics.keys():
        return False
    return bool(eval(expression, {"__builtins__": {}}, metrics))  # the rules that this package ships


def test_the_rules_of_prometheus_fire_on_what_is_served() -> None:
    yaml = pytest.importorskip("yaml", reason="no PyYAML here")
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert {name.removeprefix("EdgeSdk") for name in rules} == {
        "NobodyTrained",
        "UpliftBelowZero",
        "BoardsTooHot",
        "CertificateEnds",
    }
    for rule in rules.values():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"]["summary"].startswith("{{ $labels.federation }}: ")
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
    well, ill = RunRecord(), RunRecord()
    well.control.period, ill.control.period = 5, 5
    well.control.whole.pairs = {device: -value for device, value in HARM.items()}
    ill.control.whole.pairs = HARM
    ill.declining = {f"cam-{number}": ("temperature", "61 C") for number in range(3)}
    for record, idle_s, days, expected in ((well, 60.0, 90.0, False), (ill, 90_000.0, 29.0, True)):
        metrics = served(record, here=9, idle_s=idle_s, days=days)
        assert {name: holds(rule["expr"], metrics) for name, rule in rules.items()} == dict.fromkeys(rules, expected)
