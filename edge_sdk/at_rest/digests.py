"""SHA-256 digests of data on disk, so that reading detects a flipped bit."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from edge_sdk.errors import Damaged

COLUMN = "digest BLOB"
"""The declaration of a row's digest in a schema; it is the last column of its table."""


def row_digest(*values: bytes | str | float | None) -> bytes:
    """Return the digest of a row's values, 32 bytes; type and length of each value are hashed, too."""
    found = hashlib.sha256()
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        found.update(b"%c%d:" % (type(value).__name__[0].encode(), len(data)))
        found.update(data)
    return found.digest()


def with_digest(*values: Any) -> tuple[Any, ...]:
    """Return a row with its digest appended, ready to be written."""
    return (*values, row_digest(*values))


def checked_row(path: Path | None, row: Collection[Any]) -> tuple[Any, ...]:
    """Check a row against its digest, the last value, and return it without.  Raises Damaged."""
    *values, digest = row
    if digest != row_digest(*values):
        raise Damaged(path, "a row does not match its digest")
    return tuple(values)


def declared(schema: str) -> Iterator[tuple[str, bool]]:
    """Yield the statements of a schema, and whether each makes a table whose rows have digests."""
    for statement in schema.split(";"):
        if statement.strip():
            yield statement.strip(), COLUMN in statement


def digest_rows(connection: sqlite3.Connection, schema: str) -> None:
    """Add digests to rows from before there were digests; existing digests are kept."""
    for table in _tables(schema):
        columns = _columns(connection, table)
        if "digest" not in columns:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN}")
        values = ", ".join(name for name in columns if name != "digest")
        connection.execute(f"UPDATE {table} SET digest = digest({values}) WHERE digest IS NULL")  # noqa: S608  # our names


def damaged_table(connection: sqlite3.Connection, schema: str) -> str:
    """Return the name of a table with a row that contradicts its digest, or empty without one."""
    for table in _tables(schema):
        values = ", ".join(name for name in _columns(connection, table) if name != "digest")
        query = f"SELECT 1 FROM {table} WHERE digest IS NOT digest({values}) LIMIT 1"  # noqa: S608  # our names
        if connection.execute(query).fetchone():
            return table
    return ""


def _tables(schema: str) -> Iterator[str]:
    for statement, has_digests in declared(schema):
        if has_digests:
            yield statement.split("EXISTS", 1)[1].split()[0]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def json_with_digest(value: Any) -> bytes:
    """Return a plain value as JSON, with its digest."""
    text = json.dumps(value).encode()
    return b'{"sha256": "%s", "value": %s}' % (hashlib.sha256(text).hexdigest().encode(), text)


def checked_json(path: Path, content: bytes, *, is_old: Callable[[Any], bool]) -> Any:
    """Return the value of a file's content written by `json_with_digest`.

    is_old: whether a value was written before there were digests.  Raises Damaged for anything else.
    """
    try:
        found = json.loads(content)
        if isinstance(found, dict) and found.keys() == {"sha256", "value"}:
            if hashlib.sha256(json.dumps(found["value"]).encode()).hexdigest() == found["sha256"]:
                return found["value"]
        elif is_old(found):
            return found
    except (ValueError, RecursionError):
        pass
    raise Damaged(path, "the content does not match its digest")
