"""examples/custom_method: its package is installed beside ours, its term is checked, and its method runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_method"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with the metadata that `pip install .` makes."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("packages") / "custom_method"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "runs"))
    run(folder, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info")
    return folder


def run(folder: Path, *arguments: str) -> str:
    paths = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_slope_is_that_of_the_value(package: Path) -> None:
    (difference,) = re.findall(r"(\S+)$", run(package, "check.py"))
    assert float(difference) < 1e-4


def test_it_is_listed_and_runs(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rows = {row["name"]: row for row in json.loads(run(package, "-m", "edge_sdk.cli", "methods", "--json"))}
    assert rows["humble"]["parameters"]["beta"] == 0.3
    few = ["--set", "federation.rounds=6", "--out", str(tmp_path / "run"), "--json"]
    found = json.loads(run(package, "-m", "edge_sdk.cli", "simulate", "federation.toml", *few))
    assert found["completed"]
    assert found["global_model"]["accuracy"]["gm"] > 0.6
    assert found["accuracy"]["standalone_mean"] < 0.3
