"""How many examples property tests try."""

from __future__ import annotations

from hypothesis import settings

SHARE = 3
"""Without --all, when the examples of each run are the same, one in so many is tried."""


def examples(most: int) -> settings:
    """Settings for so many examples with --all, and fewer without."""
    return settings(max_examples=-(-most // SHARE) if settings.default.derandomize else most)
