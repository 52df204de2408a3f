"""docs/how-to/add-a-method.md, run as it stands: its package is built, installed beside ours, listed, run and checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fleets
import pytest

from coordinator.config import to_toml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/add-a-method.md").read_text(encoding="utf-8")
MOST_LINES = 80
"""The most lines of the page's first part: a method of its own."""
FIRST, SECOND = PAGE.split("\n## ", 1)


def block(language: str, text: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path with the page's packages and their metadata, as setuptools makes it of the page's files."""
    pytest.importorskip("setuptools")
    site = tmp_path_factory.mktemp("site")
    for name, text in (("fedopt", FIRST), ("sureness", SECOND)):
        folder = tmp_path_factory.mktemp(name)
        (folder / f"{name}.py").write_text(block("python", text), encoding="utf-8")
        (folder / "pyproject.toml").write_text(block("toml", text), encoding="utf-8")
        run([sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"], folder, folder)
        shutil.copytree(folder, site, dirs_exist_ok=True)
    return site


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
    assert len(FIRST.splitlines()) < MOST_LINES


def test_methods_lists_them(installed: Path) -> None:
    rows = {row["name"]: row for row in json.loads(edge_sdk(installed, "methods", "--json"))}
    assert rows["sureness"]["encodings"] == {"sureness": ["f32"]}
    assert rows["sureness"]["bytes_per_round"]["up"]["example"] == 4
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
    """The second method passes the whole battery but for what needs made-up payloads of a kind that it does not know."""
    python, *arguments, name = shlex.split(block("sh", FIRST))
    assert (python, name) == ("python", "fedopt")
    said = run([sys.executable, *arguments, f"{name} or sureness", "-vv", "-p", "no:cacheprovider"], installed)
    passed = Counter(re.findall(r"(fedopt|sureness)\S* PASSED", said))
    assert passed["fedopt"] >= 10
    assert passed["sureness"] >= 8


# -- the second part: a term, a request and a payload ---------------------------------------------------------------

PROGRAM = """
import json, sys
import numpy as np
from sureness import EntropyPull
from edge_sdk.data import Preprocess
from edge_sdk.models.base import Batches
from edge_sdk.objectives import Optim, Seen
from edge_sim.models import families

rng = np.random.default_rng(0)
x = rng.normal(size=(32, 1, 8, 8)).astype(np.float32)
work = Batches(inputs=x, labels=None, indices=rng.integers(0, 32, (60, 16)), stochastic=False)
term, found = EntropyPull(target=1.5), {}
for name in sys.argv[1:]:
    model = families.build_model(name, classes=10, raw_shape=(8, 8), preprocess=Preprocess(), seed=0)
    before = term.value(Seen(model.logits(x)))
    model.fit(work, (term,), Optim(learning_rate=0.003))
    found[model.spec.runtime] = [before, term.value(Seen(model.logits(x)))]
print(json.dumps(found))
"""
FLEET = [
    {"count": 2, "model": "mlp"},
    {"count": 2, "model": "softmax"},
    {"count": 2, "model": "onnx-random"},
]


@pytest.mark.torch
def test_every_runtime_minimises_its_term(installed: Path) -> None:
    for module in ("torch", "onnxruntime", "onnx"):
        pytest.importorskip(module)
    found = json.loads(run([sys.executable, "-c", PROGRAM, *(row["model"] for row in FLEET)], installed))
    assert set(found) == {"torch", "numpy", "onnx"}
    for before, after in found.values():
        assert after < 0.1 * before


@pytest.mark.torch
def test_a_fleet_of_all_runtimes_trains_with_it(installed: Path, pictures: Path, tmp_path: Path) -> None:
    for module in ("torch", "onnxruntime", "onnx"):
        pytest.importorskip(module)
    tables = {**fleets.tables(pictures, "sureness", rounds=4), "fleet": FLEET}
    file = tmp_path / "lab.toml"
    file.write_text(to_toml(tables), encoding="utf-8")
    more = ("--processes", "2")  # half of the devices are in another process
    found = json.loads(edge_sdk(installed, "simulate", file, "--out", tmp_path / "run", "--json", *more))
    assert found["completed"]
    assert found["updates"]["accepted"] == 6 * (4 + 1)
    assert found["updates"]["refused"] == 0
    assert {device["runtime"] for device in found["per_device"]} == {"torch", "numpy", "onnx"}
    assert found["encoding"] == {"sureness": "f32"}
