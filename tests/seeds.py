"""Seeds of random runs: some in each run of the tests, three times as many with `scripts/test --all`."""

from __future__ import annotations

import os
from typing import Any

import pytest

SEEDS = int(os.environ.get("EDGE_SEEDS", "30"))
"""How many there are in all, or a share of that; more of them in the environment, with --all, look for rare ends."""


def seeded(count: int, *values: Any, marks: tuple[pytest.MarkDecorator, ...] = ()) -> list[Any]:
    """`count` parameter sets, each of them `values` and a seed, of which the last two thirds are marked long."""
    return [
        pytest.param(*values, seed, marks=(*marks, pytest.mark.long) if 3 * seed >= count else marks)
        for seed in range(count)
    ]
