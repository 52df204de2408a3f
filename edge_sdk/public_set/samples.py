"""The public set: raw unlabelled samples that every device holds, identified by a hash of their content."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import struct
import zipfile
import zlib
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.data import Preprocess, Raw
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, channels_last, given_array
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import PublicSetSpec
from edge_sdk.sample_kind import declared_kind

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Raw samples (n, ...), u1 or f4, channels last, and the hash of their dtype, shape and bytes.

    layout: "NCHW" or "NHWC", the order of the axes of the given samples.  By default inferred from their sizes, and
    logged unless NHWC.
    kind, vocabulary: as of Samples.
    labels: the class of each sample, or -1 if it is unknown: (n,).  Only the guard uses them, which decides whether
    predict() may use a new model.

    Kind, vocabulary and labels are not part of the hash, and are never sent.

    Raises UsageError for samples of another type or shape, and for unsuitable labels.
    """

    samples: Raw
    layout: InitVar[PictureLayout | None] = None
    labels: Ints | None = None
    spec: PublicSetSpec = field(init=False)
    """The hash and the number of samples."""
    kind: InitVar[str | None] = None
    vocabulary: InitVar[int | None] = None

    def __post_init__(self, layout: PictureLayout | None, kind: str | None, vocabulary: int | None) -> None:
        given, declared = given_array(self.samples, "public"), declared_kind(kind, vocabulary, "public")
        samples, line = (
            channels_last(given, layout, "public") if declared is None else declared.held(given, layout, "public")
        )
        if line:
            log.warning("%s", line)
        object.__setattr__(self, "samples", samples)
        if self.samples.dtype.str not in TYPES or self.samples.ndim not in (2, 3, 4) or not self.samples.size:
            raise UsageError(
                "expected uint8 or float32 public samples, (n, h, w), (n, h, w, c) or (n, d), "
                f"found {self.samples.dtype} {self.samples.shape}"
            )
        if self.labels is not None:
            object.__setattr__(self, "labels", _checked_labels(self.labels, len(self.samples)))
        digest = hashlib.sha256(self._head)
        digest.update(np.ascontiguousarray(self.samples).data)
        object.__setattr__(self, "spec", PublicSetSpec(sha256=digest.digest(), count=len(self.samples)))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def _head(self) -> bytes:
        return f"{self.samples.dtype.str}{self.samples.shape}".encode()

    @classmethod
    def load(
        cls,
        path: str | Path,
        layout: PictureLayout | None = None,
        *,
        kind: str | None = None,
        vocabulary: int | None = None,
    ) -> PublicSet:
        """Load a set from an npz file: its array `public`, or its only array, and its array `labels`, if present.

        layout, kind, vocabulary: as of PublicSet.  They must be the same on all devices and the coordinator.

        Raises UsageError for a file that cannot be read, and for samples that are illegal or not finite.
        """
        name, samples, labels = _arrays(path)
        try:
            public = cls(samples, layout, labels, kind, vocabulary)
        except UsageError as error:
            raise UsageError(f"{path}: {name}: {error}") from None
        finite = [samples.dtype.kind != "f" or bool(np.isfinite(sample).all()) for sample in samples]
        not_finite = np.flatnonzero(~np.array(finite))  # sample numbers
        if len(not_finite):
            raise UsageError(
                f"{path}: {name}: NaN or Inf in {len(not_finite)} samples, the first of them {not_finite[0]}"
            )
        return public

    def write(self, file: BinaryIO) -> int:
        """Write the hashed bytes, an ASCII head and the samples; returns the number of bytes."""
        samples = np.ascontiguousarray(self.samples)
        file.write(self._head)
        file.write(samples.data)
        return len(self._head) + samples.nbytes

    @classmethod
    def read(cls, path: Path) -> PublicSet:
        """Read a file made by `write`.  Raises ValueError for other files, OSError if it cannot be read."""
        with path.open("rb") as file:
            found = _HEAD.match(file.read(_HEAD_MOST))
        if found is None:
            raise ValueError("not a public set: its head is not a type and a shape")
        shape = tuple(int(extent) for extent in found[2].split(b",") if extent)
        dtype = np.dtype(found[1].decode())
        if path.stat().st_size != found.end() + math.prod(shape) * dtype.itemsize or not math.prod(shape):
            raise ValueError(f"the file is not as long as its shape {shape} needs")
        return cls(np.fromfile(path, dtype, offset=found.end()).reshape(shape), CHANNELS_LAST)


def public_for(path: str | Path, preprocess: Preprocess) -> PublicSet:
    """Load a set whose samples are of the kind that a model's preprocessing declares.  Raises UsageError."""
    return PublicSet.load(path, kind=preprocess.kind, vocabulary=preprocess.vocabulary)


def check_readable(path: str | Path) -> None:
    """Read a set's arrays before the model that says their kind is known.  Raises UsageError."""
    _arrays(path)


TYPES = ("|u1", "<f4")
"""The dtypes of public samples, as in the head of a set."""
_HEAD = re.compile(rb"(\|u1|<f4)\(([0-9]{1,12}(?:, [0-9]{1,12}){1,3})\)")
_HEAD_MOST = 96
"""The length of the longest head in bytes."""
UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, RuntimeError, MemoryError, OverflowError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""The errors that numpy raises for an npz file that is cut off, damaged, or holds Python objects."""


def why_unreadable(error: Exception) -> str:
    """Return the reason in one line, without numpy's advice to unpickle the file, which is unsafe for foreign data."""
    text = str(error)
    if "contains pickled" in text:
        return "not a zip archive; make it with numpy.savez"
    if text.startswith("Object arrays"):
        return "it holds Python objects; expected an array of numbers"
    return one_line(text)


def _checked_labels(labels: Any, count: int) -> Ints:
    """Return the labels (n,) as i8.  Raises UsageError unless there is a whole number from -1 on for each sample."""
    found = np.asarray(labels)
    if found.shape != (count,) or found.dtype.kind not in "iu" or int(found.min()) < -1:
        raise UsageError(
            f"labels: expected whole numbers from -1 on (-1: not known), ({count},), found {found.dtype} {found.shape}"
        )
    return found.astype(np.int64)


def _arrays(path: str | Path) -> tuple[str, NDArray[Any], NDArray[Any] | None]:
    """Return name and array of the public set in an npz file, and its labels or None.  Raises UsageError."""
    try:
        with Path(path).open("rb") as file:  # opened here, so that it is closed if numpy raises
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise UsageError(f"{path}: not a readable npz file: it is one bare array; use numpy.savez")
            names = tuple(arrays)
            others = [name for name in names if name != "labels"]
            if "public" not in names and len(others) != 1:
                found = ", ".join(names) or "none"
                raise UsageError(f"{path}: expected one array or one called public, found {found}")
            name = "public" if "public" in names else others[0]
            array, labels = arrays[name], arrays["labels"] if "labels" in names else None
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; the public set is the same file on every device") from None
    except UNREADABLE as error:
        raise UsageError(f"{path}: not a readable npz file: {why_unreadable(error)}") from None
    if not isinstance(array, np.ndarray):  # numpy returns members that it cannot read as bytes
        raise UsageError(f"{path}: not a readable npz file: {name} is not an array")
    return name, array, labels
