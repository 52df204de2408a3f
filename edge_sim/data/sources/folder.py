"""A source for the user's own pictures: a folder with one sub-folder for each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST
from edge_sdk.samples.readers import SUFFIXES, read_pictures
from edge_sim.data.draw import hold_out
from edge_sim.data.sources.base import SourceData

REMEDY = "give one size to all with data.image_size = [height, width]"


def read_folder(folder: Path, size: tuple[int, int] | None, test_fraction: float, seed: int) -> SourceData:
    """Read the pictures under a folder: u1 (n, h, w) where all are grey, else (n, h, w, 3).

    Files are FOLDER/CLASS/*.png, and a part of every class becomes the test; or FOLDER/{train,test}/CLASS/*.
    Classes are numbered in the order of their names.  `size`: height and width to which pictures are resized.

    Raises UsageError for a folder without pictures, a file that is none, or pictures of several sizes without `size`;
    MissingExtra without Pillow.
    """
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    top = folder / "train" if divided else folder
    classes = _classes(top)
    train_files = _files(top, classes)
    test_files = _files(folder / "test", classes) if divided else []
    x = read_pictures([path for path, _ in train_files + test_files], size, remedy=REMEDY)
    y = np.array([label for _, label in train_files + test_files], np.int64)
    if divided:
        n = len(train_files)
        train, test = np.arange(n), np.arange(n, len(y))
    else:
        train, test = hold_out(y, test_fraction, np.random.default_rng([seed, 1]))
    if not len(test):
        raise UsageError(f"{folder}: too few pictures of each class to hold {test_fraction:g} of them out as the test")
    samples = Samples(x, y, layout=CHANNELS_LAST)
    return SourceData(
        name=folder.name,
        train=samples.at(train),
        test=samples.at(test),
        scale=1 / 255,
        class_names=tuple(classes),
    )


def _classes(top: Path) -> list[str]:
    if not top.is_dir():
        raise UsageError(f"data.path: {top}: no such folder")
    names = _subfolders(top)
    if len(names) < 2:
        found = ", ".join(names) or "none"
        raise UsageError(f"data.path: {top}: expected a sub-folder of pictures for each class, found {found}")
    return names


def _subfolders(top: Path) -> list[str]:
    return sorted(entry.name for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(top: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Return (file, class) of every picture, ordered by class and then by name."""
    strange = [name for name in _subfolders(top) if name not in classes]
    if strange:
        raise UsageError(f"{top}: {strange[0]}: no such class in the training part; it has {', '.join(classes)}")
    return [(path, label) for label, name in enumerate(classes) for path in _of_class(top / name)]


def _of_class(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [path for path in entries if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    if not files:
        raise UsageError(f"{folder}: holds no pictures ({' '.join(SUFFIXES)})")
    yield from files
