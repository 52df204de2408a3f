"""A model file that a fleet is offered, as messages describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edge_sdk.protocol.frames.schema import Blob, Count, Digest, Id, Integer, Line, Text, wire

MAX_MODEL_BYTES = 256 * 2**20
"""The longest model file that a fleet is offered."""
Sha256 = Annotated[bytes, Blob(32, 32)]
MAX_BLOCKS_ASKED = 16
"""The maximum number of blocks in one request."""


@wire("offered-file")
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedFile:
    """A model file for the fleet, identified by its content.  It is data: no code travels."""

    sha256: Sha256
    total_bytes: Annotated[int, Integer(1, MAX_MODEL_BYTES)]
    name: Line = ""
    """Its name where it came from, for reports."""
    classes: Annotated[int, Integer(0, 65535)] = 0
    """The classes of its last layer, or 0 for an extractor, under the last layer of a device."""


@wire("offer-answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """The outcome of the last model file that a device was offered."""

    sha256: Sha256
    number: Count
    """The number of the offer."""
    state: Annotated[str, Text(16, "running|worse|refused|returned")]
    """The device learns with the file; it was worse on held-out samples; it cannot be taken; it was given back."""
    why: Line = ""
    samples: Count = 0
    """The device's own held-out samples on which the file was compared with the model before; 0 if unknown."""
    lost: Count = 0
    """Those of them that only the model before classified correctly."""
    won: Count = 0
    """Those that only the file did."""
    run: Digest
    """The id of the run of the offer."""


@wire("model-offer")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """The coordinator offers a model file to a device that accepts some, or takes it back.

    The device requests its blocks like those of the public set.  Sent again until a Hello answers it.
    """

    federation: Id
    device: Id
    file: OfferedFile
    number: Count
    """Counts the offers of a run; the device answers no lower number than the last."""
    back: bool = False
    """Whether the device goes back to the model that it had before this file."""
    run: Digest
    """The id of the run, as in Welcome."""
