"""Own data without code: an npz file with x_train, y_train, x_test, y_test and perhaps user_train."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.objectives import Ints
from edge_sim.sources.base import Whole

NEEDED = ("x_train", "y_train", "x_test", "y_test")
USERS = "user_train"
UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What numpy raises for a file that is cut off, damaged, or holds Python objects."""
MOST_CLASSES = 65535
"""What a federation may have (edge_sdk/protocol/messages.py)."""

Arrays = Mapping[str, NDArray[Any]]


def read(path: Path) -> Whole:
    """The data set in a file.

    x: uint8 or float, (n, h, w), (n, h, w, c) or (n, d); y: whole numbers from 0, (n,); user_train: whole numbers or
    texts, (n,).  Raises UsageError naming the file, the array, and what was found.
    """
    arrays = _arrays(path)
    for part in ("train", "test"):
        _check_samples(path, f"x_{part}", arrays[f"x_{part}"], arrays["x_train"].shape[1:])
        _check_labels(path, f"y_{part}", arrays[f"y_{part}"], len(arrays[f"x_{part}"]))
    users = arrays.get(USERS)
    if users is not None and (users.shape != arrays["y_train"].shape or users.dtype.kind not in "iuUS"):
        raise UsageError(
            f"{path}: {USERS}: expected a whole number or a text for each of the {len(arrays['y_train'])} training "
            f"samples, found {_shape(users)}"
        )
    return Whole(
        name=path.stem,
        train=Samples(arrays["x_train"], _labels(arrays["y_train"])),
        test=Samples(arrays["x_test"], _labels(arrays["y_test"])),
        scale=1 / 255 if arrays["x_train"].dtype == np.uint8 else 1.0,
        users=users,
    )


def _arrays(path: Path) -> Arrays:
    """The arrays that we know, read whole."""
    try:
        with path.open("rb") as file:  # opened here, so that it is closed whatever numpy finds in it
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise UsageError(f"data.path: {path}: one bare array; use numpy.savez with {', '.join(NEEDED)}")
            return _known(path, archive)
    except FileNotFoundError:
        raise UsageError(f"data.path: {path}: no such file") from None
    except UNREADABLE as error:
        raise UsageError(f"data.path: {path}: not a readable npz file: {error}") from None


def _known(path: Path, archive: Mapping[str, Any]) -> Arrays:
    missing = [name for name in NEEDED if name not in archive]
    if missing:
        found = ", ".join(archive) or "none"
        raise UsageError(f"{path}: lacks the array {missing[0]}; expected {', '.join(NEEDED)}, found {found}")
    return {name: _array(path, archive, name) for name in (*NEEDED, USERS) if name in archive}


def _array(path: Path, archive: Mapping[str, Any], name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = archive[name]
    except UNREADABLE as error:
        raise UsageError(f"{path}: {name}: not readable: {error}") from None
    return array


def _check_samples(path: Path, name: str, x: NDArray[Any], sample_shape: tuple[int, ...]) -> None:
    if x.dtype.kind not in "uif":
        raise UsageError(f"{path}: {name}: expected numbers, uint8 or float, found {_shape(x)}")
    if x.ndim not in (2, 3, 4):
        raise UsageError(f"{path}: {name}: expected (n, h, w), (n, h, w, c) or (n, d), found {_shape(x)}")
    if x.shape[1:] != sample_shape:
        raise UsageError(f"{path}: {name}: samples of shape {x.shape[1:]}, but those of x_train have {sample_shape}")
    if x.size == 0:
        raise UsageError(f"{path}: {name}: holds no samples: {_shape(x)}")
    if x.dtype.kind == "f":
        wild = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
        if len(wild):
            raise UsageError(f"{path}: {name}: sample {wild[0]} holds NaN or infinity, as do {len(wild)} in all")


def _check_labels(path: Path, name: str, y: NDArray[Any], count: int) -> None:
    if y.shape != (count,):
        raise UsageError(f"{path}: {name}: expected one label for each of {count} samples, found {_shape(y)}")
    if y.dtype.kind not in "iu":
        raise UsageError(f"{path}: {name}: expected whole numbers, found {_shape(y)}")
    if int(y.min()) < 0:
        raise UsageError(f"{path}: {name}: label {y.min()} of sample {y.argmin()}: classes count from 0")
    if int(y.max()) >= MOST_CLASSES:
        raise UsageError(f"{path}: {name}: label {y.max()} of sample {y.argmax()}: at most {MOST_CLASSES} classes")


def _labels(y: NDArray[Any]) -> Ints:
    labels: Ints = y.astype(np.int64)
    return labels


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
