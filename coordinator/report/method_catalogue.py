"""The registered methods: what each exchanges, and what it needs, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.record import remarks
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.protocol import knowledge
from edge_sdk.protocol.frames.schema import tag_of
from edge_sdk.protocol.knowledge import Slot
from edge_sdk.protocol.transforms import encodings_for
from edge_sdk.protocol.wires import Exchange, slots_of


def describe_methods() -> list[dict[str, Any]]:
    """One row for each registered method that loads and has defaults for all its parameters."""
    methods = [load_method(name) for name in method_names() if not method_fault(name)]
    return [_row(method()) for method in methods if not needed_parameters(method)]


def _row(method: Method[Any]) -> dict[str, Any]:
    exchanges, closing = method.exchanges, method.closing
    slots = slots_of(exchanges)
    return {
        "name": method.name,
        "title": method.title,
        "citation": method.citation,
        "contract": method.digest.hex(),
        "exchanges_per_round": len(exchanges),
        "exchanges": [_exchange(row) for row in exchanges],
        "closing": _exchange(closing),
        "bytes_per_round": {way: _bytes(exchanges, way) for way in ("up", "down")},
        "up": sorted({f"{role}: {slot.kind.__name__}" for row in exchanges for role, slot in row.up.items()}),
        "down": sorted({_down(role, slot) for row in (*exchanges, closing) for role, slot in row.down.items()}),
        "encodings": {tag_of(s.kind): list(encodings_for(s.kind, probabilities=s.probabilities)) for s in slots},
        "needs": sorted(method.needs),
        "enough_to_teach": sorted(method.teaches),
        "needs_public_set": method.needs_public_set,
        "runs_nets": method.runs_nets,
        "same_width": method.same_width,
        "shares_weights": method.shares_weights,
        "models": list(method.measured_models),
        "same_layout": method.same_layout,
        "discloses": method.discloses,
        "warnings": list(remarks.cautions(method)),
        "parameters": method.table,
    }


def _bytes(exchanges: Sequence[Exchange], way: str) -> dict[str, Any]:
    """The most bytes of one device: it holds every class, and every optional role is filled."""
    coefficients = scalars(slot for row in exchanges for slot in getattr(row, way).values())
    return {"formula": formula(coefficients), "example": in_bytes(coefficients)}


def _exchange(row: Exchange) -> dict[str, Any]:
    """Describe what is sent each way, by role: all that an implementation in another language needs."""
    return {
        way: {role: _slot(slot) for role, slot in slots.items()} for way, slots in (("down", row.down), ("up", row.up))
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {"kind": tag_of(slot.kind), "personal": slot.personal, "optional": slot.optional, "rows": slot.rows}


def _down(role: str, slot: Slot) -> str:
    return f"{role}: {slot.kind.__name__}{' (personal)' if slot.personal else ''}"


def catalogue_text(rows: list[dict[str, Any]]) -> str:
    """The methods as paragraphs for the terminal; rows: from `describe_methods`."""
    sizes = EXAMPLE
    legend = (
        "bytes: of one device in a round, at most; K classes, feature width d, P weights; the number is for "
        f"K = {sizes.classes}, d = {sizes.feature_dim}, P = {sizes.weights:,}"
    )
    return "\n\n".join([*map(_paragraph, rows), legend])


def _paragraph(row: Mapping[str, Any]) -> str:
    parameters = ", ".join(f"{key} = {value}" for key, value in row["parameters"].items()) or "none"
    lines = [
        f"{row['name']}: {row['title']} ({row['citation']})",
        f"  exchanges   {row['exchanges_per_round']} a round",
        f"  up          {', '.join(row['up']) or 'nothing'}",
        f"  down        {', '.join(row['down']) or 'nothing'}",
        f"  bytes       {_weight(row)}",
        f"  encodings   {_encodings(row)}",
        f"  needs       {_needs(row)}",
        f"  may teach   {', '.join(row['enough_to_teach']) or 'nobody without learning'}",
        f"  weights     {_weights(row)}",
        f"  discloses   {row['discloses']}",
        f"  parameters  {parameters}",
        *(f"  warns       {warning}" for warning in row["warnings"]),
    ]
    return "\n".join(lines)


def _weight(row: Mapping[str, Any]) -> str:
    found = row["bytes_per_round"]
    return "; ".join(f"{way} {each['formula']} = {each['example']:,}" for way, each in found.items())


def _encodings(row: Mapping[str, Any]) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in row["encodings"].items()) or "nothing to encode"


def _needs(row: Mapping[str, Any]) -> str:
    more = {
        "a public set": row["needs_public_set"],
        "nets and a public set on the coordinator": row["runs_nets"],
        "the federation's feature_dim": row["same_width"],
    }
    return "; ".join([", ".join(row["needs"]), *(what for what, wanted in more.items() if wanted)])


def _weights(row: Mapping[str, Any]) -> str:
    if "proxy" in row["needs"]:
        return "of the proxy leave the device, the own model's never"
    if row["shares_weights"]:
        return "leave the device" + ("; one architecture" if row["same_layout"] else "; averaged by architecture")
    if {"head-rows", "head-weights"} & set(row["needs"]):
        return "of the last layer leave the device, the others never"
    return "never leave the device"


# -- The bytes of a method's knowledge on the wire, as a formula in the sizes of a federation -------------------------
# K: classes, all of them held.  d: width of the features.  P: weights of the shared model, bias included.  Everything
# is counted as four bytes, class ids and counts included; frames, at most a few hundred bytes each, are not.

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
