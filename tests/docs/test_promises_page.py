"""docs/promises.md: every promise has its row, and every test and command that a row names exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [RSVP]\d+ \|", line)
]
PROMISES = [
    *(f"R{n}" for n in range(1, 18)),
    *(f"S{n}" for n in range(1, 15)),
    *(f"V{n}" for n in (1, 2, 3, 4, 5, 6, 8, 9)),
]
"""V7, secure aggregation, is among what is not promised: there is none."""


@functools.cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_one_row() -> None:
    ids = [row[0] for row in ROWS]
    assert len(ids) == len(set(ids))
    assert set(PROMISES) <= set(ids)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_what_there_is(row: list[str]) -> None:
    _, promise, state, tests, figure, command, seed = row
    assert promise
    assert state in ("kept", "partly", "open")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    if state == "open":
        assert tests == "none"
        return
    assert named
    assert figure
    assert seed
    for path, name in named:
        assert name in functions(path), f"{path} has no {name}"
    for path in re.findall(r"(?:tests|benchmarks|scripts)/[\w./-]*\w", command):
        assert (ROOT / path).exists(), path
    assert command
