"""Every error that this project raises on purpose, as one tree.

    EdgeError                     exit code 1
    ├── UsageError                exit code 2: the user's input is wrong (file, key, flag, environment)
    │   └── MissingExtra          an optional package is needed; the message says which extra to install
    ├── ProtocolError
    │   ├── LocalProtocolError    we were about to send something illegal: a fault on this side
    │   └── RemoteProtocolError   the peer sent something illegal: refused, counted, attributed, no effect
    ├── Refused                   the coordinator will not have this device, and says why and what to do
    ├── TransportError            the broker cannot be reached, refused us, or was lost for too long
    ├── StoreError                the disk is full, unwritable or holds something that is not ours
    ├── ModelError                a model does not do what its owner declared (shape, width, layer name)
    │   ├── Unsupported           a model lacks a capability or a loss term that the method needs
    │   └── Diverged              what a model learned is no longer finite: withheld, and undone
    └── RunFailed                 the federation ended without a result
        └── EmptyRound            an exchange ended with nothing to aggregate: never a guess

Each message says what happened, where, and what to do about it.  `code` is the word that travels on the
wire and stands in reports; `exit_code` is what the command line answers with.
"""

from __future__ import annotations


class EdgeError(Exception):
    """The root of the tree: catch this to catch everything that edge-sdk raises on purpose."""

    code = "error"
    exit_code = 1


class UsageError(EdgeError):
    """The user's input is wrong; one clear line, exit code 2."""

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


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol: the one error that decoding raises.

    `kind` is the short word under which the frame is counted: magic, version, length, checksum, signature,
    limit, msgpack, schema, tensor, nonfinite, topic, knowledge, chunk, busy, incomplete.
    """

    code = "remote-protocol"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Refused(EdgeError):
    """The coordinator refuses this device; `reason` is the word that stands in the Refusal."""

    code = "refused"

    def __init__(self, reason: str, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.reason = reason
        self.message = message
        self.remedy = remedy


class TransportError(EdgeError):
    """The broker cannot be reached, refused the connection, or was lost for too long."""

    code = "transport"


class StoreError(EdgeError):
    """Durable state cannot be written or read."""

    code = "store"


class ModelError(EdgeError):
    """A model does not behave as declared."""

    code = "model"


class Unsupported(ModelError):
    """A model lacks what was asked of it."""

    code = "unsupported"


class Diverged(ModelError):
    """Loss, weights or knowledge are NaN, infinite or beyond what is legal."""

    code = "diverged"


class RunFailed(EdgeError):
    """The federation ended without a result."""

    code = "run-failed"


class EmptyRound(RunFailed):
    """Nothing arrived that could be aggregated."""

    code = "empty-round"
