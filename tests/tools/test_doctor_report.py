"""The report of `edge-sdk doctor`, and the command."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from edge_sdk import cli
from edge_sdk.tools.doctor import command, machine
from edge_sdk.tools.doctor.finding import Check, CheckResult, fail, ok, warn

FINE = CheckResult("python", ok("3.12.1"))
COULD_BE_BETTER = CheckResult("mosquitto", warn("2.0.11: old", "install a newer one"))
BAD = CheckResult("state folder", fail("/x: read-only", "give another --state"))


def test_every_line_has_its_level_and_a_fault_its_remedy():
    text = command.render((FINE, COULD_BE_BETTER, BAD))
    lines = text.splitlines()
    assert lines[0].split() == ["ok", "python", "3.12.1"]
    assert lines[1].startswith("warn  mosquitto")
    assert lines[2].split("->")[1].strip() == "install a newer one"
    assert lines[3].startswith("fail  state folder")
    assert lines[-1].startswith("1 of 3 checks failed")


@pytest.mark.parametrize(
    ("examined", "words", "healthy"),
    [
        ((FINE,), "all 1 checks are fine", True),
        ((FINE, COULD_BE_BETTER), "1 of 2 checks could be better", True),
        ((BAD, COULD_BE_BETTER), "1 of 2 checks failed", False),
    ],
)
def test_the_verdict(examined, words, healthy):
    assert words in command.verdict(examined)
    assert command.healthy(examined) is healthy
    assert json.loads(command.as_json(examined))["ok"] is healthy


def test_json():
    whole = json.loads(command.as_json((FINE, BAD)))
    assert whole == {
        "version": 1,
        "ok": False,
        "checks": [
            {"name": "python", "level": "ok", "found": "3.12.1", "remedy": ""},
            {"name": "state folder", "level": "fail", "found": "/x: read-only", "remedy": "give another --state"},
        ],
    }


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self):
        return True


def test_rich_and_plain_say_the_same(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    seen, plain = Terminal(), io.StringIO()
    command.show((FINE, COULD_BE_BETTER, BAD), seen)
    command.show((FINE, COULD_BE_BETTER, BAD), plain)
    assert [line.rstrip() for line in seen.getvalue().splitlines()] == plain.getvalue().splitlines()


def test_without_rich_a_terminal_gets_plain_text(monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _name: None)
    stream = Terminal()
    command.show((FINE,), stream)
    assert stream.getvalue() == command.render((FINE,))


def test_the_command_exits_with_0_where_nothing_failed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "load_faults", dict)
    assert cli.main(["doctor", "--state", str(tmp_path)]) == 0
    assert "python" in capsys.readouterr().out
    assert cli.main(["doctor", "--state", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_and_with_1_where_something_did(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "MACHINE", (Check("disk", lambda _: fail("broken", "mend it")),))
    assert cli.main(["doctor", "--state", str(tmp_path)]) == 1
    assert "-> mend it" in capsys.readouterr().out


def test_and_with_2_for_a_broker_that_is_none(capsys):
    assert cli.main(["doctor", "--broker", "lab:1883"]) == 2
    assert "write mqtt://" in capsys.readouterr().err


PROGRAM = """
import sys
from edge_sdk.cli import main
from edge_sdk.tools.doctor import machine
machine.load_faults = dict  # it loads them in processes of their own
code = main(["doctor", "--json"])
print(sorted({"paho", "torch", "onnxruntime", "matplotlib", "rich", "amqtt"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def test_a_device_is_looked_at_with_the_base_install_alone(tmp_path):
    """Where no broker is asked about, not even paho is loaded."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == "[]\n"
    assert json.loads(done.stdout)["ok"] is True
