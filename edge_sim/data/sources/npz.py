"""A source for the user's own data: an npz file with x_train, y_train, x_test, y_test and perhaps user_train."""

from __future__ import annotations

import math
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.class_names import checked_names, class_ids
from edge_sdk.data import Raw, Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, channels_last, check_numbers, raw_values
from edge_sdk.public_set.samples import UNREADABLE, why_unreadable
from edge_sdk.sample_kind import OF_LENGTHS, SampleKind, arguments, as_held, lengthened
from edge_sim.data.sources.base import SourceData

NEEDED = ("x_train", "y_train", "x_test", "y_test")
PARTS = ("train", "test")
USERS = "user_train"
NAMES = "class_names"
LENGTHS = tuple(f"lengths_{part}" for part in PARTS)
MOST_CLASSES = 65535
"""Largest number of classes that a federation's spec can carry."""

_MAPPED = "x_train.npy"
LEAST_MAPPED_BYTES = 64 * 2**20
"""So many bytes of samples for training, or more, stay in an uncompressed file; the system reads what is used."""
_PIECE_BYTES = 16 * 2**20
_F4 = 4
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
"""What stands before a member of a zip file; the lengths of its name and of its extra field are the last two."""

_READING = threading.Lock()
"""numpy parses the head of each array with `ast`, which Python up to 3.11.7 cannot do in two threads at once: one gets
a SystemError (python/cpython issue 106905)."""

Arrays = Mapping[str, NDArray[Any]]


def read_npz(path: Path, layout: PictureLayout | None = None, kind: SampleKind | None = None) -> SourceData:
    """Read the data set in an npz file.  Raises UsageError naming the file, the array, and what was found."""
    return of_arrays(_arrays(path), str(path), path.stem, layout, kind)


def of_arrays(
    arrays: Arrays, where: str, name: str, layout: PictureLayout | None, kind: SampleKind | None = None
) -> SourceData:
    """Return the data set in arrays by their names.

    x: uint8 or float, (n, d), (n, h, w), (n, h, w, c) or (n, c, h, w); y: whole numbers from 0, or names of classes,
    (n,) or (n, 1), or one-hot rows; user_train: whole numbers or texts, (n,); class_names: the names of all classes in
    their order, (k,); lengths_train, lengths_test: of padded series and texts, (n,).  kind: the declared one; x
    of tokens are whole numbers.  where: begins the messages.  Raises UsageError naming the array, and what was found.
    """
    x = {part: _samples(f"{where}: x_{part}", arrays, part, layout, kind) for part in PARTS}
    if kind is not None and kind.name in OF_LENGTHS:
        longest = max(each.shape[1] for each in x.values())
        x = {part: lengthened(each, longest, f"{where}: x_{part}", kind.parts) for part, each in x.items()}
    y, names = _labels(arrays, where, {part: len(each) for part, each in x.items()})
    remark = ""
    if kind is None:
        x["train"], remark = channels_last(x["train"], layout, f"{name}: x_train")
        x["test"], _ = channels_last(x["test"], layout, f"{name}: x_test")
    train, test = (Samples(x[part], y[part], (), CHANNELS_LAST, *arguments(kind)) for part in PARTS)
    if not int(max(train.y.max(), test.y.max())):
        raise UsageError(f"{where}: y_train: expected at least 2 classes, found only class 0")
    users = arrays.get(USERS)
    if users is not None and (users.shape != train.y.shape or users.dtype.kind not in "iuUS"):
        raise UsageError(
            f"{where}: {USERS}: expected a whole number or a text for each of {len(train)} samples, "
            f"found {users.dtype} {users.shape}"
        )
    scale = 1 / 255 if train.x.dtype == np.uint8 else 1.0
    return SourceData(name=name, train=train, test=test, scale=scale, class_names=names, users=users, remark=remark)


def _labels(arrays: Arrays, where: str, counts: Mapping[str, int]) -> tuple[dict[str, Ints], tuple[str, ...]]:
    """Return the class ids of both parts, and the names of the classes; where the parts differ, those of both."""
    given = checked_names([*arrays.get(NAMES, ())], where=f"{where}: {NAMES}")
    found = {part: _ids(f"{where}: y_{part}", arrays[f"y_{part}"], count, given) for part, count in counts.items()}
    known = [names for _, names in found.values()]
    ids = {part: each for part, (each, _) in found.items()}
    if len({*known}) == 1:
        return ids, known[0]
    if () in known:
        raise UsageError(f"{where}: y_train and y_test: one part has names, the other numbers; give both alike")
    every, longest = {name for names in known for name in names}, max(known, key=len)
    order = longest if {*longest} == every else tuple(sorted(every))
    return {
        part: np.array([order.index(name) for name in names])[ids[part]] for part, (_, names) in found.items()
    }, order


