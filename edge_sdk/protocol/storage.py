"""Registered objects as bytes, for state that stays on this machine."""

from __future__ import annotations

from typing import TypeVar

import msgpack

from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol import body, schema

_T = TypeVar("_T")


def to_bytes(value: object) -> bytes:
    """A @wire object as bytes, without a frame."""
    return b"".join(body.flat(body.pack(schema.to_plain(value))))


def from_bytes(cls: type[_T], state: bytes) -> _T:
    """The object that to_bytes stored.  Raises StoreError for anything else."""
    try:
        return schema.from_plain(cls, msgpack.unpackb(state))
    except (RemoteProtocolError, ValueError, TypeError) as error:
        raise StoreError(f"saved {cls.__name__} does not read ({error}): remove the state folder") from error
