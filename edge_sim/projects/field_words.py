"""What the source of a dataclass says about its fields: their words, and what their annotations allow."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import re
import textwrap
import types
import typing
from typing import Annotated, Any, Literal

from edge_sdk.protocol.schema import Integer, Real, Text


def words(table: type, name: str) -> str:
    """Return the words that follow a field in the source, on one line; a base class may hold them; empty: none."""
    return next((found[name] for found in map(_words_of, table.__mro__[:-1]) if name in found), "")


@functools.cache
def _words_of(table: type) -> dict[str, str]:
    """Return the words of each field that a class itself defines."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    body = defined.body if isinstance(defined, ast.ClassDef) else []
    found = {}
    for field, after in itertools.pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(ast.literal_eval(after.value).split())  # type: ignore[attr-defined]  # is_text
    return found


def allowed_values(hint: Any) -> str:
    """Return in words what an annotation allows; empty: it says nothing about that."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _rule(args[1]) or allowed_values(args[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(filter(None, (allowed_values(each) for each in args if each is not types.NoneType)))
    if origin is tuple:
        return f"a list of {allowed_values(args[0])}"
    return {bool: "true, false", str: "text"}.get(hint, "")


def _rule(rule: object) -> str:
    if isinstance(rule, Integer | Real):
        return f"{_number(rule.low)} to {_number(rule.high)}"
    if isinstance(rule, Text) and re.fullmatch(r"[a-z0-9|-]+", rule.pattern):
        return ", ".join(f"`{word}`" for word in rule.pattern.split("|"))
    return "text" if isinstance(rule, Text) else ""


def _number(value: float) -> str:
    """Write a number; long ones as powers of ten or of two."""
    for base, least in ((10, 5), (2, 20)):
        for less, said in ((0, ""), (1, " - 1")):
            exponent = round(math.log(value + less, base)) if value > 0 else 0
            if abs(exponent) >= least and math.isclose(value + less, float(base) ** exponent, rel_tol=1e-12):
                return f"{base}^{exponent}{said}"
    return f"{value:g}"
