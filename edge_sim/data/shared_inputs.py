"""Preprocessing that many devices of one process share: the public set and the test set are preprocessed once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edge_sdk.arrays import Floats
from edge_sdk.data import Preprocess, Raw

_KEPT = 8
"""Number of results that are kept: the public and the test set for a few kinds of devices, and others in between."""
_known: deque[tuple[Raw, Preprocess, Floats]] = deque(maxlen=_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPreprocess(Preprocess):
    """Returns the same array for the same input array, as long as that is among the last few."""

    def __call__(self, raw: Raw) -> Floats:
        """Implement Preprocess; the result is shared, so nobody may change it."""
        for at, (known, by, found) in enumerate(_known):
            if known is raw and by == self:
                del _known[at]
                _known.append((raw, self, found))
                return found
        found = Preprocess.__call__(self, raw)
        _known.append((raw, self, found))
        return found
