"""Doctor on the set-ups of its page: a healthy machine passes, each planted fault is found and has a remedy."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest

from edge_sdk import cli
from edge_sdk.tools.doctor import runtimes

pytest.importorskip("trustme")

pytestmark = pytest.mark.broker


@pytest.fixture
def shown(monkeypatch):
    """The script that writes the page."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("doctor_shown")


@pytest.mark.parametrize("name", ["healthy", "no_broker", "no_state", "ended_certificate"])
def test_what_is_wrong_is_found_and_nothing_else(shown, tmp_path, monkeypatch, capsys, name):
    if shutil.which("mosquitto") is None:
        pytest.skip("no mosquitto on PATH")
    monkeypatch.setattr(runtimes, "load_faults", dict)  # its own test loads a runtime
    with getattr(shown, name)(tmp_path) as set_up:
        assert cli.main(["doctor", "--json", *set_up.options]) == set_up.code
    report = json.loads(capsys.readouterr().out)
    failed = {check["name"]: check["remedy"] for check in report["checks"] if check["level"] == "fail"}
    assert set(failed) == set(set_up.wrong)
    assert all(failed.values())
    assert report["ok"] == (set_up.code == 0)
