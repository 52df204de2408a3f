"""What becomes of frames under faults: drawn for what a frame is, never as the next number of a stream.

So a frame more or less, such as those of a participant that starts again, changes nothing for the others, and whoever
repeats a round, in a resumed run, say, meets the same faults in it.
"""

from __future__ import annotations

import hashlib
import struct

import msgpack

from edge_sdk.protocol.codec import HEADER_BYTES, MAGIC, SIGNATURE_BYTES

Place = tuple[int, int]
"""Round and exchange."""

NOWHERE: Place = (-1, -1)
"""Of frames that belong to no round, such as a greeting."""
_FLAGS_AT = 5
_FRONT_BYTES = 512
"""Round and exchange stand before whatever is long."""
_DRAWS = struct.Struct("<6Q")


class FaultDraws:
    """The draws of one broker."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sent: dict[tuple[str, str], tuple[Place, int]] = {}
        """By receiver and topic: the latest place that went there, and how many frames since."""

    def draw(self, receiver: str, topic: str, frame: bytes) -> tuple[float, ...]:
        """Six numbers in [0, 1).

        They follow from the seed, the receiver, the topic, the frame's place and how often something went there before;
        that count begins anew with every later place.
        """
        place = place_of(frame)
        latest, count = self._sent.get((receiver, topic), (place, -1))
        latest, count = (place, 0) if place > latest else (latest, count + 1)
        self._sent[receiver, topic] = latest, count
        name = f"{self._seed}\n{receiver}\n{topic}\n{place}\n{count}"
        digest = hashlib.blake2b(name.encode(), digest_size=_DRAWS.size).digest()
        return tuple((number >> 11) * 2.0**-53 for number in _DRAWS.unpack(digest))


def place_of(frame: bytes) -> Place:
    """The round and the exchange that a frame says it belongs to; NOWHERE for any that says nothing of it."""
    if not frame.startswith(MAGIC) or len(frame) <= HEADER_BYTES:
        return NOWHERE
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
                    return found["round"], found["exchange"]
            else:
                unpacker.skip()
    except (msgpack.UnpackException, ValueError, TypeError):
        pass
    return NOWHERE
