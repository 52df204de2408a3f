"""`edge-sdk install --systemd` for a device with an identity folder."""

from __future__ import annotations

import sys
from pathlib import Path

import labs
import pytest

from edge_sdk import cli

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is Linux's")


def test_the_unit_of_an_enrolled_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker is that of the identity, and the device may count its starts in the folder."""
    labs.enrolled(labs.made(tmp_path), "cam-7", "cam-8")
    (tmp_path / "enrolled_app.py").write_text("def make():\n    raise AssertionError\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    install = ["install", "--systemd", "--dry-run", "--unit", "system", "--"]
    options = ["--federation", "cameras", "--app", "enrolled_app:make", "--id", "cam-7"]
    assert cli.main([*install, "--identity", "cam-7", *options]) == 0
    assert f'ReadWritePaths="{tmp_path / "cam-7"}"' in capsys.readouterr().out
    assert cli.main([*install, "--identity", "cam-8", *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--id cam-7: cam-8 is the identity of cam-8" in told
