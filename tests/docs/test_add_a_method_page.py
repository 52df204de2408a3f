"""docs/how-to/add-a-method.md, run as it stands: its package is built, installed beside ours, listed, run and checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fleets
import pytest

from coordinator.config import to_toml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/add-a-method.md").read_text(encoding="utf-8")
MOST_LINES = 80


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path with the page's package and its metadata, as setuptools makes it of the page's file."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("fedopt")
    (folder / "fedopt.py").write_text(block("python"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(block("toml"), encoding="utf-8")
    run([sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"], folder, folder)
    return folder


def run(command: list[str], site: Path, cwd: Path = ROOT) -> str:
    paths = os.pathsep.join(map(str, filter(None, [site, ROOT, os.environ.get("PYTHONPATH")])))
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def edge_sdk(site: Path, *arguments: object) -> str:
    return run([sys.executable, "-m", "edge_sdk.cli", *map(str, arguments)], site)


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) < MOST_LINES


def test_methods_lists_it(installed: Path) -> None:
    rows = {row["name"]: row for row in json.loads(edge_sdk(installed, "methods", "--json"))}
    assert rows["fedopt"]["shares_weights"]
    assert rows["fedopt"]["parameters"]["server_rate"] == 0.5
    assert "fedavg" in rows


def test_simulate_runs_it(installed: Path, pictures: Path, tmp_path: Path) -> None:
    tables = {**fleets.tables(pictures, "fedopt", rounds=4), "method": {"server_rate": 0.7}}
    file = tmp_path / "lab.toml"
    file.write_text(to_toml(tables), encoding="utf-8")
    found = json.loads(edge_sdk(installed, "simulate", file, "--out", tmp_path / "run", "--json"))
    assert found["completed"]
    assert found["updates"]["accepted"] == 6 * (4 + 1)
    assert found["accuracy"]["mean"] > 0.5


def test_the_battery_takes_it_up(installed: Path) -> None:
    python, *arguments = shlex.split(block("sh"))
    assert python == "python"
    said = run([sys.executable, *arguments, "-vv", "-p", "no:cacheprovider"], installed)
    assert said.count("PASSED") >= 10
