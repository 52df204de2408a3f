"""Reads untrusted JSON strictly, so that later code meets no surprises."""

from __future__ import annotations

import json
import math
from typing import Any


def foreign_json(text: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises only ValueError for anything else, including a repeated name in one object, numbers that are not finite or
    have thousands of digits, half a surrogate pair, and deep nesting.
    """
    try:
        written = text.decode("utf-8-sig")
        plain = json.loads(written, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
        if "\\u" in written:  # an escape can name half a surrogate pair, which UTF-8 cannot encode
            json.dumps(plain, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is repeated")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:32]} is not a JSON number")
    return number
