"""A source for the user's own files: CSV tables; or pictures, sounds, texts or arrays, a sub-folder for each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_sdk.class_names import class_ids
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, places
from edge_sdk.sample_kind import SERIES, SampleKind, arguments, as_held
from edge_sdk.samples.csv_files import CsvColumns, CsvSamples, read_csv
from edge_sdk.samples.readers import ARRAYS, SOUNDS, SUFFIXES, TEXTS, class_folders, read_files, unread_files
from edge_sdk.samples.texts import TEXT_LENGTH
from edge_sim.data.draw import hold_out
from edge_sim.data.draw import hold_out as held_out
from edge_sim.data.sources.base import SourceData

REMEDY = "give one size to all with data.image_size = [height, width]"


OF_KIND: Mapping[str, tuple[str, ...]] = {
    "picture": SUFFIXES,
    "vector": (),
    "tokens": TEXTS,
    **dict.fromkeys(SERIES, SOUNDS),
}
"""Endings of files of a kind, beside .npy."""


class FileOptions(NamedTuple):
    """How the files of a folder are read, beside their kind, or None for the default."""

    size: tuple[int, int] | None = None
    """Height and width to which pictures are resized."""
    rate: int | None = None
    """Of all sounds, in Hz."""
    length: int = TEXT_LENGTH
    """How many words of a text are kept."""


def read_folder(
    folder: Path, form: FileOptions, test_fraction: float, seed: int, kind: SampleKind | None = None
) -> SourceData:
    """Read the samples under a folder: pictures, u1 (n, h, w) where all are grey, else (n, h, w, 3), or what `kind` is.

    Files are FOLDER/CLASS/*, and a part of every class becomes the test; or FOLDER/{train,test}/CLASS/*: pictures, of
    series .wav files, of tokens .txt files, of all kinds .npy files.  Classes are numbered in the order of
    their names.

    Raises UsageError for a folder without samples, a file that does not fit, or pictures of several sizes without a
    size; MissingExtra without Pillow.
    """
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    top = folder / "train" if divided else folder
    classes = _classes(top)
    train_files = _files(top, classes, kind)
    files = train_files + (_files(folder / "test", classes, kind) if divided else [])
    size, rate, length = form
    paths = [path for path, _ in files]
    x = read_files(paths, kind, folder, size=size, rate=rate, length=length, remedy=REMEDY)
    at = places(str(folder), [*map(str, paths)])
    x, remark = as_held(x, kind, CHANNELS_LAST if x.dtype == np.uint8 else None, at)
    tops = [top, *([folder / "test"] if divided else [])]
    unread = unread_files([each / name for each in tops for name in classes], _endings(kind))
    remark = "; ".join(filter(None, (remark, f"{folder}: {unread}" if unread else "")))
    y = np.array([label for _, label in files], np.int64)
    if divided:
        n = len(train_files)
        train, test = np.arange(n), np.arange(n, len(y))
    else:
        train, test = hold_out(y, test_fraction, np.random.default_rng([seed, 1]))
    if not len(test):
        raise UsageError(f"{folder}: too few samples of each class to hold {test_fraction:g} of them out as the test")
    samples = Samples(x, y, (), CHANNELS_LAST, *arguments(kind))
    return SourceData(
        name=folder.name,
        train=samples.at(train),
        test=samples.at(test),
        scale=1 / 255 if x.dtype == np.uint8 else 1.0,
        class_names=tuple(classes),
        remark=remark,
    )


def _classes(top: Path) -> list[str]:
    if not top.is_dir():
        raise UsageError(f"data.path: {top}: no such folder")
    names = class_folders(top)
    if len(names) < 2:
        found = ", ".join(names) or "none"
        raise UsageError(f"data.path: {top}: expected a sub-folder of samples for each class, found {found}")
    return names


def _files(top: Path, classes: Sequence[str], kind: SampleKind | None) -> list[tuple[Path, int]]:
    """Return (file, class) of every sample, ordered by class and then by name."""
    strange = [name for name in class_folders(top) if name not in classes]
    if strange:
        raise UsageError(f"{top}: {strange[0]}: no such class in the training part; it has {', '.join(classes)}")
    return [(path, label) for label, name in enumerate(classes) for path in _of_class(top / name, kind)]


def _endings(kind: SampleKind | None) -> tuple[str, ...]:
    """Return the endings of files that hold samples of a kind."""
    return (*OF_KIND[kind.name if kind is not None else "picture"], *ARRAYS)


def _of_class(folder: Path, kind: SampleKind | None) -> Iterator[Path]:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    endings = _endings(kind)
    files = [path for path in entries if path.suffix.lower() in endings and not path.name.startswith(".")]
    if not files:
        others = {path.suffix.lower() for path in entries} & {*SOUNDS, *TEXTS, *ARRAYS}
        remedy = "".join(
            f'; declare .{ending} files as data.kind = "{of}"'
            for ending, of in (("wav", "ragged-series"), ("txt", "tokens"))
            if f".{ending}" in others and kind is None
        )
        name = kind.name if kind is not None else "picture"
        held = {"picture": "pictures"}.get(name, name)
        raise UsageError(f"{folder}: holds no {held} ({' '.join(endings)}){remedy}")
    yield from files


def read_csv_tables(
    path: Path, columns: CsvColumns, kind: SampleKind | None, length: int, *, hold_out: tuple[float, int]
) -> SourceData:
    """Read tables, texts or series: the file itself, or train.csv and test.csv in the folder.

    kind: the declared one.  length: how many words of a text are kept.  hold_out: share that becomes the test where
    there is one file, and a seed.  Raises UsageError that names the file, the row and the column.
    """
    files = [path / "train.csv", path / "test.csv"] if path.is_dir() else [path]
    parts = [read_csv(file, columns, kind, length) for file in files]
    if parts[-1].columns != parts[0].columns:
        now, then = ", ".join(parts[-1].columns), ", ".join(parts[0].columns)
        raise UsageError(f"{files[-1]}: row 1: its columns of samples are {now}; those of {files[0].name} are {then}")
    values = [sample for part in parts for sample in part.x]
    at = places(str(path), [row for part in parts for row in part.rows])
    given = np.array(values, np.float32) if kind is None else kind.given(values, at)
    x, remark = as_held(given, kind, None, at)
    words = CsvSamples(y=[label for part in parts for label in part.y], rows=[*at.samples]).labels()
    y, names = class_ids(words, where=f"{path}, column {columns.label}")
    count = len(parts[0].x)
    train, test = np.arange(count), np.arange(count, len(y))
    if len(parts) == 1:
        fraction, seed = hold_out
        train, test = held_out(y, fraction, np.random.default_rng([seed, 1]))
    if not len(test):
        raise UsageError(f"{path}: too few samples of each class to hold {hold_out[0]:g} of them out as the test")
    return SourceData(
        name=path.stem,
        train=Samples(x[train], y[train], (), CHANNELS_LAST, *arguments(kind)),
        test=Samples(x[test], y[test], (), CHANNELS_LAST, *arguments(kind)),
        scale=1.0,
        class_names=names,
        remark=remark,
        users=np.array(parts[0].users)[train] if columns.user else None,
    )
