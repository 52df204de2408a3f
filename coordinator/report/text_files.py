"""Files that are replaced at once, so that a reader never sees half of one.  Text is UTF-8 with its own line ends."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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


def reading_fault(error: Exception) -> str:
    """What is wrong with a file, in words, by the error that reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} is not JSON: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"line {1 + error.object.count(NEW_LINE, 0, error.start)} is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it lacks {error}" if isinstance(error, KeyError) else "it is cut off or changed"


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """CSV with a header; an unknown value is an empty cell, a float keeps all its digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def by_reason(counts: Mapping[str, int]) -> str:
    """Counts by the word of a reason, such as `charging 1; temperature 3`."""
    return "; ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
