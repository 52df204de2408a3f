"""benchmarks/coordinator_load/load.py at a small scale: no upload is lost under load, nor when the broker dies and all come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.coordinator_load.load import measure

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on PATH")
@pytest.mark.parametrize(("devices", "restart"), [(40, False), (100, True)], ids=["uploads", "reconnect"])
def test_no_upload_is_lost(tmp_path: Path, devices: int, restart: bool) -> None:
    found = measure(tmp_path, devices=devices, rounds=4, rows=1000 if not restart else 100, restart=restart)
    assert found.lost == 0
    assert len(found.waits_s) == devices * (4 + 1)  # each upload is receipted once, that of the closing exchange too
    assert len(found.back_s) == (devices if restart else 0)
    assert found.upload_bytes > (40_000 if not restart else 4_000)
