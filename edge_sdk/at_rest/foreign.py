"""Reads untrusted files: only regular files are opened, and values are checked against their annotations."""

from __future__ import annotations

import dataclasses
import errno
import functools
import math
import os
import stat
import struct
import types
import typing
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Union, cast

MOST_BYTES = 2**30
"""The largest file that is read as a whole."""
LARGEST, LARGEST_INTEGER = 1e100, 2**53
"""Numbers up to these can be added up and squared without an overflow."""
DEEPEST = 16
"""Levels of a value without an annotation of its own."""
UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError),
    *(RecursionError, NotImplementedError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error),
)
"""The errors from decoding a malformed file; the last three and RuntimeError come from archives."""


def open_foreign(path: Path, most_bytes: int = MOST_BYTES) -> BufferedReader:
    """Open a file for reading.  Raises OSError, also for a FIFO, a device or a folder, and for what is larger."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_size <= most_bytes:
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISREG(found.st_mode):
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, at most {most_bytes} are read", str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def read_foreign(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file.  Raises OSError as `open_foreign` does."""
    with open_foreign(path, most_bytes) as file:
        return file.read()


def check_fields(value: object, named: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError, with the path of the first value that does not fit, unless all fit their annotations.

    value: a dataclass, or a mapping with annotations in `named`; other keys may have any plain value.
    """
    if isinstance(value, Mapping):
        parts = [(name, (named or {}).get(name, Any), each) for name, each in value.items()]
    else:
        parts = [(name, hint, getattr(value, name)) for name, hint in _hints(cast("Hashable", type(value))).items()]
    for name, hint, each in parts:
        if path := _misfit(hint, each, str(name), DEEPEST):
            raise ValueError(f"{path} does not fit")


@functools.cache
def _hints(cls: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _misfit(hint: Any, value: Any, path: str, deep: int) -> str:
    """Return the path of the first value that does not fit, or nothing."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    parts: Iterable[tuple[Any, Any, str]] = ()
    if kind in (Union, types.UnionType):
        return "" if any(not _misfit(each, value, path, deep) for each in inner) else path
    if kind is Literal:
        return "" if value in inner else path
    if kind is tuple or (hint is Any and isinstance(value, list)):
        whole = isinstance(value, (list, tuple))
        parts = (
            (inner[0] if inner else Any, each, f"{path}[{place}]") for place, each in enumerate(value if whole else ())
        )
    elif kind in (Mapping, dict) or (hint is Any and isinstance(value, dict)):
        whole = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        parts = ((inner[1] if inner else Any, each, f"{path}.{key}") for key, each in (value.items() if whole else ()))
    elif dataclasses.is_dataclass(hint):
        whole = type(value) is hint
        hints = _hints(cast("Hashable", hint)).items() if whole else ()
        parts = ((each, getattr(value, name), f"{path}.{name}") for name, each in hints)
    else:
        whole = callable(value) if kind is Callable else _simple(hint, value)
    if not whole or not deep:
        return path
    return next(filter(None, (_misfit(each_hint, each, at, deep - 1) for each_hint, each, at in parts)), "")


def _simple(hint: Any, value: Any) -> bool:
    """Whether a value is one of a simple type; of Any: a plain one."""
    if hint is Any:
        return any(_simple(each, value) for each in (type(None), bool, float, str))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST_INTEGER
    return type(value) is hint
