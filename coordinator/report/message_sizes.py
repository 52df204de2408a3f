"""The bytes of a method's knowledge on the wire, as a formula in the sizes of a federation.

K: classes, all of them held.  d: width of the features.  P: weights of the shared model, bias included.  Everything is
counted as four bytes, class ids and counts included; frames, at most a few hundred bytes each, are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_sdk.protocol import knowledge
from edge_sdk.protocol.knowledge import Slot

SCALAR_BYTES = 4
SYMBOLS = ("P", "K K d", "K d", "K K", "K", "")
"""The terms of a formula, in their order; the last one is a plain number."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a federation; the defaults are those of a CNN on ten classes, as in table G.2 of methods.md."""

    classes: int = knowledge.EXAMPLE_SIZES.classes
    feature_dim: int = knowledge.EXAMPLE_SIZES.feature_dim
    weights: int = knowledge.EXAMPLE_SIZES.weight_count


EXAMPLE = Sizes()


def scalars(slots: Iterable[Slot]) -> Counter[str]:
    """The coefficients, by symbol, of the numbers that these slots hold when all of them are filled."""
    total: Counter[str] = Counter()
    for slot in slots:
        for symbol, count in slot.kind.scalars(slot).items():
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
    values = {"P": sizes.weights, "K K d": k * k * d, "K d": k * d, "K K": k * k, "K": k, "": 1}
    return SCALAR_BYTES * sum(count * values[symbol] for symbol, count in coefficients.items())
