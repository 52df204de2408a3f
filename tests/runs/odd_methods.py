"""A method of a package of its own, which makes one mistake at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edge_sdk.methods import Exchange, Method, Slot
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.frames.schema import wire
from edge_sdk.protocol.knowledge import ClassRows

mistake = ""
"""Which mistake it makes; empty: none."""


@wire("odd-methods-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class OddState:
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OddTerm(CrossEntropy):
    name: ClassVar[str] = "odd"

    def value(self, seen: Any) -> Any:
        value = CrossEntropy.value(self, seen)
        return np.full(3, value) if mistake == "value" else value

    def slope(self, seen: Any) -> Any:
        return None if mistake == "slope" else CrossEntropy.slope(self, seen)


@dataclass(frozen=True, kw_only=True)
class Params:
    pass


class Odd(Method[Params]):
    name = "odd"
    title = "Odd: makes a mistake"
    citation = "this test"
    discloses = "nothing"
    exchanges = (Exchange(up={"rows": Slot(ClassRows)}),)
    terms = frozenset({"odd"})

    def begin(self, _spec: Any) -> Any:
        if mistake == "begin raises":
            raise KeyError("in begin")
        return {} if mistake == "begin" else OddState()

    def down(self, state: Any, at: Any) -> Any:
        return None if mistake == "down" else super().down(state, at)

    def train(self, device: Any) -> Any:
        if mistake == "train raises":
            raise KeyError("in train")
        yield from device.fit((OddTerm(),))

    def share(self, _device: Any) -> Any:
        yield from ()
        right = ClassRows(
            classes=np.zeros(1, np.int32), rows=np.zeros((1, 16), np.float32), counts=np.ones(1, np.int32)
        )
        return {"share": None, "payload": {"rows": right.rows}}.get(mistake, {"rows": right})

    def reduce(self, *_: Any) -> Any:
        if mistake == "reduce raises":
            raise KeyError("in reduce")
        return None if mistake == "reduce" else OddState()
