"""SHA-256 digests of what is kept on a disk, so that a flipped bit is noticed when it is read."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from edge_sdk.errors import Damaged

COLUMN = "digest BLOB"
"""How a schema declares the column that holds a row's digest: the last one of its table."""


def row_digest(*values: bytes | str | float | None) -> bytes:
    """Return the digest of a row's values, 32 bytes; they are told apart by type and length."""
    found = hashlib.sha256()
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        found.update(b"%c%d:" % (type(value).__name__[0].encode(), len(data)))
        found.update(data)
    return found.digest()


def with_digest(*values: Any) -> tuple[Any, ...]:
    """Return a row with its digest behind it, as it is written."""
    return (*values, row_digest(*values))


def checked_row(path: Path | None, row: Collection[Any]) -> tuple[Any, ...]:
    """Return a row, read with its digest, without it.  Raises Damaged if they do not agree."""
    *values, digest = row
    if digest != row_digest(*values):
        raise Damaged(path, "a row does not have its digest")
    return tuple(values)


def declared(schema: str) -> Iterator[tuple[str, bool]]:
    """Yield the statements of a schema, and whether each makes a table whose rows have digests."""
    for statement in schema.split(";"):
        if statement.strip():
            yield statement.strip(), COLUMN in statement


def digest_rows(connection: sqlite3.Connection, schema: str) -> None:
    """Give the rows of tables that are older than their digests one; those that have one keep it."""
    for table in _tables(schema):
        columns = _columns(connection, table)
        if "digest" not in columns:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN}")
        values = ", ".join(name for name in columns if name != "digest")
        connection.execute(f"UPDATE {table} SET digest = digest({values}) WHERE digest IS NULL")  # noqa: S608  # our names


def damaged_table(connection: sqlite3.Connection, schema: str) -> str:
    """Return the name of a table with a row that does not agree with its digest; empty: all do."""
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
    """Return a plain value as JSON, with the digest of it."""
    return json.dumps({"sha256": _json_digest(value), "value": value}).encode()


def _json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def checked_json(path: Path, content: bytes, *, is_old: Callable[[Any], bool]) -> Any:
    """Return the value that `json_with_digest` made this content of a file from.

    is_old: whether a value is one that was written before there were digests.  Raises Damaged for all else.
    """
    try:
        found = json.loads(content)
        if isinstance(found, dict) and found.keys() == {"sha256", "value"}:
            if _json_digest(found["value"]) == found["sha256"]:
                return found["value"]
        elif is_old(found):
            return found
    except (ValueError, RecursionError):
        pass
    raise Damaged(path, "the content does not have its digest")
