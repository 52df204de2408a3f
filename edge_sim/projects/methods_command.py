"""`edge-sdk methods`: recommends one, lists all, describes some in full, or finds those that fit a model."""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.results.report.tables import Column, Table, show_table
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.terminal import folded, indented, room_of
from edge_sim.projects import method_catalogue
from edge_sim.projects.method_catalogue import catalogue_text, describe_methods

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
    sizes = method_catalogue.EXAMPLE
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
