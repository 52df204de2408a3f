"""Habits of wording that need two readings stay out of docstrings, comments, messages and pages.

Each pattern names a better form.  Quotes of papers and of other programs may need a word: give such a line an exception.
Of the results, quoted output is left out: it is as it was recorded.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("edge_sdk", "coordinator", "edge_sim", "benchmarks")
RESULTS = "docs/results/"

HABITS = {
    r"; (?:None|none|empty): ": "or None if, or empty without",
    r"\banew\b": "again, new, re-",
    r"\bonce more\b": "again, another",
    r"\b(?:go|goes|went|going) on\b(?! loopback)": "continues",
    r"\bin vain\b": "without success",
    r"\bfor ever\b": "permanently, always",
    r"\bwhoever\b": "everybody who, a device that",
    r"\bthat which\b|\bthose which\b": "name the thing",
    r"\bthere (?:is|are) none\b": "without one, or name what is missing",
    r"\b(?:is|are) no more\b": "no longer",
    r"\bsays so\b|\bsay so\b": "reports it, warns",
    r"\bwhat there is\b": "name the thing",
}


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return (place, words) of every docstring, message and comment of the packages, and of the lines of every page."""
    return (*_of_sources(), *_of_pages())


def _of_sources() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                    yield f"{name}:{node.lineno}", " ".join(node.value.split())
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type == tokenize.COMMENT:
                    yield f"{name}:{token.start[0]}", token.string


def _of_pages() -> Iterator[tuple[str, str]]:
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "examples").glob("*/README.md")),  # no deeper: npm puts packages of others there
    ):
        name, quoted = path.relative_to(ROOT).as_posix(), False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            quoted ^= line.lstrip().startswith("```")
            if not (quoted and name.startswith(RESULTS)):
                yield f"{name}:{number}", line


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_stays_out(habit: str) -> None:
    found = [f"{place}: {words[:160]}" for place, words in texts() if re.search(habit, words)]
    assert not found, f"write {HABITS[habit]}:\n" + "\n".join(found)


def test_patterns_find_what_they_are_for() -> None:
    for line in (
        "the folder; None: memory",
        "the run goes on",
        "it sends the bytes anew",
        "whoever has the key",
        "there is none",
    ):
        assert any(re.search(habit, line) for habit in HABITS), line
