"""Registered objects as bytes, for state that stays on this machine and so needs no frame."""

from __future__ import annotations

from typing import TypeVar

import msgpack

from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol.frames import body, records, schema

_T = TypeVar("_T")
_NOTHING = b"\x80"
"""An object without fields, such as the state of a method without memory."""


def serialise(value: object) -> bytes:
    """Return an object of a class registered with @wire as bytes."""
    cls: type = type(value)
    if not records.field_names(cls):
        return _NOTHING
    return b"".join(body.joined_parts(body.pack(schema.to_plain(value))))


def deserialise(cls: type[_T], state: bytes) -> _T:
    """Restore an object from the bytes of `serialise`.  Raises StoreError for other bytes."""
    try:
        return schema.from_plain(cls, msgpack.unpackb(state))
    except (RemoteProtocolError, ValueError, TypeError) as error:
        raise StoreError(
            f"the saved {cls.__name__} cannot be read ({error}): remove FEDERATION.db in the state folder"
        ) from error
