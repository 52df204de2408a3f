"""Compares the slope of the term with finite differences of its value: check this first for a term of your own."""

from __future__ import annotations

import numpy as np
from humble import ConfidencePenalty

from edge_sdk.objectives import Seen

STEP = 1e-2


def main() -> None:
    """Print the largest difference."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 3)).astype(np.float32)
    term = ConfidencePenalty(weight=0.7)
    slope = term.slope(Seen(logits=logits))
    differences = np.zeros_like(slope)
    for place in np.ndindex(logits.shape):
        moved = np.zeros_like(logits)
        moved[place] = STEP
        up, down = (term.value(Seen(logits=logits + sign * moved)) for sign in (1, -1))
        differences[place] = (up - down) / (2 * STEP)
    print(f"largest difference between slope and finite differences: {np.abs(slope - differences).max():.1e}")


if __name__ == "__main__":
    main()
