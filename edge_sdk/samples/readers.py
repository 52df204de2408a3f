"""Readers of existing labelled samples: npz files, folders, WAV files, datasets of torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sdk.class_names import class_ids, in_order, listed
from edge_sdk.data import LocalData, Raw, Samples
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.given_arrays import (
    CHANNELS_LAST,
    PictureLayout,
    given_array,
    is_pillow_picture,
    picture_bytes,
    places,
    stacked_pictures,
)
from edge_sdk.public_set.samples import UNREADABLE, why_unreadable
from edge_sdk.sample_kind import (
    OF_LENGTHS,
    RAGGED,
    SERIES,
    SampleKind,
    arguments,
    as_held,
    declared_kind,
    padded,
)
from edge_sdk.samples.reservoir import checked_split, part_of
from edge_sdk.samples.rows import sample_id
from edge_sdk.samples.texts import TEXT_LENGTH, check_length, ids_of_words
from edge_sdk.samples.wav_files import read_wavs

log = logging.getLogger(__name__)

ARRAYS, SOUNDS, TEXTS = (".npy",), (".wav",), (".txt",)


def samples_from_npz(
    path: str | Path,
    *,
    x: str = "x",
    y: str = "y",
    layout: PictureLayout | None = None,
    lengths: str | None = None,
    kind: str | None = None,
    vocabulary: int | None = None,
) -> Samples:
    """Read samples (n, d), (n, h, w), (n, h, w, c) or (n, c, h, w), uint8 or floats, and labels from an npz file.

    x, y: the names of the two arrays.
    lengths: the name of the array with the lengths of padded series or texts.  By default `lengths`, if it exists.
    layout, kind, vocabulary: as of Samples.

    An array `class_names` in the file names the classes in their order.

    Raises UsageError that names the file, the array and its fault.
    """
    declared, names = declared_kind(kind, vocabulary, str(path)), [x, y, *([lengths] if lengths else [])]
    try:
        with Path(path).open("rb") as file:  # opened here, so that it is closed if numpy raises
            archive = np.load(file, allow_pickle=False)
            if lengths is None and declared is not None and declared.parts and "lengths" in archive:
                names.append(lengths := "lengths")
            wanted = [*names, "class_names"]
            found = (
                {} if isinstance(archive, np.ndarray) else {name: archive[name] for name in wanted if name in archive}
            )
            held = "one bare array" if isinstance(archive, np.ndarray) else ", ".join(archive) or "no arrays"
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise UsageError(f"{path}: not a readable npz file: {why_unreadable(error)}") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(f"{path}: lacks the array {missing[0]}; it holds {held}")
    given = found[x]
    if lengths:
        if declared is None:
            raise UsageError(f'{path}: lengths have no effect without kind = "ragged-series" or kind = "tokens"')
        given = declared.given(given, f"{path}: {x}", found[lengths])
    known = tuple(map(str, found.get("class_names", ())))
    labels_at = f"{path}: {y}"
    return checked_samples(
        f"{path}: {x}", given, found[y], labels_at=labels_at, names=known, layout=layout, kind=declared
    )


def samples_from_folder(
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    layout: PictureLayout | None = None,
    kind: str | None = None,
    rate: int | None = None,
    vocabulary: int | None = None,
    length: int = TEXT_LENGTH,
) -> Samples:
    """Read FOLDER/CLASS/*: pictures (with Pillow), .npy files with one sample each, .wav files of PCM, or .txt files.

    classes: all class names in the federation's order; this device need not have all of them.  None takes the
    sub-folders in the order of their names.
    size: height and width to which pictures are resized.
    layout: as of Samples, for .npy files.
    kind: series or ragged-series for sounds, tokens for texts.
    rate: the sampling rate of all sounds in Hz, or None for that of the first.
    vocabulary: as of Samples.
    length: the number of words of a text that hashed_words keeps.

    Raises UsageError that names the folder or file that does not fit.
    """
    top = Path(folder)
    if not top.is_dir():
        raise UsageError(f"{top}: no such folder")
    check_length(length, str(top))
    there = class_folders(top)
    names = list(classes) if classes is not None else there
    strange = [name for name in there if name not in names]
    if strange:
        raise UsageError(f"{top / strange[0]}: no such class; the federation has {', '.join(names)}")
    endings = (TEXTS if kind == "tokens" else SUFFIXES + SOUNDS) + ARRAYS
    files = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((top / name).glob("*"))
        if path.suffix.lower() in endings and not path.name.startswith(".")
    ]
    if not files:
        held = ".txt or .npy files" if kind == "tokens" else 'pictures, .npy, .wav, or as kind = "tokens" .txt files'
        raise UsageError(f"{top}: expected a sub-folder for each class, with {held}; found none")
    paths = [path for path, _ in files]
    ending = one_ending(paths, top)
    if line := unread_files([top / name for name in names], endings):
        log.warning("%s: %s", top, line)
    declared = declared_kind(kind or ("series" if ending in SOUNDS else None), vocabulary, str(top))
    remedy = "give one size to all with size=(height, width)"
    x = read_files(paths, declared, top, size=size, rate=rate, length=length, remedy=remedy)
    y = np.array([label for _, label in files], np.int64)
    layout = CHANNELS_LAST if ending in SUFFIXES else layout
    at = places(str(top), [*map(str, paths)])
    return checked_samples(at, x, y, names=names, layout=layout, kind=declared)


_SYSTEMS = frozenset({"__MACOSX", "__pycache__", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information"})
"""Folders that systems and tools leave behind."""
_SYSTEM_FILES = frozenset({"Thumbs.db", "desktop.ini"})


def class_folders(top: Path) -> list[str]:
    """Return the names of the sub-folders, those of classes, in their order: numbers by size, texts by letters."""
    names = [
        each.name
        for each in top.iterdir()
        if each.is_dir() and not each.name.startswith(".") and each.name not in _SYSTEMS
    ]
    return in_order(names)


def unread_files(folders: Sequence[Path], endings: Sequence[str]) -> str:
    """Describe the files and folders in these folders that are not read, or return an empty text if all are read."""
    others = [
        each
        for folder in folders
        if folder.is_dir()
        for each in folder.iterdir()
        if each.suffix.lower() not in endings
        and not each.name.startswith(".")
        and each.name not in _SYSTEMS | _SYSTEM_FILES
    ]
    if not others:
        return ""
    kinds = sorted({"folders" if each.is_dir() else each.suffix.lower() or "no ending" for each in others})
    return f"{len(others)} of its files are not read ({listed(kinds)}), such as {min(others)}"


def one_ending(paths: Sequence[Path], where: Path) -> str:
    """Return the common ending of files, for pictures the first one's.  Raises UsageError for several."""
    found = {"" if path.suffix.lower() in SUFFIXES else path.suffix.lower() for path in paths}
    if len(found) > 1:
        held = " and ".join(f"{each} files" if each else "pictures" for each in sorted(found))
        raise UsageError(f"{where}: holds {held}; give one kind")
    return paths[0].suffix.lower()


def read_files(
    paths: Sequence[Path],
    kind: SampleKind | None,
    where: Path,
    *,
    size: tuple[int, int] | None,
    rate: int | None,
    length: int,
    remedy: str,
) -> NDArray[Any]:
    """Return the samples in files of one ending, one in each.

    kind: the declared one.
    size: of pictures.
    rate: of sounds.
    length: of texts, in words.
    remedy: what to do about pictures of several sizes.

    Raises UsageError that names the file that does not fit.
    """
    ending = one_ending(paths, where)
    if ending in SOUNDS and (kind is None or kind.name not in SERIES):
        raise UsageError(f'{where}: .wav files are samples of kind = "series" or "ragged-series"')
    if rate is not None and ending not in SOUNDS:
        raise UsageError(f"{where}: rate is for .wav files, and it holds others: leave it out")
    at = places(str(where), [*map(str, paths)])
    if ending in SOUNDS and kind is not None:
        sounds = read_wavs(paths, rate)
        lengths = [*map(len, sounds)]
        if kind.name != RAGGED:
            return kind.given(sounds, at)
        return kind.given(padded(sounds, at, kind.parts), at, lengths)
    if ending in TEXTS and kind is not None:
        return np.array([ids_of_words(_text(path), kind.vocabulary, length, f"{path}: the text") for path in paths])
    if ending in SUFFIXES:
        if kind is not None and kind.name != "picture":
            raise UsageError(f'{where}: holds pictures, which are not samples of kind = "{kind.name}"')
        return read_pictures(paths, size, remedy=remedy)
    return _stacked(paths, kind, at)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable text in UTF-8: {error}") from None


def samples_from_torch(
    dataset: Any, *, layout: PictureLayout | None = None, kind: str | None = None, vocabulary: int | None = None
) -> Samples:
    """Read a map-style torch dataset, or any sequence of pairs (sample, label).

    It is read once, so its random transforms are drawn once, too.

    dataset: its samples are tensors, arrays, or Pillow pictures.
    layout, kind, vocabulary: as of Samples.  If the sizes are ambiguous, tensors are (c, h, w) and arrays (h, w, c).

    Raises UsageError for a dataset without a length, and for a pair that does not fit.
    """
    declared = declared_kind(kind, vocabulary, "the dataset")
    if isinstance(dataset, Mapping):
        raise UsageError(
            f"the dataset: found a mapping of {listed([*dataset])}, expected pairs of sample and label: give the "
            "arrays of samples and of labels to Samples, or in a simulation to data=(x_train, y_train, x_test, y_test)"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        remedy = "give its .dataset" if hasattr(dataset, "dataset") else "give a map-style dataset"
        raise UsageError(
            f"{type(dataset).__name__}: has no samples by number: {remedy}, or observe the samples one by one with an "
            "edge_sdk.SampleStore"
        )
    given, y = [], []
    for i in range(len(dataset)):
        try:
            pair = dataset[i]
            sample, label = ("", "") if isinstance(pair, Mapping) else pair
        except (TypeError, ValueError):
            raise UsageError(f"sample {i} of the dataset: expected a pair of sample and label") from None
        if isinstance(pair, Mapping):
            keys = [*map(str, pair)]
            of_label = next((key for key in ("label", "labels") if key in keys), keys[-1] if keys else "label")
            of_sample = next((key for key in keys if key != of_label), "image")
            raise UsageError(
                f"sample {i} of the dataset: a dict with {listed(keys)}, expected a pair of sample and label: write "
                f'a list of pairs, such as [(each["{of_sample}"], each["{of_label}"]) for each in dataset]'
            )
        given.append(sample)
        y.append(given_array(label, f"the label of sample {i} of the dataset"))
    if not given:
        raise UsageError("the dataset is empty")
    x, order = _stacked_samples(given, declared)
    labels = np.stack(y) if len({each.shape for each in y}) == 1 else y
    names = _names_in(dataset)
    return checked_samples("the dataset", x, labels, names=names, layout=layout, kind=declared, ambiguous=order)


def _names_in(dataset: Any) -> Sequence[str]:
    """Return the class names of a dataset of torchvision, or of the dataset that it is a part of."""
    names: Any = getattr(dataset, "classes", None) or getattr(getattr(dataset, "dataset", None), "classes", None)
    return names if isinstance(names, list | tuple) and all(isinstance(each, str) for each in names) else ()


def split_samples(samples: Samples, split: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0) -> LocalData:
    """Divide samples into train, validation and test by a hash of each sample's values.

    split: the shares of the three parts.  Their sum must be 1.
    seed: the seed of the hash.

    A sample falls into the same part at each start, and equal samples fall into the same part.

    Raises UsageError for shares with another sum.
    """
    shares = checked_split(split)
    parts = np.array([part_of(seed, sample_id(np.ascontiguousarray(each).tobytes()), shares) for each in samples.x])
    train, validation, test = (samples.at(parts == part) for part in range(3))
    return LocalData(
        train=train, validation=validation if len(validation) else None, local_test=test if len(test) else None
    )


def _stacked_samples(given: Sequence[Any], kind: SampleKind | None) -> tuple[NDArray[Any], PictureLayout]:
    """Return the samples of a dataset as one array, and their layout if the sizes are ambiguous."""
    if kind is not None and kind.parts:
        return kind.given(given, "the dataset"), CHANNELS_LAST
    if all(map(is_pillow_picture, given)):
        return given_array(given, "the dataset"), CHANNELS_LAST
    arrays = [given_array(sample, f"sample {i} of the dataset") for i, sample in enumerate(given)]
    for i, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise UsageError(f"sample {i} of the dataset: shape {array.shape}, but sample 0 has {arrays[0].shape}")
    return np.stack(arrays), "NCHW" if all(hasattr(sample, "detach") for sample in given) else CHANNELS_LAST


def _stacked(files: Sequence[Path], kind: SampleKind | None, where: str) -> NDArray[Any]:
    """Return the arrays of .npy files; those of several lengths are padded, if the kind has lengths."""
    arrays, of_lengths = [], kind is not None and kind.name in OF_LENGTHS
    for path in files:
        try:
            arrays.append(np.load(path, allow_pickle=False))
        except UNREADABLE as error:
            raise UsageError(f"{path}: not a readable .npy file: {why_unreadable(error)}") from None
        same_from = 1 if of_lengths else 0
        if arrays[-1].ndim != arrays[0].ndim or arrays[-1].shape[same_from:] != arrays[0].shape[same_from:]:
            raise UsageError(f"{path}: shape {arrays[-1].shape}, but {files[0].name} has {arrays[0].shape}")
    return kind.given(arrays, where) if kind is not None and of_lengths else np.stack(arrays)


def checked_samples(
    where: str,
    x: ArrayLike,
    y: ArrayLike,
    *,
    labels_at: str = "",
    names: Sequence[str] = (),
    layout: PictureLayout | None = None,
    kind: SampleKind | None = None,
    ambiguous: PictureLayout = CHANNELS_LAST,
) -> Samples:
    """Return samples as uint8 or f4 with whole-numbered labels.

    Raises UsageError with the place of a fault. labels_at: the place of the labels, if it is another one. names: of the
    classes, if known.  kind: the declared one.
    """
    raw = np.asarray(x)
    if not raw.size or (kind is None and raw.ndim not in (2, 3, 4)):
        raise UsageError(f"{where}: expected (n, d), (n, h, w) or (n, h, w, c), none of them 0, found {raw.shape}")
    values, line = as_held(raw, kind, layout, where, ambiguous=ambiguous)
    labels_at, expected = labels_at or where, f"expected {len(raw)} labels, whole numbers from 0, "
    labels, known = class_ids(y, names, where=labels_at, expected=expected)
    if labels.shape != raw.shape[:1] or int(labels.min()) < 0:
        raise UsageError(f"{labels_at}: {expected}found {labels.dtype} {labels.shape}")
    if line:
        log.warning("%s", line)
    return Samples(values, labels.astype(np.int64), known, CHANNELS_LAST, *arguments(kind))


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings of picture files; other files are ignored."""


def read_pictures(files: Sequence[Path], size: tuple[int, int] | None, *, remedy: str) -> Raw:
    """Read pictures as one array: u1 (n, h, w) if all are grey, else (n, h, w, 3).

    size: height and width to which they are resized.  remedy: what to do about pictures of several sizes.  Raises
    UsageError for a file that is not a picture or has another size, MissingExtra without Pillow.
    """
    return stacked_pictures([_picture(path, size) for path in files], [str(path) for path in files], remedy=remedy)


def _picture(path: Path, size: tuple[int, int] | None) -> Raw:
    """Read one picture, u1 (h, w) or (h, w, 3)."""
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise MissingExtra("pillow", "pictures", "reading pictures") from None
    try:
        with Pillow.open(path) as opened:
            return picture_bytes(opened, size, str(path))
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise UsageError(f"{path}: not a readable picture: {error}") from None
