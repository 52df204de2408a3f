"""The shape and the type that all samples of a store have, and the checks of what an app gives."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edge_sdk.class_names import listed
from edge_sdk.data import Raw, is_whole
from edge_sdk.errors import UsageError

KINDS = ("uint8", "float32")


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of one sample, (d,), (h, w) or (h, w, c), and the name of its dtype.

    Raises UsageError for others than those that a model's `Preprocess` takes.
    """

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 3 or min(self.shape) < 1:
            raise UsageError(f"a sample of shape {self.shape}: expected (d,), (h, w) or (h, w, c), none of them 0")
        if self.dtype not in KINDS:
            raise UsageError(f"samples of dtype {self.dtype}: expected {' or '.join(KINDS)}")

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def array(self, values: bytes) -> Raw:
        """Return a sample's values as an array of this form."""
        found: Raw = np.frombuffer(values, self.dtype).reshape(self.shape)
        return found


def checked_sample(x: ArrayLike) -> Raw:
    """Return one sample as uint8 or float32, a copy in one piece.  Raises UsageError for any other, and for NaN."""
    try:
        found: Raw = np.asarray(x)
    except ValueError as error:
        raise UsageError(f"a sample: expected an array of numbers: {error}") from None
    if found.dtype != np.uint8 and found.dtype.kind != "f":
        raise UsageError(f"a sample of dtype {found.dtype}: expected uint8 or floats")
    with np.errstate(over="ignore"):  # what is too large for f4 becomes Inf, and is refused below
        raw = np.array(found, np.uint8 if found.dtype == np.uint8 else np.float32, order="C")
    if not np.isfinite(raw).all():
        raise UsageError("a sample with NaN or Inf: leave it out, or repair the sensor's reading first")
    return raw


def class_id(y: Any, classes: int, names: Sequence[str] = ()) -> int:
    """Return a label, a class's number or name, as an int.  Raises UsageError for what is no class of these."""
    if isinstance(y, str) and names:
        if y not in names:
            raise UsageError(f"class {y!r}: no such class; there are {listed(names)}")
        return names.index(y)
    if not is_whole(y) or not 0 <= y < classes:
        raise UsageError(f"class {y!r}: the federation has classes 0..{classes - 1}, given as whole numbers")
    return int(y)


def sample_id(values: bytes) -> str:
    """Return the id of a sample, a hash of its values: what was observed twice is one sample."""
    return hashlib.blake2b(values, digest_size=16).hexdigest()
