"""The common shape and type of a store's samples, and the checks of samples from an app."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_sdk.class_names import listed
from edge_sdk.data import Raw, is_whole
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import PictureLayout, channels_last, given_array, raw_values
from edge_sdk.sample_kind import OF_LENGTHS, SampleKind, as_held, lengthened

KINDS = ("uint8", "float32")


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of one sample, (d,), (h, w) or (h, w, c), and the name of its dtype.

    Raises UsageError for forms that a model's `Preprocess` does not take.
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


def checked_sample(
    x: Any, layout: PictureLayout | None, known: Form | None, kind: SampleKind | None
) -> tuple[Raw, str]:
    """Return one sample as uint8 or float32, a contiguous copy with channels last, and a line about its layout.

    known: the form of the samples so far: a sample of that shape is taken unchanged, unless a layout is given, and
    ragged series and texts are padded to its length.  kind: the declared one.  The line is empty if the layout was
    clear.  Raises UsageError for a sample that is neither, and for NaN.
    """
    found = given_array(x, "a sample")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UsageError("a sample with NaN or Inf: leave it out, or repair the sensor's reading first")
    if kind is not None:
        values, line = as_held(found[None], kind, layout, "a sample")
        if known is not None and kind.name in OF_LENGTHS and values.shape[2:] == known.shape[1:]:
            values = lengthened(values, known.shape[0], "the store", kind.parts)
        return np.array(values[0], order="C"), line
    values = raw_values(found[None], "a sample")
    line = ""
    if layout is not None or known is None or found.shape != known.shape:
        values, line = channels_last(values, layout, "a sample")
    return np.array(values[0], order="C"), line


def class_id(y: Any, classes: int, names: Sequence[str] = ()) -> int:
    """Return a label, a class's number or name, as an int.  Raises UsageError for any other label."""
    if getattr(y, "ndim", None) == 0 and hasattr(y, "item"):  # an array or a tensor with one number or name
        y = y.item()
    if isinstance(y, str) and names:
        if y not in names:
            raise UsageError(f"class {y!r}: no such class; there are {listed(names)}")
        return names.index(y)
    if not is_whole(y) or not 0 <= y < classes:
        raise UsageError(f"class {y!r}: the federation has classes 0..{classes - 1}, given as whole numbers")
    return int(y)


def sample_id(values: bytes) -> str:
    """Return the id of a sample, a hash of its values: equal samples are one sample."""
    return hashlib.blake2b(values, digest_size=16).hexdigest()
