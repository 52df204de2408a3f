"""TOML: text to tables with the standard library (tomli on Python 3.10), tables to text with tomli_w."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from edge_sdk.errors import MissingExtra, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def loads(text: str, where: str) -> dict[str, Any]:
    """The tables of a text.  Raises UsageError, which begins with `where`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML; or a number or a nesting beyond what Python reads
        raise UsageError(f"{where}: not valid TOML: {error}") from None


def dumps(tables: Mapping[str, Any]) -> str:
    """Text that `loads` reads back as these tables.  None may not stand in them.  Raises MissingExtra."""
    check_writer()
    import tomli_w

    rows = {key: value for key, value in tables.items() if _are_flat_tables(value)}
    parts = [tomli_w.dumps({key: value for key, value in tables.items() if key not in rows})]
    for key, each in rows.items():
        header = f"[{tomli_w.dumps({key: {}}).strip()}]\n"  # the key is quoted where it must be
        parts += [header + tomli_w.dumps(row) for row in each]
    return "\n".join(filter(None, parts))


def _are_flat_tables(value: object) -> bool:
    """Whether a value is a list of tables, each of which may have a [[header]] of its own, as tomli_w never writes."""
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(isinstance(row, Mapping) and not any(isinstance(v, Mapping) for v in row.values()) for row in value)
    )


def check_writer() -> None:
    """Raise MissingExtra where `dumps` could not write: before the work whose result it is to write down."""
    if importlib.util.find_spec("tomli_w") is None:
        raise MissingExtra("tomli-w", "toml", "writing a TOML file")
