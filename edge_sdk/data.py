"""A device's own data, and the preprocessing that turns raw samples into what its model takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import UsageError
from edge_sdk.objectives import Floats, Ints

Raw = NDArray[Any]
"""Samples as they were recorded: u1 or f4, (n, h, w), (n, h, w, c) or flat (n, d)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """From raw samples to a model's input: resize, choose channels, scale, normalise."""

    size: tuple[int, int] | None = None
    """Height and width after bilinear resizing; None keeps the raw size."""
    channels: int | None = None
    """1 or 3: grey samples are repeated, colour samples averaged; None keeps them."""
    scale: float = 1.0
    """Multiplied with the raw values first (1/255 for bytes)."""
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if self.std <= 0:
            raise UsageError(f"preprocess std {self.std}: expected a number above 0")
        if self.channels not in (None, 1, 3):
            raise UsageError(f"preprocess channels {self.channels}: expected 1 (grey) or 3 (colour)")
        if self.size is not None and min(self.size) < 1:
            raise UsageError(f"preprocess size {self.size}: expected height and width of at least 1")

    def __call__(self, raw: Raw) -> Floats:
        """(n, h, w), (n, h, w, c) or (n, d) -> f4 (n, c, h, w); flat samples become (n, 1, 1, d)."""
        if raw.ndim not in (2, 3, 4):
            raise UsageError(f"samples of shape {raw.shape}: expected (n, d), (n, h, w) or (n, h, w, c)")
        if raw.ndim == 2 and self.size is not None:
            raise UsageError(f"flat samples of shape {raw.shape} have no height and width: leave preprocess size out")
        x = raw.astype(np.float32)
        if raw.ndim == 2:
            x = x[:, None, None, :]
        elif raw.ndim == 3:
            x = x[:, None, :, :]
        else:
            x = x.transpose(0, 3, 1, 2)
        x = _with_channels(x, self.channels)
        if self.size is not None and x.shape[2:] != self.size:
            x = _resize(x, self.size)
        out: Floats = np.ascontiguousarray((x * np.float32(self.scale) - np.float32(self.mean)) / np.float32(self.std))
        return out


def _with_channels(x: Floats, channels: int | None) -> Floats:
    if channels is None or x.shape[1] == channels:
        return x
    grey = x.mean(axis=1, keepdims=True)
    return np.repeat(grey, channels, axis=1)


def _resize(x: Floats, size: tuple[int, int]) -> Floats:
    """Bilinear, pixel centres aligned as torch's interpolate(align_corners=False) does: (n, c, h, w)."""
    for axis, target in ((2, size[0]), (3, size[1])):
        source = x.shape[axis]
        at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, source - 1)
        share = (at - low).astype(np.float32)
        share = share[:, None] if axis == 2 else share
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Raw samples with labels."""

    x: Raw  # (n, ...)
    y: Ints  # (n,)

    def __post_init__(self) -> None:
        for name, array in (("x", self.x), ("y", self.y)):
            if not isinstance(array, np.ndarray):
                raise UsageError(f"{name}: found {type(array).__name__}: samples and labels are numpy arrays")
        if len(self.x) != len(self.y):
            raise UsageError(f"{len(self.x)} samples but {len(self.y)} labels")
        if self.y.ndim != 1 or self.y.dtype.kind not in "iu":
            raise UsageError(
                f"y: found {self.y.dtype} {self.y.shape}: labels are whole numbers, one for each sample (n,)"
            )

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalData:
    """What one device holds.  None of it ever leaves the device."""

    train: Samples
    test: Samples | None = None
    """What the device's accuracy is measured on; a balanced test of all classes where the federation gives one."""
    validation: Samples | None = None
    """Of its own, kept out of training, to choose settings by: measured as validation_accuracy."""
    local_test: Samples | None = None
    """Of its own, kept out of training: measured as local_accuracy, in place of that on the test's classes it holds."""

    def class_counts(self, classes: int) -> tuple[int, ...]:
        """Training samples per class.  Raises UsageError for a label outside 0..classes-1."""
        y = self.train.y
        if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
            raise UsageError(
                f"labels from {int(y.min())} to {int(y.max())}: the federation has classes 0..{classes - 1}"
            )
        return tuple(int(n) for n in np.bincount(y, minlength=classes))
