"""Data sets for simulation: private training samples, a public part without labels, and a test of all classes."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.data import Raw, Samples
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.objectives import Ints
from edge_sdk.protocol.schema import one_line
from edge_sdk.public import PublicSet
from edge_sim.config import DataTable

DIGITS_SCALE = 1 / 16
"""scikit-learn's digits have 17 grey levels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """One data set, split."""

    name: str
    private: Samples
    public: PublicSet | None
    test: Samples
    classes: int
    scale: float
    """Brings raw values to about [0, 1]."""
    sha256: str

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.private.x.shape[1:])


def load(table: DataTable, seed: int, folder: Path) -> Dataset:
    """The data set that a [data] section names.  Raises UsageError or MissingExtra."""
    if table.source == "digits":
        x, y = _digits()
        train, test = _stratified(y, table.test_fraction, np.random.default_rng([seed, 1]))
        digits = _Whole("digits", Samples(x[train], y[train]), Samples(x[test], y[test]), DIGITS_SCALE)
        return _split(table, seed, digits)
    train_set, test_set = _npz(folder / (table.path or ""))
    scale = 1 / 255 if train_set.x.dtype == np.uint8 else 1.0
    return _split(table, seed, _Whole(Path(table.path or "").stem, train_set, test_set, scale))


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A data set as it comes, before the public part is taken out."""

    name: str
    train: Samples
    test: Samples
    scale: float


def _split(table: DataTable, seed: int, whole: _Whole) -> Dataset:
    """Take the public part out of the training samples, without its labels."""
    train, test = whole.train, whole.test
    if not table.public < len(train):
        raise UsageError(
            f"data.public: expected fewer than the {len(train)} training samples, found {table.public}; "
            "leave some for the devices"
        )
    order = np.random.default_rng([seed, 2]).permutation(len(train))
    chosen, rest = np.sort(order[: table.public]), np.sort(order[table.public :])
    digest = hashlib.sha256()
    for array in (train.x, train.y, test.x, test.y):
        digest.update(np.ascontiguousarray(array).tobytes())
    return Dataset(
        name=whole.name,
        private=Samples(train.x[rest], train.y[rest]),
        public=PublicSet(train.x[chosen]) if table.public else None,
        test=test,
        classes=int(max(train.y.max(), test.y.max())) + 1,
        scale=whole.scale if table.scale is None else table.scale,
        sha256=digest.hexdigest(),
    )


def _digits() -> tuple[Raw, Ints]:
    """1,797 handwritten digits of 8 x 8 pixels: u1 (n, 8, 8), labels (n,)."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415  # heavy, and only here
    except ImportError:
        raise MissingExtra("scikit-learn", "sim", "the digits data set") from None
    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int64)


def _stratified(y: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Indices of train and test with the same share of each class in the test."""
    test = np.concatenate(
        [rng.permutation(np.flatnonzero(y == k))[: round(fraction * int((y == k).sum()))] for k in np.unique(y)]
    )
    mask = np.ones(len(y), bool)
    mask[test] = False
    return np.flatnonzero(mask), np.sort(test)


ARRAYS = ("x_train", "y_train", "x_test", "y_test")
MOST_CLASSES = 65535
"""What a federation's spec can carry."""


def _npz(path: Path) -> tuple[Samples, Samples]:
    """x_train y_train x_test y_test, uint8 or float; (n, h, w), (n, h, w, c) or (n, d)."""
    arrays = _arrays(path)
    x_train, y_train, x_test, y_test = (arrays[name] for name in ARRAYS)
    for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if x.ndim not in (2, 3, 4) or x.shape[1:] != x_train.shape[1:] or not x.size:
            raise UsageError(
                f"{path}: x_{name}: expected (n, h, w), (n, h, w, c) or (n, d), like x_train, found {x.shape}"
            )
        if not (x.dtype == np.uint8 or (x.dtype.kind == "f" and np.isfinite(x).all())):
            raise UsageError(f"{path}: x_{name}: expected uint8 or finite floats, found {x.dtype}")
        if x.dtype.kind != x_train.dtype.kind:
            raise UsageError(f"{path}: x_{name}: expected {x_train.dtype}, like x_train, found {x.dtype}")
        if y.shape != (len(x),) or y.dtype.kind not in "iu":
            raise UsageError(f"{path}: y_{name}: expected {len(x)} integers, found {y.dtype} {y.shape}")
        if not 0 <= int(y.min()) <= int(y.max()) < MOST_CLASSES:
            raise UsageError(
                f"{path}: y_{name}: expected class ids from 0 to {MOST_CLASSES - 1}, "
                f"found {int(y.min())} to {int(y.max())}"
            )
    if not int(max(y_train.max(), y_test.max())):
        raise UsageError(f"{path}: y_train: expected at least 2 classes, found only class 0")
    return Samples(_as_raw(x_train), y_train.astype(np.int64)), Samples(_as_raw(x_test), y_test.astype(np.int64))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The four arrays of an npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ARRAYS if name not in arrays.files]
            if missing:
                found = ", ".join(arrays.files) or "none"
                raise UsageError(f"{path}: lacks the array {missing[0]}; expected {', '.join(ARRAYS)}, found {found}")
            found_arrays = {name: arrays[name] for name in ARRAYS}
    except FileNotFoundError:
        raise UsageError(f"data.path: {path}: no such file") from None
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"data.path: {path}: not a readable npz file: {one_line(str(error))}") from None
    for name, array in found_arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out as bytes what it cannot read
            raise UsageError(f"data.path: {path}: not a readable npz file: {name} is no array")
    return found_arrays


def _as_raw(x: NDArray[Any]) -> Raw:
    """As u1 or f4, which is all that a device takes."""
    return x if x.dtype == np.uint8 else x.astype(np.float32)
