"""The commands `edge-sdk devices`, `drain`, `forget`, `logs`, and `rollout`, which sends a model file."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from edge_sdk.errors import ModelError, UsageError
from edge_sdk.identity.folder import open_identity
from edge_sdk.identity.signatures import Role
from edge_sdk.models.onnx_file.ending import chosen_endings
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.protocol.model_offers import MAX_MODEL_BYTES, OfferedFile
from edge_sdk.protocol.operator_messages import DeviceEntry
from edge_sdk.protocol.topics import is_id
from edge_sdk.terminal import columns, room_of
from edge_sdk.tools.operator.link import EXPIRES_S, OperatorKeys, OperatorLink, checked_timeout_s, linked
from edge_sdk.transport.mqtt.tls import NO_FILES, OF_LAB, TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url


def devices_command(args: argparse.Namespace) -> int:
    """Show the devices of a running federation."""
    with link_of(args) as link:
        run, entries = _every_device(link)
    if args.json:
        plain = {"federation": args.federation, "run": run, "devices": [*map(_plain, entries)]}
        sys.stdout.write(json.dumps(plain, indent=2) + "\n")
    else:
        sys.stdout.write(f"{args.federation}: {run}\n\n{device_table(entries, time.time(), room_of(sys.stdout))}\n")
    return 0


def drain_command(args: argparse.Namespace) -> int:
    """Stop a run, or take a device out, at the end of the round; or revert that."""
    return _carried_out(args, "resume" if args.undo else "drain")


def pause_command(args: argparse.Namespace) -> int:
    """Pause a device: the coordinator stops inviting it until it is resumed."""
    return _carried_out(args, "pause")


def resume_command(args: argparse.Namespace) -> int:
    """Revert a pause, a drain or the end of a run."""
    return _carried_out(args, "resume")


def revoke_command(args: argparse.Namespace) -> int:
    """Revoke a device: the coordinator refuses everything from it."""
    return _carried_out(args, "revoke")


def forget_command(args: argparse.Namespace) -> int:
    """Have the coordinator forget a device."""
    return _carried_out(args, "forget")


def _carried_out(args: argparse.Namespace, operation: str) -> int:
    """Send a command, and print the coordinator's line about it."""
    with link_of(args) as link:
        line = link.command(operation, _device(args))
    report = {"federation": args.federation, "operation": operation, "device": args.device, "answer": line}
    sys.stdout.write((json.dumps(report) if args.json else line) + "\n")
    return 0


def logs_command(args: argparse.Namespace) -> int:
    """Show the last lines that a device has printed."""
    with link_of(args) as link:
        answer = link.ask(link.inquiry("logs", _device(args), lines=args.lines))
    if args.json:
        report = {"federation": args.federation, "device": args.device, "lines": [*answer.lines]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in answer.lines))
    return 0


def _every_device(link: OperatorLink) -> tuple[str, tuple[DeviceEntry, ...]]:
    """Request all pages; returns the state of the run, and the devices."""
    run = ""

    def pages() -> Iterator[tuple[DeviceEntry, ...]]:
        nonlocal run
        after, more = None, True
        while more:
            answer = link.ask(link.inquiry("devices", after))
            run = run or answer.run
            yield answer.devices
            more = answer.more and bool(answer.devices)
            after = answer.devices[-1].device if answer.devices else None

    entries = tuple(entry for page in pages() for entry in page)
    return run, entries


def _plain(entry: DeviceEntry) -> dict[str, object]:
    return {**dataclasses.asdict(dataclasses.replace(entry, figures={})), "figures": dict(entry.figures)}


def _device(args: argparse.Namespace) -> str | None:
    if args.device is not None and not is_id(args.device):
        raise UsageError(f"device {args.device!r}: use a-z, 0-9 and -, at most 36 of them")
    device: str | None = args.device
    return device


def link_of(args: argparse.Namespace) -> AbstractContextManager[OperatorLink]:
    """Return the link that a command's options ask for.  Raises UsageError."""
    if not is_id(args.federation):
        raise UsageError(f"--federation {args.federation!r}: use a-z, 0-9 and -, at most 36 of them")
    timeout_s = checked_timeout_s(args.timeout)
    _device(args)
    from edge_sdk.transport.mqtt.transport import MqttTransport

    operator = f"operator-{secrets.token_hex(6)}"
    url, files, keys = _reach(args)
    seed = secrets.randbits(32)
    transport = MqttTransport(url, operator, tls=files, clean=True, seed=seed, expires_s=EXPIRES_S)
    return linked(transport, args.federation, operator, timeout_s, keys)


def _reach(args: argparse.Namespace) -> tuple[str, TlsFiles, OperatorKeys | None]:
    """Return the broker, the files for it, and the keys that sign, or None without signatures."""
    files = TlsFiles(args.ca, args.cert, args.key)
    if args.identity is None:
        if args.broker is None:
            raise UsageError("give --broker URL, or --identity DIR with the folder `operator` of the lab")
        return args.broker, files, None
    own = open_identity(args.identity, Role.OPERATOR)
    url = own.broker if args.broker is None else args.broker
    if files == NO_FILES and parse_broker_url(url).tls:
        files = TlsFiles(own.authority, own.certificate, own.tls_key, OF_LAB)
    return url, files, OperatorKeys(own.started(), own.coordinator_verifier())


# -- The table of `edge-sdk devices`: one row for each device ---------------------------------------------------------

UNKNOWN = "-"
_DAY_S = 20 * 3600.0
"""A time longer ago is shown with its date."""

FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", "{:.1%}".format),
    "temperature_c": ("temp", "{:.0f} \N{DEGREE SIGN}C".format),
}
"""The first figures with a column, which is omitted if no device has a value: heading, and how to write a value."""
NO_COLUMN = frozenset({"busy_s", "energy_j"})
"""Figures that the live page shows; all others, which the coordinator counts, have a column under their own name."""


def device_table(entries: Sequence[DeviceEntry], now_s: float, room: int | None = None) -> str:
    """Return the devices as text; now_s: seconds since 1970; room: the width in characters, or None for any."""
    told = {name for entry in entries for name in entry.figures} - NO_COLUMN
    figures = [*(name for name in FIGURES if name in told), *sorted(told - FIGURES.keys())]
    say = {name: FIGURES.get(name, (name.replace("_", " "), "{:g}".format)) for name in figures}
    head = ("device", "state", "here since", "last heard", "round", *(heading for heading, _ in say.values()))
    rows = [(*head, "board", "model", "edge-sdk", "why")]
    for entry in entries:
        shown = [say[name][1](entry.figures[name]) if name in entry.figures else UNKNOWN for name in figures]
        rows.append(
            (
                entry.device,
                entry.state,
                UNKNOWN if entry.here_s is None else _moment(now_s - entry.here_s, entry.here_s),
                UNKNOWN if entry.seen_s is None else f"{_duration(entry.seen_s)} ago",
                str(entry.round or UNKNOWN),
                *shown,
                entry.board or UNKNOWN,
                " ".join(filter(None, (entry.model, f"({entry.runtime})" if entry.runtime else ""))) or UNKNOWN,
                entry.sdk or UNKNOWN,
                entry.why,
            )
        )
    return columns(rows, room)


def _moment(at_s: float, ago_s: float) -> str:
    return time.strftime("%H:%M:%S" if ago_s < _DAY_S else "%Y-%m-%d %H:%M", time.localtime(at_s))


def _duration(seconds: float) -> str:
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def rollout_command(args: argparse.Namespace) -> int:
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
