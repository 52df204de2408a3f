"""Doctor on the set-ups of its page: a healthy machine passes, each planted fault is found and has a remedy."""

from __future__ import annotations

import json
import shutil

import pytest

from edge_sdk import cli
from edge_sdk.tools.doctor import machine

pytest.importorskip("trustme")
from benchmarks.reliability import doctor_shown  # needs trustme

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("name", ["healthy", "no_broker", "no_state", "ended_certificate"])
def test_what_is_wrong_is_found_and_nothing_else(tmp_path, monkeypatch, capsys, name):
    if shutil.which("mosquitto") is None:
        pytest.skip("no mosquitto on PATH")
    monkeypatch.setattr(machine, "load_faults", dict)  # its own test loads a runtime
    with getattr(doctor_shown, name)(tmp_path) as set_up:
        assert cli.main(["doctor", "--json", *set_up.options]) == set_up.code
    report = json.loads(capsys.readouterr().out)
    failed = {check["name"]: check["remedy"] for check in report["checks"] if check["level"] == "fail"}
    assert set(failed) == set(set_up.wrong)
    assert all(failed.values())
    assert report["ok"] == (set_up.code == 0)
