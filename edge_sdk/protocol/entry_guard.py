"""The guard of every entry from the network: whatever bytes a stranger sends end nothing but themselves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from edge_sdk.errors import EdgeError, RemoteProtocolError
from edge_sdk.protocol.leaves import one_line

log = logging.getLogger(__name__)


class EntryGuard:
    """Counts what one entry refuses, and logs it in one line: the first message of a word, the tenth, hundredth ..."""

    def __init__(self, entry: str) -> None:
        """entry: what it is called in the log."""
        self._entry = entry
        self.refused = Counter[str]()
        """Refused messages by the word for what was wrong, one of REFUSAL_WORDS."""

    @contextmanager
    def message(self, source: str) -> Iterator[None]:
        """Take in one message; if it is illegal, the `with` block ends, and what follows goes on.

        source: where it came from.  Errors of this side's own, such as StoreError of a full disk, are raised.
        """
        try:
            with legible():
                yield
        except RemoteProtocolError as error:
            self.refuse(error.kind, f"refused a message on {source}: {error}")

    def refuse(self, word: str, line: str) -> None:
        """Count a refused message under its word."""
        self.refused[word] += 1
        total = self.refused[word]
        if is_told(total):
            log.warning("%s: %s%s", self._entry, one_line(line, 512), f" (the {total}th)" if total > 1 else "")


def is_told(total: int, count: int = 1) -> bool:
    """Whether the last `count` of `total` refused messages hold the first one, the tenth, the hundredth ..."""
    return total == count or len(str(total)) > len(str(total - count))


@contextmanager
def legible() -> Iterator[None]:
    """Raise RemoteProtocolError in place of whatever else a stranger's bytes make the code in the block raise.

    An EdgeError is raised as it is: a full disk is not the sender's fault.
    """
    try:
        yield
    except EdgeError:
        raise
    except Exception as error:  # bytes can raise anything: RecursionError, MemoryError, UnicodeError ...
        raise RemoteProtocolError("schema", f"it does not read ({type(error).__name__})") from error
