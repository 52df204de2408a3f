"""Readers of labelled samples that lie somewhere already: npz files, folders, datasets of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sdk.class_names import class_ids
from edge_sdk.data import LocalData, Raw, Samples
from edge_sdk.errors import UsageError
from edge_sdk.public_set.samples import UNREADABLE, why_unreadable
from edge_sdk.samples.form import sample_id
from edge_sdk.samples.pictures import SUFFIXES, read_pictures
from edge_sdk.samples.reservoir import checked_split, part_of

ARRAYS = (".npy",)


def samples_from_npz(path: str | Path, *, x: str = "x", y: str = "y") -> Samples:
    """Read samples (n, d), (n, h, w) or (n, h, w, c), uint8 or floats, and labels (n,), ids or names, from an npz file.

    x, y: the names of the two arrays.  Raises UsageError with the file, the array, and what was found in it.
    """
    try:
        with Path(path).open("rb") as file:  # opened here, so that it is closed if numpy raises
            archive = np.load(file, allow_pickle=False)
            found = (
                {} if isinstance(archive, np.ndarray) else {name: archive[name] for name in (x, y) if name in archive}
            )
            names = "one bare array" if isinstance(archive, np.ndarray) else ", ".join(archive) or "no arrays"
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise UsageError(f"{path}: not a readable npz file: {why_unreadable(error)}") from None
    missing = [name for name in (x, y) if name not in found]
    if missing:
        raise UsageError(f"{path}: lacks the array {missing[0]}; it holds {names}")
    return _checked(f"{path}: {x}", found[x], found[y], labels_at=f"{path}: {y}")


def samples_from_folder(
    folder: str | Path, *, classes: Sequence[str] | None = None, size: tuple[int, int] | None = None
) -> Samples:
    """Read FOLDER/CLASS/*: pictures, by Pillow, or .npy files, each with one sample.

    classes: the names of all classes of the federation in its order, of which this device may have some; None: the
    sub-folders in the order of their names.  size: height and width to which pictures are resized.  Raises UsageError
    with the folder or file that does not fit.
    """
    top = Path(folder)
    if not top.is_dir():
        raise UsageError(f"{top}: no such folder")
    there = sorted(each.name for each in top.iterdir() if each.is_dir() and not each.name.startswith("."))
    names = list(classes) if classes is not None else there
    strange = [name for name in there if name not in names]
    if strange:
        raise UsageError(f"{top / strange[0]}: no such class; the federation has {', '.join(names)}")
    files = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((top / name).glob("*"))
        if path.suffix.lower() in SUFFIXES + ARRAYS and not path.name.startswith(".")
    ]
    if not files:
        raise UsageError(f"{top}: expected a sub-folder for each class, with pictures or .npy files; found none")
    paths = [path for path, _ in files]
    kinds = {path.suffix.lower() in ARRAYS for path in paths}
    if len(kinds) > 1:
        raise UsageError(f"{top}: holds pictures and .npy files; give one kind")
    remedy = "give one size to all with size=(height, width)"
    x = _stacked(paths) if kinds == {True} else read_pictures(paths, size, remedy=remedy)
    return _checked(str(top), x, np.array([label for _, label in files], np.int64), names=names)


def samples_from_torch(dataset: Any) -> Samples:
    """Read a map-style dataset of torch, or any sequence of pairs (sample, label), once; random changes are drawn once.

    A sample is a tensor (c, h, w) or (d,), or whatever numpy takes: an array or picture (h, w, c), (h, w) or (d,).
    Raises UsageError for a dataset without a length, and for a pair that does not fit.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"{type(dataset).__name__}: has no length: give a map-style dataset, or observe the samples one by one "
            "with an edge_sdk.SampleStore"
        )
    x, y = [], []
    for i in range(len(dataset)):
        try:
            sample, label = dataset[i]
        except (TypeError, ValueError):
            raise UsageError(f"sample {i} of the dataset: expected a pair of sample and label") from None
        x.append(_plain(sample))
        y.append(np.asarray(label))
        if x[i].shape != x[0].shape:
            raise UsageError(f"sample {i} of the dataset: shape {x[i].shape}, but sample 0 has {x[0].shape}")
    if not x:
        raise UsageError("the dataset is empty")
    names = getattr(dataset, "classes", ())  # as torchvision's have them
    named = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
    return _checked("the dataset", np.stack(x), np.stack(y), names=names if named else ())


def split_samples(samples: Samples, split: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0) -> LocalData:
    """Divide samples into train, validation and test, with these shares, by a hash of each sample's values.

    The same sample falls into the same part in each start, and so do samples that are there twice.  Raises UsageError
    for shares without the sum 1.
    """
    shares = checked_split(split)
    parts = np.array([part_of(seed, sample_id(np.ascontiguousarray(each).tobytes()), shares) for each in samples.x])
    train, validation, test = (
        Samples(samples.x[parts == part], samples.y[parts == part], samples.class_names) for part in range(3)
    )
    return LocalData(
        train=train, validation=validation if len(validation) else None, local_test=test if len(test) else None
    )


def _plain(sample: Any) -> NDArray[Any]:
    """Return one sample as an array with its channels last, as it is raw."""
    if not hasattr(sample, "detach"):
        return np.asarray(sample)
    tensor: NDArray[Any] = sample.detach().cpu().numpy()
    if tensor.ndim != 3:
        return tensor
    return tensor[0] if len(tensor) == 1 else np.moveaxis(tensor, 0, -1)


def _stacked(files: Sequence[Path]) -> NDArray[Any]:
    arrays = []
    for path in files:
        try:
            arrays.append(np.load(path, allow_pickle=False))
        except UNREADABLE as error:
            raise UsageError(f"{path}: not a readable .npy file: {why_unreadable(error)}") from None
        if arrays[-1].shape != arrays[0].shape:
            raise UsageError(f"{path}: shape {arrays[-1].shape}, but {files[0].name} has {arrays[0].shape}")
    return np.stack(arrays)


def _checked(where: str, x: ArrayLike, y: ArrayLike, *, labels_at: str = "", names: Sequence[str] = ()) -> Samples:
    """Return samples as uint8 or f4 with whole-numbered labels.  Raises UsageError that says where they do not fit.

    labels_at: where the labels are from, if that is another place.  names: of the classes, where they are known.
    """
    found, known = class_ids(y, names, where=labels_at or where)
    raw, labels = np.asarray(x), np.asarray(found)
    if raw.ndim not in (2, 3, 4) or not raw.size:
        raise UsageError(f"{where}: expected (n, d), (n, h, w) or (n, h, w, c), none of them 0, found {raw.shape}")
    if raw.dtype != np.uint8 and raw.dtype.kind != "f":
        raise UsageError(f"{where}: expected uint8 or floats, found {raw.dtype}")
    if labels.shape != raw.shape[:1] or labels.dtype.kind not in "iu" or int(labels.min()) < 0:
        raise UsageError(
            f"{labels_at or where}: expected {len(raw)} labels, whole numbers from 0, "
            f"found {labels.dtype} {labels.shape}"
        )
    values: Raw = raw if raw.dtype == np.uint8 else raw.astype(np.float32)
    wild = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if len(wild):
        raise UsageError(f"{where}: NaN or Inf in {len(wild)} samples, the first of them {wild[0]}")
    return Samples(values, labels.astype(np.int64), known)
