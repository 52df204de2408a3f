"""Guesses at why a sign misses, each with a run or a test that could refute it, and its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Two lines of a setting that a guess is held against."""

    table: str
    setting: str
    better: str
    worse: str
    figure: str


@dataclass(frozen=True)
class Cause:
    """One guess."""

    seen: str
    guess: str
    test: str
    """The command of the run, or the test."""
    result: str
    pairs: tuple[Pair, ...] = ()
    """The differences that the result rests on."""


CAUSES: tuple[Cause, ...] = ()
