"""The spiral, shortened: both methods train, and the picture is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SPIRAL = Path(__file__).parents[2] / "examples" / "spiral"


@pytest.mark.torch
@pytest.mark.costly
@pytest.mark.processes
def test_it_trains_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(SPIRAL / "spiral.py"), "--rounds", "2", "--points", "120", "--epochs", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "spiral.png")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fedavg, fednh, last = done.stdout.splitlines()
    assert fedavg.startswith("fedavg: ")
    assert fednh.startswith("fednh: ")
    assert last == f"picture: {tmp_path / 'spiral.png'}"
    assert (tmp_path / "spiral.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "spiral.png").stat().st_size > 50_000


def test_the_arms_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest training point alone puts nearly all test points right."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(SPIRAL))
    from spiral import arms  # lies where no package does

    (x, y), (x_test, y_test) = arms(300, seed=0), arms(50, seed=1)
    assert np.bincount(y).tolist() == [300] * 6
    assert np.linalg.norm(x, axis=1).max() == pytest.approx(1)
    nearest = ((x_test[:, None] - x[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (y[nearest] == y_test).mean() > 0.95
