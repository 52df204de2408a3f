"""A source for federated benchmarks in LEAF's layout: FOLDER/train/*.json and FOLDER/test/*.json, with users.

Each file holds {"users": [...], "user_data": {USER: {"x": [...], "y": [...]}}}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.class_names import class_ids
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout
from edge_sdk.sample_kind import SampleKind, arguments, as_held
from edge_sdk.samples.texts import TEXT_LENGTH, ids_of_words
from edge_sim.data.sources.base import SourceData

_OF_RECORD = 4
"""Where LEAF has the text in a record of Sent140: id, date, query, user, text, part."""


def read_leaf(
    folder: Path,
    size: tuple[int, int] | None,
    layout: PictureLayout | None = None,
    kind: SampleKind | None = None,
    length: int = TEXT_LENGTH,
) -> SourceData:
    """Read the samples of all users: f4 (n, d), or (n, h, w) and (n, h, w, c), as where `size` is given.

    layout: of samples with three axes; those that `size` shapes have their channels last.  kind: the declared one; of
    texts, such as Shakespeare's lines, or the records of Sent140, hashed_words keeps `length` words as ids.

    Raises UsageError, which names the file, for what is missing or no number.
    """
    x, y, users = _part(folder, "train", kind, length)
    test_x, test_y, _ = _part(folder, "test", kind, length)
    if x.shape[1:] != test_x.shape[1:]:
        raise UsageError(f"{folder}: samples of {x.shape[1:]} in train, of {test_x.shape[1:]} in test")
    if size is not None and x.ndim == 2:
        x, test_x, layout = _shaped(x, size, folder), _shaped(test_x, size, folder), CHANNELS_LAST
    x, remark = as_held(x, kind, layout, f"{folder.name}: x")
    test_x, _ = as_held(test_x, kind, layout, f"{folder.name}: x")
    y, test_y, names = _numbered(y, test_y, folder)
    train = Samples(x, y, (), CHANNELS_LAST, *arguments(kind))
    test = Samples(test_x, test_y, (), CHANNELS_LAST, *arguments(kind))
    return SourceData(
        name=folder.name, train=train, test=test, scale=1.0, class_names=names, users=users, remark=remark
    )


def _numbered(y: NDArray[Any], test_y: NDArray[Any], folder: Path) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Return labels (n,) of both parts as class ids, and the names of the classes where they are texts."""
    if "U" not in (y.dtype.kind, test_y.dtype.kind):
        return y, test_y, ()
    if y.dtype.kind != test_y.dtype.kind:
        raise UsageError(f"{folder}: some labels are names of classes, others numbers; give all alike")
    ids, names = class_ids(np.concatenate([y, test_y]), where=f"{folder}: y")
    return ids[: len(y)], ids[len(y) :], names


def _part(folder: Path, part: str, kind: SampleKind | None, length: int) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """The samples (n, d), labels (n,) and users (n,) of all files of a part, users in the order of their names."""
    files = sorted((folder / part).glob("*.json"))
    if not files:
        raise UsageError(f"data.path: {folder / part}: no .json files there, as LEAF lays them out")
    found: dict[str, tuple[Floats, NDArray[Any]]] = {}
    for path in files:
        found |= _file(path, kind, length)
    users = np.concatenate([np.full(len(found[name][1]), name) for name in sorted(found)])
    shapes = {found[name][0].shape[1:] for name in found}
    if len(shapes) > 1:
        raise UsageError(f"{folder / part}: samples of different shapes: {', '.join(map(str, sorted(shapes)))}")
    if len({found[name][1].dtype.kind for name in found}) > 1:
        raise UsageError(f"{folder / part}: some labels are names of classes, others numbers; give all alike")
    x = np.concatenate([found[name][0] for name in sorted(found)])
    return x, np.concatenate([found[name][1] for name in sorted(found)]), users


def _file(path: Path, kind: SampleKind | None, length: int) -> dict[str, tuple[Floats, NDArray[Any]]]:
    """The samples and labels of each user in a file."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        pairs = {str(user): (held["x"], held["y"]) for user, held in whole["user_data"].items() if len(held["y"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a LEAF file with user_data, x and y ({type(error).__name__})") from None
    found = {}
    for user, (x, y) in pairs.items():
        texts = _texts(x)
        try:
            named = all(isinstance(each, str) for each in y)
            values = _ids(texts, f"{path}: user {user}", kind, length) if texts else x
            samples, labels = np.array(values, np.float32), np.array(y, np.str_ if named else np.int64)
        except (ValueError, TypeError):
            raise UsageError(
                f"{path}: user {user}: expected samples of as many numbers each, or texts; and labels that are all "
                "whole numbers, or all names"
            ) from None
        if (
            samples.ndim < 2
            or labels.shape != samples.shape[:1]
            or not np.isfinite(samples).all()
            or not (named or labels.min() >= 0)
        ):
            raise UsageError(
                f"{path}: user {user}: expected numbers x (n, d) and classes y (n,), found {samples.shape} and "
                f"{labels.shape}"
            )
        found[user] = samples, labels
    return found


def _texts(x: Any) -> list[str]:
    """Return samples that are texts, or the text of each record of Sent140, or an empty list if they are numbers."""
    found = [each[_OF_RECORD] if isinstance(each, list) and len(each) > _OF_RECORD else each for each in x]
    return found if found and all(isinstance(each, str) for each in found) else []


def _ids(texts: Sequence[str], where: str, kind: SampleKind | None, length: int) -> list[list[int]]:
    """Return the ids of the words of texts (n, length).  Raises UsageError for a text without words."""
    if kind is None or not kind.vocabulary:
        raise UsageError(f'{where}: samples are texts: write data.kind = "tokens" and data.vocabulary')
    return [ids_of_words(each, kind.vocabulary, length, f"{where}: sample {i}") for i, each in enumerate(texts)]


def _shaped(x: Floats, size: tuple[int, int], folder: Path) -> Floats:
    """Flat samples (n, d) as pictures of this size."""
    height, width = size
    channels = x.shape[1] // (height * width)
    if channels * height * width != x.shape[1] or not channels:
        raise UsageError(f"data.image_size: {folder} has samples of {x.shape[1]} values, not of {height} x {width}")
    return x.reshape(-1, height, width) if channels == 1 else x.reshape(-1, height, width, channels)
