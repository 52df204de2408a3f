"""`edge-sdk rollout`: sends a model file to a running coordinator, which offers it to a share of the devices."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

from edge_sdk.errors import ModelError, UsageError
from edge_sdk.models.onnx_file.ending import chosen_endings
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.protocol.model_offers import MAX_MODEL_BYTES, OfferedFile
from edge_sdk.tools.operator.desk import link_of
from edge_sdk.tools.operator.link import OperatorLink


def command(args: argparse.Namespace) -> int:
    """Roll a model out, take it back, or show how far it has come."""
    if args.model is None:
        if args.to is not None or args.cost:
            raise UsageError("name the file: edge-sdk rollout MODEL.onnx --to 10%")
        with link_of(args) as link:
            if args.back:
                link.command("rollback")
            lines = link.ask(link.inquiry("rollout")).lines
        return _say(args, *lines)
    if args.back or args.to is None:
        raise UsageError("give MODEL.onnx with --to, such as --to 10%; or --back alone")
    content, share = _content(args.model), _share(args.to)
    file = OfferedFile(
        sha256=hashlib.sha256(content).digest(),
        total_bytes=len(content),
        name=args.model.name[:256],
        classes=_classes(content, args.model, args.classes),
    )
    with link_of(args) as link:
        cost = link.roll_out(file, share, args.board, asks_cost=True).text
        if args.cost:
            return _say(args, cost)
        if not args.json:
            _say(args, cost)  # before it begins
        _send(link, file, content, share, args.board)
    return _say(args, cost) if args.json else 0


def _send(link: OperatorLink, file: OfferedFile, content: bytes, share: float, board: str) -> None:
    """Send the blocks that the coordinator lacks, until it begins."""
    wanted = link.roll_out(file, share, board).wanted
    while wanted:
        link.send_blocks(file, content, wanted)
        wanted = link.roll_out(file, share, board).wanted


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    if not 0 < len(content) <= MAX_MODEL_BYTES:
        raise UsageError(f"{path}: has {len(content):,} bytes: give a file of 1 to {MAX_MODEL_BYTES:,}")
    return content


def _classes(content: bytes, path: Path, given: int | None) -> int:
    """Return the classes of a file: the given number, or the rows of its last linear layer.

    Raises UsageError for a file that is not a model, or whose shapes are unknown.
    """
    try:
        endings = chosen_endings(read_graph(content, path.name), None, given)
    except ModelError as error:
        raise UsageError(str(error)) from error
    if given is not None:
        return given
    layers = [ending.layer for ending in endings]
    if len(layers) != 1 or layers[0] is None:
        raise UsageError(
            f"{path}: has no last linear layer that shows its classes: give --classes N, or 0 for an extractor"
        )
    return max(2, len(layers[0].rows))


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%", text.strip())
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise UsageError(f"--to {text!r}: give a share of the devices, such as 10%, at most 100%")
    return share


def _say(args: argparse.Namespace, *lines: str) -> int:
    told = json.dumps({"federation": args.federation, "lines": [*lines]}) if args.json else "\n".join(lines)
    sys.stdout.write(told + "\n")
    sys.stdout.flush()
    return 0
