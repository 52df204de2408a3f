"""Chooses the labelled samples to keep when there is no room for all: an equal share for each class, without a memory.

Each sample has a fixed rank, a hash.  A class keeps its samples of the lowest ranks, which is a uniform draw of all
that came, in any order.  Only the samples need be stored to continue after a restart.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping
from numbers import Real

from edge_sdk.errors import UsageError


def rank(seed: int, sample: str) -> int:
    """Return a sample's rank, 64 bits that look random: the same sample and seed always have the same rank."""
    return _hash(f"rank {seed} {sample}")


def part_of(seed: int, sample: str, split: tuple[float, float, float]) -> int:
    """Assign a sample to 0 train, 1 validation or 2 test, with the shares `split`, deterministically."""
    at = _hash(f"part {seed} {sample}") / 2**64
    return 0 if at < split[0] else 1 if at < split[0] + split[1] else 2


def checked_split(split: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the shares of train, validation and test.  Raises UsageError if they are not shares."""
    shares = isinstance(split, tuple | list) and len(split) == 3 and all(isinstance(each, Real) for each in split)
    if not (shares and split[0] > 0 and min(split) >= 0 and abs(sum(split) - 1) <= 1e-9):  # false with NaN
        raise UsageError(f"split {split!r}: expected the shares of train, validation and test, with the sum 1")
    return split[0], split[1], split[2]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Reservoir:
    """At most `room` samples.

    While it is full, the class with the most samples drops the one of highest rank.  So each class keeps all of its
    samples or an equal share, and a frequent class never pushes out a rare one.
    """

    def __init__(self, room: int, seed: int) -> None:
        self.room, self._seed = room, seed
        self._classes: dict[int, dict[str, int]] = {}
        """The samples of each class, and their ranks."""
        self._highest: dict[int, list[tuple[int, str]]] = {}
        """The same by class as heaps with the highest rank first; samples that were removed since are skipped."""

    def __len__(self) -> int:
        return sum(len(held) for held in self._classes.values())

    @property
    def counts(self) -> Mapping[int, int]:
        """The number of samples of each class that is present."""
        return {label: len(held) for label, held in self._classes.items() if held}

    def add(self, sample: str, label: int) -> list[str]:
        """Add a sample that is not held; returns the dropped samples, perhaps the sample itself."""
        held = self._classes.setdefault(label, {})
        held[sample] = rank(self._seed, sample)
        heapq.heappush(self._highest.setdefault(label, []), (-held[sample], sample))
        return self.shrink()

    def remove(self, sample: str, label: int) -> None:
        """Remove a sample that is held."""
        held, heap = self._classes[label], self._highest[label]
        del held[sample]
        if len(heap) > 2 * len(held) + 16:  # samples that were removed over the years
            heap[:] = [(-rank_, each) for each, rank_ in held.items()]
            heapq.heapify(heap)

    def shrink(self) -> list[str]:
        """Drop samples until the rest has room; returns the dropped ones."""
        gone = []
        while len(self) > self.room:
            label = max(self._classes, key=lambda each: (len(self._classes[each]), each))
            held, heap = self._classes[label], self._highest[label]
            while (sample := heapq.heappop(heap)[1]) not in held:
                pass
            del held[sample]
            gone.append(sample)
        return gone
