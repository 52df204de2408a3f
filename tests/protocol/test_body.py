"""A body in pieces is, joined, what msgpack makes of the whole."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from edge_sdk.protocol.frames.body import array_bytes, joined_parts, pack, pack_value


@pytest.mark.parametrize("count", [1, 65_535, 65_536, 2**20, 2**20 + 1])
def test_bytes_of_any_length_beside_other_values(count: int) -> None:
    array = np.arange(count, dtype=np.uint8)
    joined = b"".join(joined_parts(pack(["tag", {"values": array_bytes(array), "count": count}])))
    assert joined == msgpack.packb(["tag", {"values": array.tobytes(), "count": count}])


def test_what_is_ready_stands_for_its_value_wherever_it_is() -> None:
    value = {"rows": ["f4", [2], bytes(8)]}
    packed = pack_value(value)
    assert b"".join(joined_parts(pack({"a": packed, "b": [packed, 1.5]}))) == msgpack.packb(
        {"a": value, "b": [value, 1.5]}
    )
