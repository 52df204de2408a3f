"""Files that are replaced at once, so that a reader never sees half of one.  Text is UTF-8 with its own line ends."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edge_sdk.at_rest.foreign import UNREADABLE, read_foreign
from edge_sdk.errors import UsageError

NEW_LINE = b"\n"


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a whole file at once: a concurrent reader gets the old file or the new one.  Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).chmod(0o644)  # mkstemp makes a file that only its owner reads; a report is for others
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Turn what a file of a run raises, however it is damaged, into a UsageError of one line that names the file."""
    try:
        yield
    except UNREADABLE as error:
        raise UsageError(f"{path}: cannot be read ({reading_fault(error)}); {remedy}") from None


def read_text(path: Path) -> str:
    """Return a file as text.  Raises OSError, also for anything but a file, and UnicodeDecodeError."""
    return read_foreign(path).decode("utf-8")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.  Raises what `reading` turns into one line."""
    return json.loads(read_text(path))


def reading_fault(error: Exception) -> str:
    """The fault of a file, in words, by the error that reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} is not JSON: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"line {1 + error.object.count(NEW_LINE, 0, error.start)} is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if str(error).endswith("does not fit") else "it is cut off or changed"


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """CSV with a header; an unknown value is an empty cell, a float keeps all its digits.

    Texts that a spreadsheet would compute are quoted with an apostrophe: they may be of a device.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_text(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def as_text(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers, also those that are written out."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        with suppress(ValueError):
            float(value)
            return value
        return f"'{value}"
    return value
