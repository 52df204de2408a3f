"""The store of a device's samples.  An app adds samples as they arrive; each round trains on a snapshot of them."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edge_sdk.at_rest.files import opened_or_anew
from edge_sdk.class_names import checked_names
from edge_sdk.data import LocalData, Samples, is_whole
from edge_sdk.durable import is_emptied
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, check_layout
from edge_sdk.sample_kind import arguments, as_held, declared_kind
from edge_sdk.samples.age import SampleAges
from edge_sdk.samples.held import HeldSamples
from edge_sdk.samples.reservoir import Reservoir, checked_split, part_of
from edge_sdk.samples.rows import Form, HeldSample, RowFile, checked_sample, class_id, room_of_sample, sample_id

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
LEAST_BYTES = _MIB
"""The minimum of `max_bytes`: less would leave no room beside the write-ahead log."""
_HELD_BACK = 4
"""While the disk fails, `unsaved` times this number of samples wait in memory; further ones are dropped."""
_READ_AT_ONCE = 64
"""The number of samples to read before another thread's `observe` may continue."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The content of the store at one moment.  It can be read again until a newer snapshot is released."""

    id: bytes
    data: LocalData
    lost: tuple[int, ...] = ()
    """The classes that had training samples in the previous snapshot, but not in this one."""


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """The number of samples in a store now."""

    train: tuple[int, ...]
    """The number of training samples of each class: (k,)."""
    validation: tuple[int, ...]
    test: tuple[int, ...]
    unlabelled: int
    dropped: int
    """Samples that had no room or were evicted, since the store was opened."""
    unsaved: int
    """The number of changes that a power cut would lose now."""


