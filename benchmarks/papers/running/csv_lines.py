"""The lines of a CSV file with their numbers, so that an error names the one that is damaged."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from edge_sdk.errors import UsageError

HEADER = 1
"""The number of the line that names the columns."""


def read(path: Path) -> Iterator[tuple[int, list[str]]] | None:
    """Return the number and the values of each line that is not empty, or None where there is no file.

    Raises UsageError where it cannot be read, at once or at the line that is no CSV.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise damaged(path, error.object.count(b"\n", 0, error.start) + 1, "not UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); move what is there out of the way") from None
    return _numbered(path, text)


def damaged(path: Path, line: int, fault: str) -> UsageError:
    """Return the error that names a line, what is wrong with it, and what to do."""
    remedy = "remove this line, and its cell is run again"
    if line == HEADER:
        remedy = "restore the file, or remove it, and its cells are run again"
    return UsageError(f"{path}:{line}: {fault}; {remedy}")


def _numbered(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader, line = csv.reader(io.StringIO(text, newline=""), strict=True), HEADER
    try:
        for values in reader:
            if values:
                yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        raise damaged(path, line, str(error)) from None
