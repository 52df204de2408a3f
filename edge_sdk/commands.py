"""The sub-commands of the device side, declared: device, boards, doctor, install."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_sdk.cli import OneLineParser, Subcommand, add_cloud_safe_option, add_tls_options

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


def _install_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systemd", action="store_true", help="as a service of systemd")
    parser.add_argument("--dry-run", action="store_true", help="show the unit, write nothing")
    parser.add_argument(
        "--unit",
        choices=("system", "user"),
        help="started at boot, or the user's own (default: system as root, else user)",
    )
    parser.add_argument("--user", help="who runs a unit of the system (default: who called sudo)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="at most so much, such as 512M (default: half of this machine's)"
    )
    parser.add_argument(
        "--cpu-weight",
        type=int,
        choices=range(1, 10001),
        default=20,
        metavar="1..10000",
        help="default: 20; others: 100",
    )
    parser.add_argument("--nice", type=int, choices=range(20), default=10, metavar="0..19", help="default: 10")
    parser.add_argument(
        "device",
        nargs=argparse.REMAINDER,
        metavar="-- OPTIONS",
        help="the options of `edge-sdk device`, run in this folder",
    )
    parser.set_defaults(read_device=_read_device)


def _read_device(options: list[str]) -> argparse.Namespace:
    """Read the options of `edge-sdk device`, whose mistakes are told as that command tells them."""
    parser = OneLineParser(prog="edge-sdk install --systemd --", allow_abbrev=False)
    _device_arguments(parser)
    return parser.parse_args(options)


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
INSTALL = Subcommand(
    name="install",
    help="make a device a service that starts at boot, with limits",
    example="edge-sdk install --systemd -- --broker mqtt://lab:1883 --federation cameras --app my_app:make --id cam-7",
    arguments=_install_arguments,
    function="edge_sdk.tools.install.command:command",
)
