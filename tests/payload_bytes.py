"""The size of a payload, by which tests measure what travels."""

from __future__ import annotations

import dataclasses

import numpy as np

from edge_sdk.protocol.knowledge import Payload


def payload_bytes(payload: Payload) -> int:
    """Return the bytes of the tensors in a payload, without framing."""
    values = (getattr(payload, field.name) for field in dataclasses.fields(payload))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
