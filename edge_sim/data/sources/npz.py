"""A source for the user's own data: an npz file with x_train, y_train, x_test, y_test and perhaps user_train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.class_names import checked_names, class_ids
from edge_sdk.data import Raw, Samples
from edge_sdk.errors import UsageError
from edge_sdk.public_set.samples import UNREADABLE, why_unreadable
from edge_sim.data.sources.base import SourceData

NEEDED = ("x_train", "y_train", "x_test", "y_test")
USERS = "user_train"
NAMES = "class_names"
MOST_CLASSES = 65535
"""Largest number of classes that a federation's spec can carry."""

Arrays = Mapping[str, NDArray[Any]]


def read_npz(path: Path) -> SourceData:
    """Read the data set in an npz file.

    x: uint8 or float, (n, h, w), (n, h, w, c) or (n, d); y: whole numbers from 0, or names of classes, (n,);
    user_train: whole numbers or texts, (n,); class_names: the names of all classes in their order, (k,).  Raises
    UsageError naming the file, the array, and what was found.
    """
    arrays, names = _with_ids(_arrays(path), path)
    for part in ("train", "test"):
        _check_samples(f"{path}: x_{part}", arrays[f"x_{part}"], arrays["x_train"])
        _check_labels(f"{path}: y_{part}", arrays[f"y_{part}"], len(arrays[f"x_{part}"]))
    train = Samples(_raw(arrays["x_train"]), _labels(arrays["y_train"]))
    test = Samples(_raw(arrays["x_test"]), _labels(arrays["y_test"]))
    if not int(max(train.y.max(), test.y.max())):
        raise UsageError(f"{path}: y_train: expected at least 2 classes, found only class 0")
    users = arrays.get(USERS)
    if users is not None and (users.shape != train.y.shape or users.dtype.kind not in "iuUS"):
        raise UsageError(
            f"{path}: {USERS}: expected a whole number or a text for each of {len(train)} samples, found {_what(users)}"
        )
    scale = 1 / 255 if train.x.dtype == np.uint8 else 1.0
    return SourceData(name=path.stem, train=train, test=test, scale=scale, class_names=names, users=users)


def _with_ids(arrays: Arrays, path: Path) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays with class ids where labels are names, and the names: those of both parts, sorted."""
    labels = [arrays["y_train"], arrays["y_test"]]
    words = {str(name) for y in labels if y.dtype.kind == "U" for name in y.flat}
    if words and any(y.dtype.kind != "U" for y in labels) and NAMES not in arrays:
        raise UsageError(f"{path}: y_train and y_test: one part has names, the other numbers; give both alike")
    names = checked_names([*arrays[NAMES].flat] if NAMES in arrays else sorted(words), where=f"{path}: {NAMES}")
    found = {key: class_ids(arrays[key], names, where=f"{path}: {key}")[0] for key in ("y_train", "y_test")}
    return {**arrays, **found}, names


def _arrays(path: Path) -> Arrays:
    """Read the known arrays of the file."""
    try:
        with path.open("rb") as file:  # opened here, so that it is closed whatever numpy finds in it
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise _unreadable(path, f"it is one bare array; use numpy.savez with {', '.join(NEEDED)}")
            missing = [name for name in NEEDED if name not in archive]
            if missing:
                found = ", ".join(archive) or "none"
                raise UsageError(f"{path}: lacks the array {missing[0]}; expected {', '.join(NEEDED)}, found {found}")
            return {name: _array(path, archive, name) for name in (*NEEDED, USERS, NAMES) if name in archive}
    except FileNotFoundError:
        raise UsageError(f"data.path: {path}: no such file") from None
    except UNREADABLE as error:
        raise _unreadable(path, why_unreadable(error)) from None


def _array(path: Path, archive: Mapping[str, Any], name: str) -> NDArray[Any]:
    try:
        array = archive[name]
    except UNREADABLE as error:
        raise _unreadable(path, f"{name}: {why_unreadable(error)}") from None
    if not isinstance(array, np.ndarray):  # numpy returns the bytes of a member that it cannot read
        raise _unreadable(path, f"{name} is no array")
    return array


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"data.path: {path}: not a readable npz file: {why}")


def _check_samples(where: str, x: NDArray[Any], like: NDArray[Any]) -> None:
    if x.ndim not in (2, 3, 4) or not x.size:
        raise UsageError(f"{where}: expected (n, h, w), (n, h, w, c) or (n, d), none of them 0, found {x.shape}")
    if x.shape[1:] != like.shape[1:]:
        raise UsageError(f"{where}: expected the shape of samples in x_train, {like.shape[1:]}, found {x.shape[1:]}")
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise UsageError(f"{where}: expected uint8 or finite floats, found {x.dtype}")
    if x.dtype.kind != like.dtype.kind:
        raise UsageError(f"{where}: expected {like.dtype}, like x_train, found {x.dtype}")
    wild = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))  # sample numbers
    if len(wild):
        raise UsageError(
            f"{where}: expected uint8 or finite floats, found {x.dtype} with NaN or Inf in {len(wild)} samples, "
            f"the first of them {wild[0]}"
        )


def _check_labels(where: str, y: NDArray[Any], count: int) -> None:
    if y.shape != (count,) or y.dtype.kind not in "iu":
        raise UsageError(f"{where}: expected {count} integers, found {_what(y)}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= MOST_CLASSES:
        row = int(y.argmin() if low < 0 else y.argmax())
        raise UsageError(
            f"{where}: expected class ids from 0 to {MOST_CLASSES - 1}, found {low} to {high}, such as that of "
            f"sample {row}"
        )


def _raw(x: NDArray[Any]) -> Raw:
    """Return the array as u1 or f4, the only types that a device accepts."""
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _labels(y: NDArray[Any]) -> Ints:
    labels: Ints = y.astype(np.int64)
    return labels


def _what(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
