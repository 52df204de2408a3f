"""The bytes of a method's knowledge on the wire, as a formula in the sizes of a federation.

K: classes, all of them held.  d: width of the features.  P: weights of the shared model, bias included.  Everything is
counted as four bytes, class ids and counts included; frames, at most a few hundred bytes each, are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Weights
from edge_sdk.protocol.wires import Slot

SCALAR_BYTES = 4
SYMBOLS = ("P", "K d", "K K", "K", "")
"""The terms of a formula, in their order; the last one is a plain number."""
_BESIDE_ROWS = 2
"""Numbers beside the rows of each class: its id and its count."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a federation; the defaults are those of a CNN on ten classes, as in table G.2 of methods.md."""

    classes: int = 10
    feature_dim: int = 500
    weights: int = 2_621_558


EXAMPLE = Sizes()


def scalars(slots: Iterable[Slot]) -> Counter[str]:
    """The coefficients, by symbol, of the numbers that these slots hold when all of them are filled."""
    total: Counter[str] = Counter()
    for slot in slots:
        for symbol, count in _coefficients(slot).items():
            total[symbol] += count
    return total


def formula(coefficients: Mapping[str, int]) -> str:
    """The formula as text, in bytes: `4 (P + 10 K)`."""
    words = []
    for symbol in SYMBOLS:
        count = coefficients.get(symbol, 0)
        if count:
            size = str(abs(count)) if abs(count) > 1 or not symbol else ""
            words.append(f"{'-' if count < 0 else '+'} {' '.join(filter(None, [size, symbol]))}")
    whole = " ".join(words).removeprefix("+ ")
    return f"{SCALAR_BYTES} ({whole})" if len(words) > 1 else f"{SCALAR_BYTES} {whole}" if words else "0"


def in_bytes(coefficients: Mapping[str, int], sizes: Sizes = EXAMPLE) -> int:
    """The value of the formula in bytes."""
    k, d = sizes.classes, sizes.feature_dim
    values = {"P": sizes.weights, "K d": k * d, "K K": k * k, "K": k, "": 1}
    return SCALAR_BYTES * sum(count * values[symbol] for symbol, count in coefficients.items())


def _coefficients(slot: Slot) -> Mapping[str, int]:
    if slot.kind is Weights:
        head = {"K d": -1, "K": -1} if slot.without_head else {}
        return {"P": 1, "": slot.extra_columns, **head}
    if slot.kind is HyperKnowledge:
        return {"K d": 1, "K K": 1, "K": _BESIDE_ROWS}
    if slot.kind is ClassRows:
        if slot.remainder:
            return {}
        wide = {"K K": 1} if slot.probabilities else {"K d": slot.times, "K K": int(slot.class_columns)}
        return {**wide, "K": slot.extra_columns + _BESIDE_ROWS}
    return {"K": slot.rows}  # logits, or their gradients
