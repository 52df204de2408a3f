"""README.md and the two pages with its commands: the parser reads each, those of a base install run, as does the app."""

from __future__ import annotations

import argparse
import re
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import federated_apps
import numpy as np
import pytest

import edge_sdk
from edge_sdk import cli
from edge_sdk.transport.memory.hub import Hub

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *((ROOT / "docs" / page).read_text("utf-8") for page in ("index.md", "how-to/simulate-a-fleet.md"))]
LINES = [
    line
    for page in PAGES
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("edge-sdk ")
]
COMMANDS = [list(words) for words in dict.fromkeys(tuple(shlex.split(line, comments=True)[1:]) for line in LINES)]
RUN = ("demo", "new", "init", "methods", "doctor")
"""The sub-commands that are run here."""
SIMULATIONS = ("simulate", "compare", "sweep", "replay", "report")


def named(names: tuple[str, ...]) -> list[list[str]]:
    return [words for words in COMMANDS if words[0] in names]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_line_is_read(words: list[str]) -> None:
    assert isinstance(cli.parser().parse_args(words), argparse.Namespace)


@pytest.mark.parametrize("words", named(RUN), ids=" ".join)
def test_what_a_newcomer_types_runs(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) in ((0, 1) if words[0] == "doctor" else (0,))  # a machine may have faults


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_the_simulations_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge_sim").mkdir()
    (tmp_path / "edge_sim" / "demo.toml").write_bytes((ROOT / "edge_sim" / "demo.toml").read_bytes())
    monkeypatch.chdir(tmp_path)
    short = ["--set", "federation.rounds=1"]
    for words in named(SIMULATIONS):
        if "embedded" not in words:  # scripts/demo runs that, over a real broker
            fewer = ["0" if word == "0,1,2" else word for word in words]
            assert cli.main([*fewer, *(short if words[0] in SIMULATIONS[:3] else [])]) == 0
    assert (tmp_path / "runs" / "mine" / "summary.json").exists()


def test_the_lines_of_an_app_show_why_a_device_is_refused(
    serve: Callable[..., threading.Thread],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (lines,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    said = re.search(r"^```\n(device-07: .*)\n```", README, re.MULTILINE)
    hub, stop = Hub(), threading.Event()
    server = federated_apps.federation(hub, devices=1, rounds=1)
    serve(server, lambda: "seen" if stop.is_set() else "")
    monkeypatch.chdir(tmp_path)
    samples = {"x": np.zeros((20, 28, 28), np.float32), "y": np.arange(20) % 10}
    code = lines.replace('"cameras"', '"app"').replace('"mqtt://lab:1883"', "link")
    exec(compile(code, "README.md", "exec"), {**samples, "link": hub.link("device-07")})
    stop.set()
    assert said
    assert capsys.readouterr().out.splitlines() == [said[1]]
    assert issubclass(edge_sdk.Refused, edge_sdk.EdgeError)


def test_every_link_leads_somewhere() -> None:
    pages = [(ROOT, README)]
    pages.append((ROOT / "docs/reference", (ROOT / "docs/reference/what-travels.md").read_text(encoding="utf-8")))
    for folder, text in pages:
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert target.startswith("http") or (folder / target).exists(), target