class SampleStore:
    """A device's samples on its disk, added one by one.  An Agent takes it instead of LocalData.

    path: the file, or None to hold the samples in memory.
    classes: the number of the federation's classes, or their names in order.  With names, `observe` and `label` accept
    names, too.

    max_samples: the maximum number of labelled samples.  Beyond it, each class keeps an equal share, drawn uniformly
    from all its samples so far.
    max_unlabelled: the maximum number of samples that wait for their label.  Beyond it, the oldest are dropped.
    max_bytes: the maximum bytes of the file and its log.
    max_age: older samples leave the store before the next round.  Ages are exact to a hundredth of `max_age`.

    split: the shares of train, validation and test.  A hash of its values assigns each sample permanently to one part.
    seed: the seed of that hash and of the draw.
    test: labelled samples of all classes that the federation provides beside the store's own.  They are not stored.
    shape, dtype: those of one sample, uint8 or float32.  By default those of the first sample.
    layout: "NCHW" or "NHWC", the order of the axes of colour pictures.  By default inferred from their sizes.
    kind, vocabulary: as of Samples.

    unsaved: the maximum number of changes that a power cut can lose.
    save_every_s: changes further apart than this are saved one by one, others together.  `flush` saves at once.
    quarantine: whether to set a damaged file aside and begin a new one.  Otherwise Damaged is raised.
    clock: returns the time in seconds.
    wall: returns seconds since 1970.

    All methods may be called from any thread.

    Raises UsageError for settings that are out of range, or differ from those that the file was made with.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        classes: int | Sequence[str],
        max_samples: int = 5000,
        max_unlabelled: int = 1000,
        max_bytes: int = 256 * _MIB,
        max_age: timedelta | None = None,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        test: Samples | None = None,
        seed: int = 0,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        layout: PictureLayout | None = None,
        kind: str | None = None,
        vocabulary: int | None = None,
        unsaved: int = 32,
        save_every_s: float = 10.0,
        quarantine: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        split = checked_split(split)
        self.class_names: tuple[str, ...] = ()
        if isinstance(classes, Sequence):
            self.class_names = checked_names(classes, where="classes")
            classes = len(self.class_names)
        _check_numbers(classes, max_samples, max_unlabelled, max_bytes, unsaved)
        check_layout(layout, "SampleStore")
        if not isinstance(test, Samples | None):
            raise UsageError(f"test: found {type(test).__name__}: give edge_sdk.Samples(x, y) of numpy arrays")
        self._test, self._kind = test, declared_kind(kind, vocabulary, "SampleStore")
        self.path, self.classes, self._layout = _checked_path(path), int(classes), layout
        self._split, self._seed, self._unsaved, self._save_every_s = split, seed, unsaved, save_every_s
        self._max_samples, self._max_unlabelled, self._max_bytes = max_samples, max_unlabelled, max_bytes
        self._log_bytes = max(64 * 1024, min(_MIB, max_bytes // 16))
        self._clock, self._lock, self._process = clock, threading.RLock(), os.getpid()
        self._saved_s, self._refused_s = -math.inf, -math.inf
        self._samples = HeldSamples(Reservoir(max_samples, seed), partial(part_of, seed, split=split))
        self._changes = 0
        self._closed = False
        self._file = self._opened(quarantine=quarantine)
        try:
            self._file.bound(max_bytes - 2 * self._log_bytes, self._log_bytes)
            known = self._file.settings()
            self._check_same(known)
            self._identity = known.get("store") or secrets.token_hex(8)
            self._samples.tick, self._samples.kept = int(known.get("tick", 0)), int(known.get("kept", 0))
            self._held = [int(each) for each in known.get("held", ())]
            self._form: Form | None = None
            if known.get("form"):
                self._take_form(Form(tuple(known["form"][0]), known["form"][1]))
            if shape is not None or dtype is not None:
                self._declare(shape, dtype)
            self._samples.restore(self._file.rows(), self._max_unlabelled)
            self._ages = self._ages_of(max_age, wall, known.get("ages"))
        except BaseException:
            self._file.close()
            raise

    # -- for the app ------------------------------------------------------------------------------------------------

    def observe(self, x: Any, y: int | np.integer[Any] | str | None = None) -> str:
        """Add a sample, with or without its label, and return its id.

        x: (d,), (h, w), (h, w, c), (c, h, w), (t, d) or ids (t,), as an array, a tensor, a Pillow picture, or lists of
        numbers.
        y: the class, or None if it is not known yet.

        Equal values are one sample: observing them again returns the same id, and the newest label counts.

        Raises UsageError for a sample of another shape or type than the first, for NaN, and for an unknown class.  If
        the disk fails, `observe` raises nothing: the sample waits in memory, and `flush` raises StoreError.
        """
        raw, line = checked_sample(x, self._layout, self._form, self._kind)
        label = None if y is None else class_id(y, self.classes, self.class_names)
        values = raw.tobytes()
        name = sample_id(values)
        self._check_process()
        with self._lock:
            self._check_open()
            if line and self._form is None:
                log.warning("%s: %s", self.path or "SampleStore", line)
            self._take_form(Form(raw.shape, str(raw.dtype)))
            row = self._samples.rows.get(name)
            is_new = row is None
            if row is None:
                row = self._take_in(name, values)
            changed = row is not None and label is not None and self._samples.set_label(row, label)
            self._samples.drop_oldest_unlabelled(self._max_unlabelled)
            self._note_change(changed=name in self._samples.rows if is_new else changed)
        return name

    def label(self, sample: str, y: int | np.integer[Any] | str) -> bool:
        """Give a sample its label, or replace its label.  Returns False if the store does not hold the sample.

        sample: the id that `observe` returned.

        Raises UsageError for an unknown class.
        """
        label = class_id(y, self.classes, self.class_names)
        self._check_process()
        with self._lock:
            self._check_open()
            row = self._samples.present(sample)
            if row is None:
                return False
            self._note_change(changed=self._samples.set_label(row, label))
            return True

    def discard(self, sample: str) -> bool:
        """Remove a sample.  Returns False if it is not held.  Its values leave the disk after the current round."""
        self._check_process()
        with self._lock:
            self._check_open()
            row = self._samples.present(sample)
            if row is None:
                return False
            self._samples.give_up(row)
            self._note_change(changed=True)
            return True

    def counts(self) -> SampleCounts:
        """Count the samples in the store now."""
        with self._lock:
            found = np.zeros((3, self.classes), np.int64)
            for row in self._samples.rows.values():
                if row.label is not None:
                    found[row.part, row.label.y] += 1
            train, validation, test = (tuple(int(n) for n in part) for part in found)
            return SampleCounts(
                train, validation, test, len(self._samples.waiting), self._samples.dropped, self._changes
            )

    def __len__(self) -> int:
        """Return the number of labelled samples."""
        with self._lock:
            return len(self._samples.reservoir)

    def __bool__(self) -> bool:
        """Return True, also for an empty store."""
        return True

    def flush(self) -> None:
        """Save all changes.  They are durable when this returns.  Raises StoreError if the disk fails."""
        self._check_process()
        with self._lock:
            stepped = self._ages is not None and self._ages.stepped
            if not self._closed and (self._samples.unsaved or stepped):
                self._save()

    def close(self) -> None:
        """Save all changes, and close the file.  Raises StoreError if the disk fails.

        On a closed store, `observe`, `label` and `discard` raise UsageError.  In a forked child `close` does nothing,
        because the parent still uses the file.
        """
        if self._is_copy:
            return
        with self._lock:
            try:
                self.flush()
            finally:
                self._closed = True
                self._file.close()

    def __enter__(self) -> SampleStore:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for the agent ----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The maximum number of labelled samples in this store."""
        return self._samples.reservoir.room

    @property
    def trainable(self) -> bool:
        """Whether a sample can be trained on now."""
        with self._lock:
            return any(row.part == 0 and row.label is not None for row in self._samples.rows.values())

    def save_if_due(self) -> None:
        """Save changes that have waited for `save_every_s`."""
        with self._lock:
            self._save_if_due()

    def new_since(self, snapshot: bytes) -> int:
        """Count the training samples that are not in this snapshot, or all of them for another store's snapshot."""
        store, _, number = snapshot.decode().partition(":")
        last = int(number) if store == self._identity and number.isdecimal() else -1
        with self._lock:
            now = [row.label for row in self._samples.rows.values() if row.part == 0]
        return sum(label is not None and label.born > last for label in now)

    def take_snapshot(self, known: Snapshot | None = None) -> Snapshot:
        """Save all changes and return the present samples, or `known` itself if nothing has changed since.

        Raises StoreError if the disk fails.
        """
        with self._lock:
            self._drop_aged()
            before = set(self._held)
        while True:
            with self._lock:
                if self._samples.tick == 0 or self._samples.labels_changed:
                    self._begin_snapshot()
                at, now = self._samples.tick - 1, set(self._held)
            if known is not None and known.id == self._snapshot_id(at):
                return known
            data, damaged = self._read(at)
            if not damaged:
                return Snapshot(self._snapshot_id(at), data, tuple(sorted(before - now)))
            log.warning("%s: %d samples are damaged and were removed", self.path, len(damaged))
            with self._lock:
                for row in damaged:
                    self._samples.give_up(row)

    def snapshot(self, snapshot: bytes) -> Snapshot | None:
        """Return an earlier snapshot, or None if it was released, is damaged, or is of another store."""
        store, _, number = snapshot.decode().partition(":")
        with self._lock:
            known = (
                store == self._identity
                and number.isdecimal()
                and self._samples.kept <= int(number) < self._samples.tick
            )
        if not known:
            return None
        data, damaged = self._read(int(number))
        return None if damaged else Snapshot(snapshot, data)

    def release(self, snapshot: bytes) -> None:
        """Release all snapshots before this one.  Samples that only they hold are deleted, a few with each save."""
        store, _, number = snapshot.decode().partition(":")
        with self._lock:
            if store != self._identity or int(number) <= self._samples.kept:
                return
            self._samples.kept = int(number)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.path or 'in memory'} is closed: make a new one to continue")

    @property
    def _is_copy(self) -> bool:
        """Whether this is a forked child, whose parent still uses the file."""
        return self.path is not None and os.getpid() != self._process

    def _check_process(self) -> None:
        """Raise UsageError in a forked child, because the parent would overwrite its changes."""
        if self._is_copy:
            raise UsageError(
                f"the store {self.path} belongs to process {self._process}, which forked this one: hand samples to "
                "that process, or open a store with another path here"
            )

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin_snapshot(self) -> None:
        """Begin the next snapshot, to which all later samples belong."""
        before = self._held
        self._held = [label for label, n in enumerate(self.counts().train) if n]
        self._samples.tick += 1
        try:
            self._save()
        except StoreError:
            self._samples.tick, self._held = self._samples.tick - 1, before
            raise

    def _take_in(self, name: str, values: bytes) -> HeldSample | None:
        """Make room for a new sample, still without a label.  Returns None if a round needs all others."""
        refused = self._clock() - self._refused_s < self._save_every_s
        full = len(self._samples.rows) + len(self._samples.gone) >= self._room_on_disk()
        if full or (refused and len(self._samples.new) >= _HELD_BACK * self._unsaved):
            self._samples.dropped += 1
            return None
        if self._ages is not None and self._ages.came(self._samples.next_key):
            self._drop_aged()
        return self._samples.take_in(name, values)

    def _drop_aged(self) -> None:
        """Drop the samples that are too old."""
        if self._ages is not None:
            self._samples.drop_before(self._ages.oldest(self._samples.next_key))

    # -- the file ---------------------------------------------------------------------------------------------------

    def _opened(self, *, quarantine: bool) -> RowFile:
        if self.path is None:
            return RowFile(None)
        if is_emptied(self.path):
            log.warning(
                "%s: is empty, as after an interrupted first start; the store starts empty; if there were "
                "samples in it, they are lost: stop, and restore a copy",
                self.path,
            )
        return opened_or_anew(lambda: RowFile(self.path), self.path, quarantine=quarantine, tell=log.warning)

    def _ages_of(
        self, max_age: timedelta | None, wall: Callable[[], float], known: dict[str, Any] | None
    ) -> SampleAges | None:
        """Return the ages of the samples, if they are limited.  Raises UsageError."""
        if max_age is None:
            return None
        if not isinstance(max_age, timedelta) or max_age < timedelta(minutes=1):
            raise UsageError(
                f"max_age {max_age!r}: expected a datetime.timedelta of at least a minute, such as timedelta(days=30)"
            )
        ages = SampleAges(max_age.total_seconds(), self._clock, wall, known or {})
        if self._samples.rows and not known:  # of before there was a maximum age: it counts from now
            ages.came(0)
        return ages

    def _note_change(self, *, changed: bool) -> None:
        self._changes += changed
        self._save_if_due()

    def _save_if_due(self) -> None:
        now_s = self._clock()
        new_bytes = sum(len(values) for _, values in self._samples.new.values())
        full = self._changes >= self._unsaved or new_bytes >= self._log_bytes // 2
        if not self._changes or not (full or now_s - self._saved_s >= self._save_every_s):
            return
        if now_s - self._refused_s < self._save_every_s:
            return
        try:
            self._save()
        except StoreError as error:
            if self._refused_s == -math.inf:
                log.warning("%s; samples wait in memory, at most %d", error, _HELD_BACK * self._unsaved)
            self._refused_s = now_s

    def _save(self) -> None:
        held, form = self._samples, self._form
        held.forget_past(2 * self._unsaved)
        settings = {
            "classes": self.classes,
            "class_names": self.class_names,
            "split": self._split,
            "seed": self._seed,
            "kind": arguments(self._kind),
            "store": self._identity,
            "tick": held.tick,
            "kept": held.kept,
            "held": self._held,
            "form": (form.shape, form.dtype) if form else None,
            "ages": self._ages.to_json() if self._ages is not None else {},
        }
        labels = {key: row.labels for key, row in held.changed.items()}
        self._file.commit(new=held.new, labels=labels, gone=held.gone, settings=settings)
        held.saved()
        self._changes, self._saved_s, self._refused_s = 0, self._clock(), -math.inf

    def _read(self, at: int) -> tuple[LocalData, list[HeldSample]]:
        """Return the data of a snapshot, and the rows of it whose values are damaged."""
        with self._lock:
            wanted = [(row, y) for row in self._samples.rows.values() if (y := row.label_in(at)) is not None]
        wanted.sort(key=lambda each: each[0].key)
        form, damaged = self._form, []
        sizes = [sum(row.part == part for row, _ in wanted) for part in range(3)]
        x = [np.empty((n, *form.shape) if form else (n, 0), form.dtype if form else np.float32) for n in sizes]
        labels: list[list[int]] = [[], [], []]
        for begin in range(0, len(wanted), _READ_AT_ONCE):
            several = wanted[begin : begin + _READ_AT_ONCE]
            with self._lock:
                values = self._file.values(several[0][0].key, several[-1][0].key)
            for row, label in several:
                found = values.get(row.key, b"")
                if form is not None and sample_id(found) == row.id:
                    x[row.part][len(labels[row.part])] = form.array(found)
                else:
                    damaged.append(row)
                labels[row.part].append(label)
        train, *held_out = (
            Samples(x[part], np.array(labels[part], np.int64), self.class_names, CHANNELS_LAST, *arguments(self._kind))
            for part in range(3)
        )
        validation, local_test = (part if len(part) else None for part in held_out)
        data = LocalData(train=train, test=self._test, validation=validation, local_test=local_test)
        return data, damaged

    def _snapshot_id(self, number: int) -> bytes:
        return f"{self._identity}:{number}".encode()

    # -- settings ---------------------------------------------------------------------------------------------------

    def _check_same(self, known: dict[str, Any]) -> None:
        self.class_names = self.class_names or tuple(known.get("class_names", ()))
        asked = {"classes": self.classes, "class_names": list(self.class_names), "split": list(self._split)}
        for name, given in (asked | {"seed": self._seed, "kind": [*arguments(self._kind)]}).items():
            if known.get(name) not in (None, [], given):
                raise UsageError(
                    f"{self.path}: made with {name} = {known[name]}, now {given}: a sample keeps its class and its "
                    "part permanently; give the same again, or another file"
                )

    def _declare(self, shape: tuple[int, ...] | None, dtype: str | None) -> None:
        if shape is None or dtype is None:
            raise UsageError("shape and dtype of the samples: give both, or neither")
        form = Form(tuple(shape), str(np.dtype(dtype)))
        if form != self._form:
            one, line = as_held(np.broadcast_to(np.uint8(1), (1, *form.shape)), self._kind, self._layout, "shape")
            if line:
                log.warning("%s: %s", self.path or "SampleStore", line)
            form = Form(one.shape[1:], form.dtype)
        self._take_form(form)

    def _take_form(self, form: Form) -> None:
        """Fix the form of all samples, or check a sample's against it.  Raises UsageError."""
        if self._form == form:
            return
        if self._form is not None:
            raise UsageError(
                f"a sample of {form.dtype} {form.shape}: the samples of this store are {self._form.dtype} "
                f"{self._form.shape}"
            )
        room = self._room_on_disk(form) // 2
        unlabelled = min(self._max_unlabelled, room // 4)
        if room - unlabelled < self.classes:
            raise UsageError(
                f"max_bytes {self._max_bytes}: has room for {room} samples of {form.sample_bytes} bytes, too "
                f"few for {self.classes} classes"
            )
        self._form, self._max_unlabelled = form, unlabelled
        self._samples.reservoir.room = min(self._max_samples, room - unlabelled)

    def _room_on_disk(self, form: Form | None = None) -> int:
        """Return the capacity of the file in samples: twice the number held, because a round keeps evicted ones."""
        form = form or self._form
        if form is None or self.path is None:
            return 2 * (self._max_samples + 4 * self._max_unlabelled)
        return int((self._max_bytes - 3 * self._log_bytes) * 0.95) // room_of_sample(form.sample_bytes)


def _checked_path(path: str | Path | None) -> Path | None:
    """Return the path of the file.  Raises UsageError for an invalid one."""
    if path is None:
        return None
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise UsageError(f"path {path!r}: expected the path of a file, or None to hold the samples in memory")
    if Path(path).is_dir():
        raise UsageError(f"path {str(path)!r}: is a folder: name a file in it, such as {Path(path) / 'samples.db'}")
    return Path(path)


def _check_numbers(classes: int, max_samples: int, max_unlabelled: int, max_bytes: int, unsaved: int) -> None:
    for name, value, least in (
        ("classes", classes, 2),
        ("max_samples", max_samples, classes),
        ("max_unlabelled", max_unlabelled, 0),
        ("max_bytes", max_bytes, LEAST_BYTES),
        ("unsaved", unsaved, 1),
    ):
        if not is_whole(value) or value < least:
            raise UsageError(f"{name} {value!r}: expected a whole number of at least {least}")
