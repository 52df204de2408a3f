"""examples/lab, from the first command to the finished run: mosquitto with TLS, two boards, and the units of systemd."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from undrawn import undrawn

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lab"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def commands(section: str) -> list[list[str]]:
    """The edge-sdk commands of a section, without `edge-sdk`."""
    text = README.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("edge-sdk ")]


@pytest.mark.costly
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_from_init_to_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("cryptography", "sklearn"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(ROOT / "tests" / "identity")
    import labs

    folder = tmp_path / "lab-example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "state"))
    edge_sdk = folder / "edge-sdk"
    edge_sdk.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edge_sdk.cli "$@"\n')
    edge_sdk.chmod(0o755)
    init, serve = commands("1. The machine of the lab")
    claim, enroll, device = commands("2. Each board")
    named = ["localhost" if each == "lab.local" else each for each in init]
    labs.edge_sdk(folder, *named, "--port", str(labs.free_port()), "--bind", "127.0.0.1")
    environment = {**undrawn(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "EDGE_SDK": str(edge_sdk)}
    with labs.serving(folder, *serve):
        labs.edge_sdk(folder, *claim)
        boards = [each for each in claim if each.startswith("board-")]
        started = [("coordinator", ["./coordinator.sh", "--set", "federation.rounds=4"], {})]
        for board, digits in zip(boards, ("0,1,2,3,4", "5,6,7,8,9"), strict=True):
            labs.edge_sdk(folder, *[each.replace("board-01", f"lab/claims/{board}") for each in enroll])
            started.append(
                (board, [str(edge_sdk), *[each.replace("board-01", board) for each in device]], {"DIGITS": digits})
            )
        running = []
        try:
            for name, command, more in started:
                with (folder / f"{name}.log").open("w") as log:
                    running.append(
                        subprocess.Popen(command, cwd=folder, env={**environment, **more}, stdout=log, stderr=log)
                    )
            codes = [process.wait(250) for process in running]
        finally:
            for process in running:
                process.kill()
    assert codes == [0, 0, 0], [(folder / f"{name}.log").read_text() for name, _, _ in started]
    found = json.loads((folder / "runs" / "digits" / "summary.json").read_text())
    assert found["completed"]
    assert [each["rounds_done"] for each in found["per_device"]] == [4, 4]
    assert found["refused_frames"] == {}


@pytest.mark.parametrize("unit", sorted(EXAMPLE.glob("*.service")), ids=lambda unit: unit.stem)
def test_units_start_what_there_is(unit: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read(unit)
    command = shlex.split(parsed["Service"]["ExecStart"])
    if command[0].endswith("edge-sdk"):
        assert command[1:] == commands("1. The machine of the lab")[1]
    else:
        assert (EXAMPLE / Path(command[0]).name).stat().st_mode & 0o100
    assert parsed["Install"]["WantedBy"] == "multi-user.target"


def test_the_coordinator_resumes_a_run_that_has_begun(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "coordinator.sh", tmp_path)
    echo = {**os.environ, "EDGE_SDK": "echo"}
    said = [subprocess.check_output(["./coordinator.sh"], cwd=tmp_path, env=echo, text=True)]
    (tmp_path / "runs/digits/checkpoint").mkdir(parents=True)
    (tmp_path / "runs/digits/checkpoint/ledger.db").touch()
    said.append(subprocess.check_output(["./coordinator.sh"], cwd=tmp_path, env=echo, text=True))
    assert ["--resume" in line for line in said] == [False, True]
