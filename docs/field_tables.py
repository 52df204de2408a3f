"""Tables of a dataclass's fields, from its source: what stands in a page is what is read."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from edge_sim.projects.commented_settings import allowed_values, words


def fields_table(table: type, *names: str) -> list[str]:
    """All fields, or some: key, default and the words that follow it in the source."""
    rows = [f"| `{each.name}` | {_default(each)} | {words(table, each.name)} |" for each in _chosen(table, names)]
    return ["| key | default | |", "|---|---|---|", *rows]


def ranges_table(table: type, *names: str) -> list[str]:
    """The same, with what is allowed."""
    hints = typing.get_type_hints(table, include_extras=True)
    rows = [
        f"| `{each.name}` | {allowed_values(hints[each.name])} | {_default(each)} | {words(table, each.name)} |"
        for each in _chosen(table, names)
    ]
    return ["| key | allowed | default | |", "|---|---|---|---|", *rows]


def _chosen(table: type, names: tuple[str, ...]) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(table) if not names or each.name in names]


def _default(field: dataclasses.Field[Any]) -> str:
    """As TOML has it."""
    value = field.default
    if value is dataclasses.MISSING:
        return "needed"
    if value is None or value in ("", ()):
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else f"{value}"
