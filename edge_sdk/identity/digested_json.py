"""JSON files with a digest of their contents, so that no bit changes unnoticed on a disk or on the way to a board.

The digest does not protect against tampering: anyone who can write the file can also write the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from edge_sdk.protocol.foreign_json import foreign_json

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
