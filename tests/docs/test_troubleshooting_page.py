"""docs/how-to/troubleshooting.md quotes what the program says."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
NOT_OURS = {"error: externally-managed-environment", "requires a different Python"}


def rows(title: str) -> list[str]:
    """The first cells of a section's table."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]


@functools.cache
def said() -> str:
    """Every text of the program; what is filled in is left out."""
    paths = [path for package in ("edge_sdk", "coordinator", "edge_sim") for path in (ROOT / package).rglob("*.py")]
    nodes = (node for path in sorted(paths) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


QUOTED = [
    words
    for title in ("It does not install or start", "It does not connect", "It stops")
    for row in rows(title)
    for words in re.findall(r"`([^`]+)`", row)
    if words not in NOT_OURS
]


@pytest.mark.parametrize("words", QUOTED)
def test_the_program_says_so(words: str) -> None:
    assert words in said()


def test_states_and_reasons_are_those_of_the_program() -> None:
    states = set(re.findall(r"state `(\w+)`", PAGE))
    listed = (ROOT / "docs/how-to/run-a-lab.md").read_text(encoding="utf-8")
    assert states
    assert all(f"`{state}`" in listed for state in states)
    reasons = {word for row in rows("It is refused") for word in re.findall(r"`([a-z-]+)`", row)}
    assert len(reasons) > 5
    assert all(f"| `{reason}` |" in ERRORS for reason in reasons)


def test_warnings_are_those_of_the_program() -> None:
    numbers = set(re.findall(r"\bW(\d+)\b", PAGE))
    assert numbers
    assert all(f"### W{number}\n" in ERRORS for number in numbers)
