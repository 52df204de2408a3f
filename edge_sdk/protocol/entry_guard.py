"""Guards every entry from the network, so that illegal bytes only cause their own refusal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

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
