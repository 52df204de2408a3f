"""Reads untrusted JSON strictly, so that later code meets no surprises; and JSON files with a digest of their contents.

The digest shows any bit that changed on a disk or on the way to a board.  It does not protect against tampering: anyone
who can write the file can also write the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
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


DIGEST = "sha256"
"""The name of the digest beside the contents."""


def digested_json(plain: Mapping[str, Any]) -> bytes:
    """Return the text of a file with these contents and their digest."""
    return json.dumps({**plain, DIGEST: _digest(plain)}, indent=1).encode() + b"\n"


def undigested_json(text: bytes) -> dict[str, Any]:
    """Return the contents of a file without their digest.  Raises ValueError if they contradict it, or are no object.

    A file without a digest is accepted unchecked.
    """
    plain = foreign_json(text)
    if not isinstance(plain, dict):
        raise ValueError("no object")  # noqa: TRY004  # a file is at fault, not the caller
    found = plain.pop(DIGEST, None)
    if found is not None and found != _digest(plain):
        raise ValueError("the contents do not fit their digest")
    return plain


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
