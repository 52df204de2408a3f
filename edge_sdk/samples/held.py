"""The samples of a store in memory: their labels over time, which of them keep their room, and what is not saved yet.

A label ends when the sample gets another one or leaves, but a snapshot that has it can still be read: the sample stays
until the snapshot is released.  Times are numbers of snapshots (`tick`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from edge_sdk.samples.reservoir import Reservoir
from edge_sdk.samples.rows import HeldSample, Label


class HeldSamples:
    """Rows of samples with their labels.  The caller holds the store's lock."""

    def __init__(self, reservoir: Reservoir, part_of: Callable[[str], int]) -> None:
        """reservoir: draws which labelled samples stay.  part_of: returns the part of a sample with this id."""
        self.reservoir, self._part_of = reservoir, part_of
        self.rows: dict[str, HeldSample] = {}
        """All samples that are held, or kept for a snapshot, by id."""
        self.waiting: dict[str, HeldSample] = {}
        """Those without a label, oldest first."""
        self.new: dict[int, tuple[str, bytes]] = {}
        """Id and values of the samples that are not saved yet, by key."""
        self.changed: dict[int, HeldSample] = {}
        """The samples whose labels are not saved yet."""
        self.gone: dict[int, None] = {}
        """The keys of samples to be deleted on the disk."""
        self._past: dict[int, HeldSample] = {}
        """The samples with an earlier label, which snapshots may no longer need."""
        self.tick = self.kept = 0
        """The number of the snapshot that is to come, and of the oldest one that can still be read."""
        self.next_key = self.dropped = 0

    @property
    def unsaved(self) -> bool:
        """Whether anything differs from what is saved."""
        return bool(self.new or self.changed or self.gone)

    def saved(self) -> None:
        """Note that everything is saved."""
        self.new, self.changed, self.gone = {}, {}, {}

    @property
    def labels_changed(self) -> bool:
        """Whether any label has come or gone since the last snapshot."""
        return any(self.tick in (each.born, each.died) for row in self.rows.values() for each in row.labels[-2:])

    def present(self, name: str) -> HeldSample | None:
        """Return a sample that has not left; one that only a snapshot keeps has."""
        row = self.rows.get(name)
        return None if row is None or (row.label is None and name not in self.waiting) else row

    def restore(self, rows: Iterable[tuple[int, str, list[Label]]], most_unlabelled: int) -> None:
        """Take the rows of the file, and drop those without room under the present settings."""
        for key, name, labels in rows:
            row = HeldSample(key, name, self._part_of(name), labels)
            self.rows[name] = row
            self.next_key = key + 1
            if not labels:
                self.waiting[name] = row
            elif any(each.died is not None for each in labels):
                self._past[key] = row
        for row in list(self.rows.values()):
            now = row.label
            for name in self.reservoir.add(row.id, now.y) if now is not None else ():
                self._leave(self.rows[name])
        self.drop_oldest_unlabelled(most_unlabelled)
        self.dropped = 0

    def take_in(self, name: str, values: bytes) -> HeldSample:
        """Add a new sample, without a label yet."""
        row = HeldSample(self.next_key, name, self._part_of(name))
        self.next_key += 1
        self.rows[name] = self.waiting[name] = row
        self.new[row.key] = (name, values)
        return row

    def drop_before(self, key: int) -> None:
        """Drop the samples that came before the one with this key: samples are in the order in which they came."""
        for row in list(itertools.takewhile(lambda each: each.key < key, self.rows.values())):
            self.give_up(row)

    def drop_oldest_unlabelled(self, most: int) -> None:
        """Drop the oldest samples without a label, until there are at most this many."""
        while len(self.waiting) > most:
            self.dropped += 1
            self.give_up(next(iter(self.waiting.values())))

    def set_label(self, row: HeldSample, y: int) -> bool:
        """Give a sample its label; returns whether this changed it."""
        now = row.label
        if now is not None:
            if now.y == y:
                return False
            self.reservoir.remove(row.id, now.y)
            self._end_label(row, now)
        self.waiting.pop(row.id, None)
        row.labels.append(Label(y, self.tick))
        self.changed[row.key] = row
        for name in self.reservoir.add(row.id, y):
            self.dropped += 1
            self._leave(self.rows[name])
        return True

    def give_up(self, row: HeldSample) -> None:
        """Remove a sample; its values stay as long as a snapshot needs them."""
        now = row.label
        if now is not None:
            self.reservoir.remove(row.id, now.y)
        self._leave(row)

    def _leave(self, row: HeldSample) -> None:
        """Remove a sample that is not in the reservoir."""
        self.waiting.pop(row.id, None)
        now = row.label
        if now is not None:
            self._end_label(row, now)
        self._drop_if_empty(row)

    def _end_label(self, row: HeldSample, now: Label) -> None:
        """End the present label; delete it if no snapshot has it."""
        self.changed[row.key] = row
        if now.born == self.tick:
            row.labels.remove(now)
        else:
            now.died = self.tick
            self._past[row.key] = row

    def forget_past(self, at_once: int) -> None:
        """Forget labels that snapshots no longer need, with their samples; a few at a time, for a small log."""
        for row in list(self._past.values())[:at_once]:
            del self._past[row.key]
            row.labels[:] = [each for each in row.labels if each.died is None or each.died > self.kept]
            self.changed[row.key] = row
            if any(each.died is not None for each in row.labels):
                self._past[row.key] = row
            self._drop_if_empty(row)

    def _drop_if_empty(self, row: HeldSample) -> None:
        if row.labels or row.id in self.waiting:
            return
        del self.rows[row.id]
        self.changed.pop(row.key, None)
        if self.new.pop(row.key, None) is None:
            self.gone[row.key] = None