def _ids(where: str, y: Any, count: int, names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    labels, known = class_ids(y, names, where=where, expected=f"expected {count} integers, ")
    if labels.shape != (count,):
        raise UsageError(f"{where}: expected {count} integers, found {labels.dtype} {labels.shape}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= MOST_CLASSES:
        row = int(labels.argmin() if low < 0 else labels.argmax())
        raise UsageError(
            f"{where}: expected class ids from 0 to {MOST_CLASSES - 1}, found {low} to {high}, such as that of "
            f"sample {row}"
        )
    return labels.astype(np.int64), known


def _arrays(path: Path) -> Arrays:
    """Read the known arrays of the file."""
    try:
        with _READING, path.open("rb") as file:  # opened here, so that it is closed if numpy raises
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise _unreadable(path, f"it is one bare array; use numpy.savez with {', '.join(NEEDED)}")
            missing = [name for name in NEEDED if name not in archive]
            if missing:
                found = ", ".join(archive) or "none"
                raise UsageError(f"{path}: lacks the array {missing[0]}; expected {', '.join(NEEDED)}, found {found}")
            _check_fits(path, archive)
            return {name: _array(path, archive, name) for name in (*NEEDED, *LENGTHS, USERS, NAMES) if name in archive}
    except FileNotFoundError:
        raise UsageError(f"data.path: {path}: no such file") from None
    except UNREADABLE as error:
        raise _unreadable(path, why_unreadable(error)) from None


def machine_bytes() -> int:
    """Return the memory of this machine in bytes, or 0 if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _check_fits(path: Path, archive: Any) -> None:
    """Raise UsageError if what is read into memory is larger than it, before any array is read."""
    members, there = archive.zip.infolist(), machine_bytes()
    needed = sum(each.file_size for each in members if not _stays_on_disk(each))
    prepared = 0  # bytes that all devices share of the test set
    with suppress(*UNREADABLE, KeyError, TokenError), archive.zip.open("x_test.npy") as file:  # told when it is read
        prepared = _F4 * math.prod(_header(file)[0])
    if there and needed + prepared > there:
        needed_mib, prepared_mib, there_mib = needed / 2**20, prepared / 2**20, there / 2**20
        held = [_stays_on_disk(each) for each in members if each.filename == _MAPPED]
        remedy = "" if any(held) else ", or samples for training uncompressed (numpy.savez), which stay on the disk"
        raise UsageError(
            f"data.path: {path}: its arrays take {needed_mib:,.0f} MiB, the test set as models take it "
            f"{prepared_mib:,.0f} MiB, and this machine has {there_mib:,.0f} MiB: "
            f"write fewer samples, or smaller ones, to the file{remedy}"
        )


def _stays_on_disk(member: zipfile.ZipInfo) -> bool:
    return (
        member.filename == _MAPPED
        and member.compress_type == zipfile.ZIP_STORED
        and member.file_size >= LEAST_MAPPED_BYTES
    )


def _array(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        mapped = _mapped(path, archive.zip.NameToInfo.get(_MAPPED)) if f"{name}.npy" == _MAPPED else None
        array = archive[name] if mapped is None else mapped
    except UNREADABLE as error:
        raise _unreadable(path, f"{name}: {why_unreadable(error)}") from None
    if not isinstance(array, np.ndarray):  # numpy returns the bytes of a member that it cannot read
        raise _unreadable(path, f"{name} is not an array")
    return array


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the head of an array: its shape, whether columns come first, and its type; object where it is of none."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    return read(file) if read is not None else ((), True, np.dtype(object))


def _mapped(path: Path, member: zipfile.ZipInfo | None) -> NDArray[Any] | None:
    """Return a large array of samples whose values stay in the file, or None for one that has to be read.

    Raises BadZipFile if the values are not those that were written.
    """
    if member is None or not _stays_on_disk(member):
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        begin = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
        _check_bytes(path, member, begin)
        file.seek(begin)
        shape, by_columns, dtype = _header(file)
        at = file.tell()
    if by_columns or dtype not in (np.uint8, np.float32):  # others become another type anyway
        return None
    return np.asarray(np.memmap(path, dtype, "r", at, shape))


def _check_bytes(path: Path, member: zipfile.ZipInfo, begin: int) -> None:
    whole = np.memmap(path, np.uint8, "r", begin, (member.file_size,))
    crc = 0
    for first in range(0, member.file_size, _PIECE_BYTES):
        crc = zlib.crc32(whole[first : first + _PIECE_BYTES].data, crc)
    if crc != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"data.path: {path}: not a readable npz file: {why}")


def _samples(where: str, arrays: Arrays, part: str, layout: PictureLayout | None, kind: SampleKind | None) -> Raw:
    """Return samples as u1 or f4, the only types that a device accepts."""
    x, like, lengths = arrays[f"x_{part}"], arrays["x_train"], arrays.get(f"lengths_{part}")
    if kind is None and lengths is not None:
        raise UsageError(f'{where}: lengths_{part} needs data.kind = "ragged-series" or "tokens"')
    if kind is None:
        check_numbers(x, where)
    if kind is None and (x.ndim not in (2, 3, 4) or not x.size):
        raise UsageError(f"{where}: expected (n, h, w), (n, h, w, c) or (n, d), none of them 0, found {x.shape}")
    same_from = 2 if kind is not None and kind.name in OF_LENGTHS else 1
    if x.shape[same_from:] != like.shape[same_from:]:
        raise UsageError(f"{where}: expected the shape of samples in x_train, {like.shape[1:]}, found {x.shape[1:]}")
    given = x if kind is None else kind.given(x, where, lengths)
    values = raw_values(x, where) if kind is None else as_held(given, kind, layout, where)[0]
    if x.dtype.kind != like.dtype.kind:
        raise UsageError(f"{where}: expected {like.dtype}, like x_train, found {x.dtype}")
    return values
