"""The sub-commands of edge_sdk: device, boards and doctor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edge_sdk.cli import Subcommand, add_cloud_safe_option, add_tls_options, tls_files
from edge_sdk.errors import StoreError, UsageError

THIS_BOARD = "this-board"
"""The name of a measured profile if none is given."""


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", required=True, help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    parser.add_argument("--federation", required=True, help="name of the federation to join")
    parser.add_argument(
        "--app", required=True, metavar="MODULE:FACTORY", help="returns an edge_sdk.App: model and data"
    )
    parser.add_argument("--id", help="this device's id (default: the host's name)")
    parser.add_argument("--state", metavar="DIR", help="folder for what must survive a power cut (default: state/ID)")
    parser.add_argument(
        "--public",
        metavar="FILE.npz",
        type=Path,
        help="the public set; without it, and with none from the app, it is fetched once from the coordinator",
    )
    add_cloud_safe_option(parser)
    add_tls_options(parser)


def _device(args: argparse.Namespace) -> int:
    from edge_sdk.app import run_device  # noqa: PLC0415  # loads numpy and paho only if a device runs

    run_device(
        broker=args.broker,
        tls=tls_files(args),
        federation=args.federation,
        app=args.app,
        identity=args.id,
        state=args.state,
        public=args.public,
        cloud_safe=args.cloud_safe,
    )
    return 0


def _boards_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    measuring = parser.add_argument_group("a profile of this machine (docs/reference/boards.md)")
    measuring.add_argument("--measure", action="store_true", help="time this machine, and print its profile as TOML")
    measuring.add_argument("--name", help=f"the profile's name (default: {THIS_BOARD})")
    measuring.add_argument("--write", type=Path, metavar="DIR", help="write NAME.toml there instead of printing it")
    measuring.add_argument("--state", type=Path, metavar="DIR", help="on the disk of devices' states (default: here)")
    measuring.add_argument("--broker", metavar="URL", help="also measure the link to this broker, as NAME-link")


def _boards(args: argparse.Namespace) -> int:
    if args.measure:
        return _measure(args)
    _check_listing(args)
    from edge_sdk.boards.table import render_boards  # noqa: PLC0415

    sys.stdout.write(render_boards(args.json) + "\n")
    return 0


def _check_listing(args: argparse.Namespace) -> None:
    """Raise UsageError for options that only --measure uses, if it is not given."""
    for option in ("name", "write", "state", "broker"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option}: of no use without --measure, which measures this machine; add --measure")


def _measure(args: argparse.Namespace) -> int:
    import secrets  # noqa: PLC0415

    from edge_sdk.boards.profiles import Board, Link  # noqa: PLC0415  # loaded after the arguments are checked
    from edge_sdk.tools.measure.link import measure_link  # noqa: PLC0415
    from edge_sdk.tools.measure.profile import measure_board, to_toml  # noqa: PLC0415

    name = THIS_BOARD if args.name is None else args.name
    profiles: list[Board | Link] = [
        measure_board(name, args.state or Path(), say=lambda line: print(line, file=sys.stderr))  # noqa: T201
    ]
    if args.broker:
        profiles.append(measure_link(f"{name}-link", args.broker, f"doctor-{secrets.token_hex(6)}"))
    for profile in profiles:
        if args.write is None:
            sys.stdout.write(to_toml(profile))
            continue
        file = args.write / f"{profile.name}.toml"
        try:
            file.write_text(to_toml(profile), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{file}: cannot be written ({error.strerror}); give --write another folder") from None
        sys.stdout.write(f'{file}: in a [[fleet]] row, write {type(profile).__name__.lower()} = "{file.name}"\n')
    return 0


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker", metavar="URL", help="also test this broker: mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"
    )
    parser.add_argument(
        "--state", metavar="DIR", type=Path, default=Path("state"), help="state folder (default: state)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_tls_options(parser)


def _doctor(args: argparse.Namespace) -> int:
    import secrets  # noqa: PLC0415

    from edge_sdk.tools.doctor import report  # noqa: PLC0415  # loaded after the arguments are checked
    from edge_sdk.tools.doctor.checks import run_all_checks  # noqa: PLC0415
    from edge_sdk.tools.doctor.finding import CheckTarget  # noqa: PLC0415

    name = f"doctor-{secrets.token_hex(6)}"
    results = run_all_checks(CheckTarget(state=args.state, broker=args.broker, tls=tls_files(args), name=name))
    if args.json:
        sys.stdout.write(report.as_json(results) + "\n")
    else:
        report.show(results, sys.stdout)
    return 0 if report.healthy(results) else 1


DEVICE = Subcommand(
    name="device",
    help="take part in a federation with your own model and data",
    example="edge-sdk device --broker mqtt://lab:1883 --federation cameras --app my_app:make --id device-07",
    arguments=_device_arguments,
    run=_device,
)
BOARDS = Subcommand(
    name="boards",
    help="list the board and link profiles that simulations use, or measure this machine's",
    example="edge-sdk boards --measure --name lab-pi --write .",
    arguments=_boards_arguments,
    run=_boards,
)
DOCTOR = Subcommand(
    name="doctor",
    help="check this machine, and a broker, and say what to do about each fault",
    example="edge-sdk doctor --broker mqtt://lab:1883 --state state/device-07",
    arguments=_doctor_arguments,
    run=_doctor,
)
