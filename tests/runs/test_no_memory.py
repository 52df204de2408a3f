"""A simulation that finds no memory before or after its rounds, too, tells it in one line."""

from __future__ import annotations

import errno
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import fleets
import pytest

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sdk.errors import RunFailed
from edge_sim.fleet import feasible
from edge_sim.runs import command, runner

ERRORS = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
]


def raising(error: Exception) -> Callable[..., NoReturn]:
    def act(*_: Any) -> NoReturn:
        raise error

    return act


@pytest.fixture
def file(pictures: Path, tmp_path: Path) -> Path:
    found = tmp_path / "federation.toml"
    found.write_text(to_toml(fleets.tables(pictures, "local", rounds=1)), encoding="utf-8")
    return found


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", [(command, "build_fleet"), (feasible, "check_feasible")], ids=lambda where: where[1])
def test_without_memory_for_the_fleet_there_is_one_line(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: tuple[Any, str],
    error: Exception,
) -> None:
    monkeypatch.setattr(*where, raising(error))
    assert cli.main(["simulate", str(file), "--out", str(file.parent / "run")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"edge-sdk: out of memory: simulate fewer devices, .*, then start again: .*", said)


def test_memory_is_given_back_before_the_line_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What looks for a checkpoint takes memory, too."""
    spares: list[mmap.mmap] = []
    take = mmap.mmap

    def taken(descriptor: int, size_bytes: int) -> mmap.mmap:
        spares.append(take(descriptor, size_bytes))
        return spares[-1]

    monkeypatch.setattr(mmap, "mmap", taken)
    monkeypatch.setattr(runner, "how_to_go_on", lambda _: str([spare.closed for spare in spares]))
    with pytest.raises(RunFailed, match=r"then \[True\]$"), runner.as_run_failed(tmp_path):
        raise MemoryError


def test_a_result_without_memory_for_its_pictures_is_a_result(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "draw_run", raising(MemoryError()))
    out = file.parent / "run"
    assert cli.main(["simulate", str(file), "--out", str(out)]) == 0
    assert f"no pictures: out of memory; draw them with: edge-sdk plot {out}\n" in capsys.readouterr().out
