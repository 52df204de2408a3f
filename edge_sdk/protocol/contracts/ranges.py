"""Checks for hyper-parameters: each raises ValueError with the key, what is allowed, and what the paper takes."""

from __future__ import annotations


def whole(key: str, value: object, low: int, high: int = 2**31 - 1, *, paper: str = "") -> None:
    """An integer in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{key}: expected an integer from {low} to {high}{_told(paper)}, found {value!r}")


def real(key: str, value: object, low: float, high: float, *, paper: str = "") -> None:
    """A number in [low, high], bounds that are finite, so that NaN and infinity are outside."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{key}: expected a number from {low} to {high}{_told(paper)}, found {value!r}")


def choice(key: str, value: object, *allowed: str) -> None:
    """One of a few words."""
    if value not in allowed:
        raise ValueError(f"{key}: expected {' or '.join(allowed)}, found {value!r}")


def _told(paper: str) -> str:
    return f" (the paper takes {paper})" if paper else ""
