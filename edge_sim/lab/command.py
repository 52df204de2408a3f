"""The command `edge-sdk lab-device`: a board that waits for the runs of a lab."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import sys
from pathlib import Path

from edge_sdk.errors import UsageError
from edge_sdk.policy.policy import Policy, load_policy
from edge_sdk.protocol.topics import is_id
from edge_sdk.transport.mqtt.tls import TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url
from edge_sim.lab.board import BoardOptions, LabBoard, open_link


def command(args: argparse.Namespace) -> int:
    """Serve the lab until interrupted."""
    parse_broker_url(args.broker)
    host = host_id()
    number = _number(args, host)
    device = args.id or (host if args.list else f"device-{number:02d}")
    for what, name in (("--lab", args.lab), ("--id", device)):
        if not is_id(name):
            raise UsageError(f"{what} {name!r}: use a-z, 0-9 and -, at most 36 of them")
    if not args.data.is_dir():
        raise UsageError(f"--data {args.data}: no such folder; create it, or name the one with the data files")
    options = BoardOptions(
        broker=args.broker,
        lab=args.lab,
        device=device,
        number=number,
        state=args.state or Path("state") / f"lab-{args.lab}-{device}",
        data=args.data,
        host=host,
        modules=frozenset(args.allow_module),
        tls=TlsFiles(args.ca, args.cert, args.key),
        policy=load_policy(args.policy) if args.policy else Policy(),
    )
    board = LabBoard(options, open_link(options), say=lambda line: _say(f"{device}: {line}"))
    signal.signal(signal.SIGTERM, lambda _number, _frame: board.stop())
    board.serve()
    return 0


def host_id() -> str:
    """Return this machine's name as an id."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:36] or "device"


def read_list(file: Path) -> tuple[str, ...]:
    """Read a lab's list of boards: one id a line; the first one has number 0.  `#` begins a remark.

    Raises UsageError.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    names = tuple(name for line in lines if (name := line.partition("#")[0].strip()))
    for place, name in enumerate(names):
        if not is_id(name):
            raise UsageError(f"{file}: {name!r}: use a-z, 0-9 and -, at most 36 of them")
        if name in names[:place]:
            raise UsageError(f"{file}: {name} is listed twice")
    return names


def _number(args: argparse.Namespace, host: str) -> int:
    """Return the board's number: as given, or its place in the list.  Raises UsageError."""
    if (args.number is None) == (args.list is None):
        raise UsageError("give one of --number N and --list FILE: which device of each run this board is")
    if args.number is not None:
        number: int = args.number
        if not 0 <= number <= 10**6:
            raise UsageError(f"--number {number}: expected a whole number from 0")
        return number
    names, name = read_list(args.list), args.id or host
    if name not in names:
        raise UsageError(f"{args.list}: {name} is not in it; add it, or give the name that is there with --id")
    return names.index(name)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
