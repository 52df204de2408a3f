"""The fields of a dataclass: their names, and a fast way to all values."""

import dataclasses

from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.records import field_names, getter


@dataclasses.dataclass(frozen=True)
class Lone:
    """A class with one field."""

    items: tuple[int, ...] = ()


def test_values_come_in_the_order_of_the_names() -> None:
    assert field_names(Stamp) == tuple(field.name for field in dataclasses.fields(Stamp))
    assert getter(Stamp)(Stamp(3, 4)) == dataclasses.astuple(Stamp(3, 4))
    assert getter(Lone)(Lone((1, 2))) == ((1, 2),)
