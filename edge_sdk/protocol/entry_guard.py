"""Guards every entry from the network, so that illegal bytes only cause their own refusal; reads JSON strictly.

A JSON file has a digest of its contents, which shows any bit that changed on a disk or on the way to a board.  It does
not protect against tampering: anyone who can write the file can also write the digest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edge_sdk.errors import EdgeError, RemoteProtocolError
from edge_sdk.protocol.frames.leaves import one_line

log = logging.getLogger(__name__)


class EntryGuard:
    """Counts the messages that one entry refuses, and logs the first, tenth, hundredth ... for each word."""

    def __init__(self, entry: str) -> None:
        """entry: its name in the log."""
        self._entry = entry
        self.refused = Counter[str]()
        """Refused messages by the word for the fault, one of REFUSAL_WORDS."""

    @contextmanager
    def message(self, source: str) -> Iterator[None]:
        """Process one message in a `with` block, and refuse it if it is illegal.

        source: where it came from.  This side's own errors, such as StoreError for a full disk, are raised.
        """
        try:
            with legible():
                yield
        except RemoteProtocolError as error:
            self.refuse(error.kind, f"refused a message on {source}: {error}")
            # An error of ours looks like one that a stranger's bytes cause; a developer needs its traceback.
            log.debug("%s: what made it unreadable", self._entry, exc_info=error.__cause__)

    def refuse(self, word: str, line: str) -> None:
        """Count a refused message under its word."""
        self.refused[word] += 1
        total = self.refused[word]
        if is_told(total):
            log.warning("%s: %s%s", self._entry, one_line(line, 512), f" (the {total}th)" if total > 1 else "")


def is_told(total: int, count: int = 1) -> bool:
    """Whether the last `count` of `total` refused messages include the first, the tenth, the hundredth ..."""
    return total == count or len(str(total)) > len(str(total - count))


@contextmanager
def legible() -> Iterator[None]:
    """Raise RemoteProtocolError in place of any error that illegal bytes cause in the `with` block.

    An EdgeError is raised unchanged: a full disk, for example, is not the sender's fault.
    """
    try:
        yield
    except EdgeError:
        raise
    except Exception as error:  # bytes can raise anything: RecursionError, MemoryError, UnicodeError ...
        raise RemoteProtocolError("schema", f"it cannot be read ({type(error).__name__})") from error


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
