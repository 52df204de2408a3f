"""Random numbers that decide on the faults of a frame, derived from the frame itself, not from a stream of numbers.

So additional frames, such as those of a restarted participant, do not change the faults of other frames, and a repeated
round, for example in a resumed run, meets the same faults.
"""

from __future__ import annotations

import hashlib
import struct

import msgpack

from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.codec import HEADER_BYTES, MAGIC, SIGNATURE_BYTES

NO_EXCHANGE = ExchangeId(-1, -1)
"""The id for frames outside an exchange, such as a Hello."""
_FLAGS_AT = 5
_FRONT_BYTES = 512
"""The part of a body that is read; round and exchange come before any long field."""
_DRAWS = struct.Struct("<6Q")


class FaultDraws:
    """Draws the random numbers of one broker."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sent: dict[tuple[str, str], tuple[ExchangeId, int]] = {}
        """By receiver and topic: the latest exchange of a frame sent there, and the number of frames since."""

    def draw(self, receiver: str, topic: str, frame: bytes) -> tuple[float, ...]:
        """Return six numbers in [0, 1) for a frame.

        They follow from the seed, the receiver, the topic, the frame's exchange, and the number of frames on this topic
        to this receiver since the latest exchange began.
        """
        exchange = exchange_of(frame)
        latest, count = self._sent.get((receiver, topic), (exchange, -1))
        latest, count = (exchange, 0) if exchange > latest else (latest, count + 1)
        self._sent[receiver, topic] = latest, count
        name = f"{self._seed}\n{receiver}\n{topic}\n{tuple(exchange)}\n{count}"
        digest = hashlib.blake2b(name.encode(), digest_size=_DRAWS.size).digest()
        return tuple((number >> 11) * 2.0**-53 for number in _DRAWS.unpack(digest))


def exchange_of(frame: bytes) -> ExchangeId:
    """Read the exchange of a frame; NO_EXCHANGE if it names none, or is not a frame."""
    if not frame.startswith(MAGIC) or len(frame) <= HEADER_BYTES:
        return NO_EXCHANGE
    begin = HEADER_BYTES + (SIGNATURE_BYTES if frame[_FLAGS_AT] & 1 else 0)
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame[begin : begin + _FRONT_BYTES])
    found: dict[str, int] = {}
    try:
        unpacker.read_array_header()
        unpacker.skip()
        for _ in range(unpacker.read_map_header()):
            name = unpacker.unpack()
            if name in {"round", "exchange"}:
                found[name] = int(unpacker.unpack())
                if len(found) == 2:
                    return ExchangeId(found["round"], found["exchange"])
            else:
                unpacker.skip()
    except (msgpack.UnpackException, ValueError, TypeError):
        pass
    return NO_EXCHANGE
