"""`edge-sdk methods`: recommends one, lists all, describes some in full, or finds those that fit a model."""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.record import remarks
from coordinator.results.report.tables import Column, Table, show_table
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.protocol import knowledge
from edge_sdk.protocol.frames.schema import tag_of
from edge_sdk.protocol.knowledge import Slot
from edge_sdk.protocol.transforms import encodings_for
from edge_sdk.protocol.wires import Exchange, slots_of
from edge_sdk.terminal import folded, indented, room_of


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


BEGIN_WITH: tuple[tuple[str, str], ...] = (
    ("any models, black boxes too; samples without labels that all may hold", "fedmd"),
    ("the same, skewed data, several exchanges a round are fine", "fedal"),
    ("models with one feature width, which begin alike; weights stay", "fednh, share_body = false"),
    ("each device for its own few classes, no public samples; a hundred devices", "fedssa"),
    ("the same; ten devices", "fedproto"),
    ("one architecture; the last layer may leave, nothing else", "fedssa"),
    ("one architecture; all weights may leave; one model for all, or one each", "fednh"),
    ("the same, strong skew, a few devices in a round", "fedkf"),
    ("a guarantee for each training record (differential privacy)", "dp_prototypes"),
    ("hardly any bytes", "fd"),
    ("2 or 3 classes on each device, samples enough", "local"),
)
"""The situation of a user, and the method to begin with; measured in docs/results/choose-a-method.md."""
_PARTS = {"learns": "can learn", "teaches": "can teach", "none": "cannot take part"}


def command(args: argparse.Namespace) -> int:
    """Print the requested listing."""
    rows = describe_methods()
    if args.model is not None:
        fits = _fits(args.model, args.classes)
        wanted = {name: fits[name] for name in _chosen(args.names, sorted(fits))}
        sys.stdout.write(
            json.dumps(wanted, indent=2) + "\n" if args.json else _fits_text(args.model, wanted, room_of(sys.stdout))
        )
        return 0
    chosen = _chosen(args.names, [row["name"] for row in rows])
    found = [row for row in rows if row["name"] in chosen]
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    elif args.names:
        sys.stdout.write(catalogue_text(found) + "\n")
    else:
        show_table(_decisions(), sys.stdout)
        sys.stdout.write("\n")
        show_table(_lines(found), sys.stdout)
    sys.stderr.write("".join(f"edge-sdk methods: {why}\n" for why in map(_why_not_listed, method_names()) if why))
    return 0


def _why_not_listed(name: str) -> str:
    """Return why a registered method cannot be listed, or empty if it can."""
    fault = method_fault(name)
    if fault:
        return fault
    needed = ", ".join(f"method.{key}" for key in needed_parameters(load_method(name)))
    return f"method {name!r} is not listed: it needs {needed}, which has no default" if needed else ""


def _chosen(names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return the names that were given, or all.  Raises UsageError for an unknown method."""
    for name in names:
        if name not in known and name in method_names():
            raise UsageError(_why_not_listed(name))
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"no method {name!r}; {hint}edge-sdk methods lists them")
    return names or known


def _decisions() -> Table:
    columns = (Column("your devices have, or you want"), Column("begin with"))
    why = "measured in docs/results/choose-a-method.md; edge-sdk methods NAME describes one in full"
    return Table(columns=columns, rows=BEGIN_WITH, notes=(why,))


def _lines(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("method"),
        Column("what it is", optional=1),
        Column("leaves the device"),
        Column("public set", optional=3),
        Column("up, bytes", right=True, optional=2),
    )
    sizes = EXAMPLE
    of = f"{sizes.classes} classes, {sizes.feature_dim} features and {sizes.weights:,} weights"
    note = f"bytes: of one device in a round, at most, for {of}"
    return Table(columns=columns, rows=tuple(map(_line, rows)), notes=(note,))


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    about = row["title"].partition(": ")[2] or row["title"]
    public = "needed" if row["needs_public_set"] else "-"
    return (row["name"], about, _leaves(row), public, f"{row['bytes_per_round']['up']['example']:,}")


def _leaves(row: Mapping[str, Any]) -> str:
    """Name the knowledge that a device sends, in a word or two."""
    if row["shares_weights"]:
        return "a proxy's weights" if "proxy" in row["needs"] else "weights"
    kinds = {each.partition(": ")[2] for each in row["up"]}
    known = {"PublicLogits": "predictions", "LogitGradients": "predictions", "ClassRows": "rows by class"}
    return ", ".join(dict.fromkeys(known.get(kind, kind) for kind in sorted(kinds))) or "nothing"


def _fits(file: Path, classes: int | None) -> Mapping[str, Mapping[str, str]]:
    """Return the part that the model of an .onnx file could have in each method.  Raises UsageError."""
    if not file.is_file():
        raise UsageError(f"--for {file}: {'is a folder: give an .onnx file' if file.is_dir() else 'no such file'}")
    from edge_sdk.tools.onnx_inspect import inspected  # onnxruntime is imported only for a file

    try:
        found: Mapping[str, Mapping[str, str]] = inspected(file, classes)["methods"]
    except ModelError as error:
        raise UsageError(str(error)) from error
    return found


def _fits_text(file: Path, fits: Mapping[str, Mapping[str, str]], room: int | None) -> str:
    """Return a paragraph for each part that a model can have; room: the width in characters, or None for any."""
    lines = [
        folded(f"{file}: its part in each method; for the reasons: edge-sdk inspect {shlex.quote(str(file))}", room)
    ]
    for part, said in _PARTS.items():
        names = [name for name, row in fits.items() if row["part"] == part]
        if names:
            wide = max(map(len, names))
            told = (f"{name:{wide}}  {fits[name]['note']}".rstrip() for name in names)
            lines += ["", f"{said}:", *(indented(each, room) for each in told)]
    return "\n".join(lines) + "\n"
