"""Attacks for [[fleet]] rows of tests: `influence_attacks:shout` and others."""

from __future__ import annotations

import numpy as np

from edge_sdk.protocol.transforms import Knowledge
from edge_sim.byzantine import with_floats


def shout(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Send the largest numbers that are legal."""
    return with_floats(knowledge, lambda values: np.sign(values + 1e-9) * 1e6)


def loud_later(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Send numbers 3,000 times as large: far from the others', and in no round out of bounds."""
    return with_floats(knowledge, lambda values: np.clip(3000 * values, -9e3, 9e3))
