"""Checks for hyper-parameters: each raises ValueError with the key and what is allowed."""

from __future__ import annotations

import math


def whole(key: str, value: object, low: int, high: int = 2**31 - 1) -> None:
    """An integer in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{key}: expected an integer from {low} to {high}, found {value!r}")


def real(key: str, value: object, low: float, high: float = math.inf) -> None:
    """A finite number in [low, high]; `low` itself is excluded when it is 0 and the number divides."""
    if type(value) not in (int, float) or not math.isfinite(float(value)) or not low <= float(value) <= high:  # type: ignore[arg-type]  # checked just before
        raise ValueError(f"{key}: expected a number from {low} to {high}, found {value!r}")


def choice(key: str, value: object, *allowed: str) -> None:
    """One of a few words."""
    if value not in allowed:
        raise ValueError(f"{key}: expected {' or '.join(allowed)}, found {value!r}")
