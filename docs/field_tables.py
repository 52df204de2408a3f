"""Tables of a dataclass's fields, from its source: what stands in a page is what is read."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
import typing
from typing import Annotated, Any

from edge_sdk.protocol.schema import Integer, Real, Text


def fields_table(table: type, *names: str) -> list[str]:
    """All fields, or some: key, default and the words that follow it in the source."""
    rows = [f"| `{each.name}` | {_default(each)} | {_words(table, each.name)} |" for each in _chosen(table, names)]
    return ["| key | default | |", "|---|---|---|", *rows]


def ranges_table(table: type, *names: str) -> list[str]:
    """The same, with what is allowed."""
    hints = typing.get_type_hints(table, include_extras=True)
    rows = [
        f"| `{each.name}` | {_allowed(hints[each.name])} | {_default(each)} | {_words(table, each.name)} |"
        for each in _chosen(table, names)
    ]
    return ["| key | allowed | default | |", "|---|---|---|---|", *rows]


def _chosen(table: type, names: tuple[str, ...]) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(table) if not names or each.name in names]


def _words(table: type, name: str) -> str:
    found = re.search(rf'^    {name}: [^\n]*\n    """(.+?)"""', inspect.getsource(table), re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _default(field: dataclasses.Field[Any]) -> str:
    """As TOML has it."""
    value = field.default
    if value is dataclasses.MISSING:
        return "needed"
    if value is None or value in ("", ()):
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else f"{value}"


def _allowed(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _rule(args[1]) or _allowed(args[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(filter(None, (_allowed(each) for each in args if each is not types.NoneType)))
    if origin is tuple:
        return f"a list of {_allowed(args[0])}"
    return {bool: "true, false", str: "text"}.get(hint, "")


def _rule(rule: object) -> str:
    if isinstance(rule, Integer):
        return f"{_number(rule.low)} to {_number(rule.high)}"
    if isinstance(rule, Real):
        return f"{_number(rule.low)} to {_number(rule.high)}"
    if isinstance(rule, Text) and re.fullmatch(r"[a-z0-9|-]+", rule.pattern):
        return ", ".join(f"`{word}`" for word in rule.pattern.split("|"))
    return "text" if isinstance(rule, Text) else ""


def _number(value: float) -> str:
    """Long ones as powers of ten or of two."""
    for base, least in ((10, 5), (2, 20)):
        for less, words in ((0, ""), (1, " - 1")):
            exponent = round(math.log(value + less, base)) if value > 0 else 0
            if abs(exponent) >= least and math.isclose(value + less, float(base) ** exponent, rel_tol=1e-12):
                return f"{base}^{exponent}{words}"
    return f"{value:g}"
