"""All errors that this project raises on purpose, as one tree.

    EdgeError                     exit code 1
    ├── UsageError                exit code 2: the user's input is wrong (file, key, flag, environment)
    │   └── MissingExtra          an optional package is needed; the message says which extra to install
    ├── ProtocolError
    │   ├── LocalProtocolError    this side was about to send something illegal
    │   └── RemoteProtocolError   the other side sent something illegal; it is counted and has no effect
    ├── Refused                   this device cannot take part; the message says why and what to do
    ├── TransportError            the broker cannot be reached, refused this client, or was lost for too long
    ├── StoreError                the disk is full, unwritable, or holds a file of another program
    │   ├── InUse                 this or another process uses a file
    │   └── Damaged               a file is not as it was written; the message says what is lost and what to do
    ├── ModelError                a model does not do what its owner declared (shape, width, layer name)
    │   ├── Unsupported           a model lacks a capability or a loss term that the method needs
    │   └── LearningLost          a round's result is not uploaded, and is undone
    │       ├── Diverged          training led to numbers that are not finite
    │       ├── TrainingFailed    training raised an error, such as MemoryError
    │       ├── NotReleased       the upload may not leave the device; its owner gets the reason
    │       ├── NoSamples         no labelled sample is left to train on
    │       └── RefusedKnowledge  the coordinator sent knowledge that the device cannot use
    └── RunFailed                 the federation ended without a result
        └── EmptyRound            an exchange ended without anything to aggregate

Each message says what happened, where, and what to do about it.  `code` is the word for the error in messages and
reports; `exit_code` is the exit code of the command line.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Collection
from pathlib import Path


def meant(word: str, known: Collection[str]) -> str:
    """Return `did you mean X? ` for a word that is close to a known one, otherwise an empty text."""
    close = difflib.get_close_matches(word, sorted(known), 1)
    return f"did you mean {close[0]}? " if close else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that memory ran out; torch has no separate class for the processor's memory."""
    if isinstance(error, RuntimeError):
        return any(words in str(error).lower() for words in _NO_MEMORY)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""Torch's words, for a processor on POSIX and on Windows, and for a GPU."""


class EdgeError(Exception):
    """The root of the tree: an `except EdgeError` catches everything that edge-sdk raises on purpose."""

    code = "error"
    exit_code = 1


class UsageError(EdgeError):
    """The user's input is wrong; the message is one clear line."""

    code = "usage"
    exit_code = 2


class MissingExtra(UsageError):
    """An optional package is not installed."""

    code = "missing-extra"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'edge-sdk[{extra}]'")


class ProtocolError(EdgeError):
    """A frame breaks the rules of the protocol."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """Our own side was about to break the protocol."""

    code = "local-protocol"


REFUSAL_WORDS = frozenset(
    {
        *("limit", "magic", "version", "length", "checksum", "signature", "msgpack", "schema", "tensor", "nonfinite"),
        *("encryption", "topic", "rate", "stranger", "replayed", "knowledge", "chunk", "busy", "incomplete"),
        *("duplicate", "stale", "refused"),
    }
)
"""The words under which refused frames are counted; docs/reference/protocol.md explains each one."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; the only error that decoding raises.

    kind: the word under which the frame is counted, one of REFUSAL_WORDS.
    """

    code = "remote-protocol"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Refused(EdgeError):
    """The device cannot take part in the federation; reason: a word, such as the one in the coordinator's Refusal."""

    code = "refused"

    def __init__(self, reason: str, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.reason = reason
        self.message = message
        self.remedy = remedy


class TransportError(EdgeError):
    """The broker cannot be reached, refused this client, or was lost for too long."""

    code = "transport"


class StoreError(EdgeError):
    """State on the disk cannot be written or read."""

    code = "store"


class InUse(StoreError):
    """A file that only one may use at a time is in use, by this or another process."""

    code = "in-use"


class Damaged(StoreError):
    """A file is not as it was written.

    path: the file. found: the evidence. lost: its former content. remedy: for its owner.
    """

    code = "damaged"

    def __init__(
        self, path: Path | None, found: str, lost: str = "what it held", remedy: str = "move it away to start afresh"
    ) -> None:
        self.short = f"{path}: is damaged ({found}); lost: {lost}"
        super().__init__(f"{self.short}; {remedy}")
        self.path, self.found = path, found


class ModelError(EdgeError):
    """A model does not behave as declared."""

    code = "model"


class Unsupported(ModelError):
    """A model lacks a capability or a loss term that the method needs."""

    code = "unsupported"


class LearningLost(ModelError):
    """A round's result is not uploaded, and is undone; `remedy` is for the device's owner."""

    code = "learning-lost"
    remedy = "look at this device's log"


class Diverged(LearningLost):
    """Loss, weights or knowledge are NaN, infinite or beyond the legal magnitude."""

    code = "diverged"
    remedy = "lower train.learning_rate, and look for extreme values in this device's samples"


class TrainingFailed(LearningLost):
    """The model, its loss or the samples raised an error while an exchange was computed."""

    code = "training-failed"


class NotReleased(LearningLost):
    """An upload may not leave the device; only `remedy` has the reason, and stays on the device."""

    code = "not-released"

    def __init__(self, why: str = "look at this device's log") -> None:
        super().__init__("nothing was released of this device's data")
        self.remedy = why


class NoSamples(LearningLost):
    """The device has no labelled sample left to train on."""

    code = "no-samples"
    remedy = "label some samples on this device"


class RefusedKnowledge(LearningLost):
    """The coordinator's knowledge for a round is illegal, or does not fit the device's model."""

    code = "refused-knowledge"
    remedy = "the coordinator's operator gets the reason; nothing needs to be done on this device"


class RunFailed(EdgeError):
    """The federation ended without a result."""

    code = "run-failed"


class EmptyRound(RunFailed):
    """An exchange ended without anything to aggregate."""

    code = "empty-round"
