"""The sub-commands of the device side: device, boards."""

from __future__ import annotations

import argparse
import sys

from edge_sdk.cli import Command


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", required=True, help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    parser.add_argument("--federation", required=True, help="name of the federation to join")
    parser.add_argument(
        "--app", required=True, metavar="MODULE:FACTORY", help="returns an edge_sdk.App: model and data"
    )
    parser.add_argument("--id", help="this device's id (default: the host's name)")
    parser.add_argument("--state", metavar="DIR", help="folder for what must survive a power cut (default: state/ID)")


def _device(args: argparse.Namespace) -> int:
    from edge_sdk.app import run_device  # noqa: PLC0415  # numpy and paho only when a device runs

    run_device(broker=args.broker, federation=args.federation, app=args.app, identity=args.id, state=args.state)
    return 0


def _boards_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _boards(args: argparse.Namespace) -> int:
    from edge_sdk.board import render_boards  # noqa: PLC0415

    sys.stdout.write(render_boards(args.json) + "\n")
    return 0


DEVICE = Command(
    name="device",
    help="take part in a federation with your own model and data",
    example="edge-sdk device --broker mqtt://lab:1883 --federation cameras --app my_app:make --id device-07",
    arguments=_device_arguments,
    run=_device,
)
BOARDS = Command(
    name="boards",
    help="list the board and link profiles that simulations use",
    example="edge-sdk boards --json",
    arguments=_boards_arguments,
    run=_boards,
)
