"""The sub-commands of the device side, declared: device, boards, doctor."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_sdk.cli import Subcommand, add_cloud_safe_option, add_tls_options

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
    parser.add_argument(
        "--policy",
        metavar="FILE.toml",
        type=Path,
        help="when to train, and at what cost, in place of the app's own policy (docs/how-to/be-a-good-guest.md)",
    )
    parser.add_argument(
        "--on-new-model",
        choices=("better", "adopt", "keep", "error"),
        help="what becomes of the state if the app brings another model than the one that it began with "
        "(default: the app's choice, or else the better of both on held-out samples)",
    )
    add_cloud_safe_option(parser)
    add_tls_options(parser)


def _boards_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    measuring = parser.add_argument_group("a profile of this machine (docs/reference/boards.md)")
    measuring.add_argument("--measure", action="store_true", help="time this machine, and print its profile as TOML")
    parser.set_defaults(default_name=THIS_BOARD)
    measuring.add_argument("--name", help=f"the profile's name (default: {THIS_BOARD})")
    measuring.add_argument("--write", type=Path, metavar="DIR", help="write NAME.toml there instead of printing it")
    measuring.add_argument("--state", type=Path, metavar="DIR", help="on the disk of devices' states (default: here)")
    measuring.add_argument("--broker", metavar="URL", help="also measure the link to this broker, as NAME-link")


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker", metavar="URL", help="also test this broker: mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"
    )
    parser.add_argument(
        "--state", metavar="DIR", type=Path, default=Path("state"), help="state folder (default: state)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_tls_options(parser)


DEVICE = Subcommand(
    name="device",
    help="take part in a federation with your own model and data",
    example="edge-sdk device --broker mqtt://lab:1883 --federation cameras --app my_app:make --id device-07",
    arguments=_device_arguments,
    function="edge_sdk.app:command",
)
BOARDS = Subcommand(
    name="boards",
    help="list the board and link profiles that simulations use, or measure this machine's",
    example="edge-sdk boards --measure --name lab-pi --write .",
    arguments=_boards_arguments,
    function="edge_sdk.tools.boards_command:command",
)
DOCTOR = Subcommand(
    name="doctor",
    help="check this machine, and a broker, and say what to do about each fault",
    example="edge-sdk doctor --broker mqtt://lab:1883 --state state/device-07",
    arguments=_doctor_arguments,
    function="edge_sdk.tools.doctor.command:command",
)
