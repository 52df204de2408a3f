"""The sub-commands of the device side and of operators, declared: device, boards, doctor, inspect, devices ..."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from edge_sdk.cli import OneLineParser, Subcommand, add_cloud_safe_option, add_tls_options, whole_number

THIS_BOARD = "this-board"
"""The name of a measured profile if none is given."""


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT] (default: that of --identity)")
    parser.add_argument(
        "--identity",
        type=Path,
        metavar="DIR",
        help="the folder that edge-sdk enroll made: id, keys, certificates and broker (docs/how-to/secure-lab.md)",
    )
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
        "--no-logs", action="store_true", help="do not let operators read the last lines that this device prints"
    )
    parser.add_argument(
        "--on-new-model",
        choices=("better", "adopt", "keep", "error"),
        help="what becomes of the state if the app brings another model than the one that it began with "
        "(default: the app's choice, or else the better of both on held-out samples)",
    )
    parser.add_argument(
        "--stay",
        action="store_true",
        help="after the end of a run wait for the next one, and join it; a refusal that may pass is waited for, too",
    )
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="set a damaged state file aside, and join the federation again",
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


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--classes", type=int, metavar="N", help="of the federation (default: those of the file)")
    parser.add_argument("--features", metavar="TENSOR", help="split there (default: before the last linear layer)")
    parser.add_argument("--output", metavar="NAME", help="of several, the one that gives scores")
    parser.add_argument(
        "--input-shape", type=_sizes, metavar="C,H,W", help="of one sample, where the file leaves it open"
    )
    parser.add_argument("--layout", choices=("auto", "NCHW", "NHWC"), default="auto", help="of pictures")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _sizes(text: str) -> list[int]:
    sizes = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected sizes such as 1,28,28")
    return sizes


_INSTALL_EXAMPLE = (
    "edge-sdk install --systemd -- --broker mqtt://lab:1883 --federation cameras --app my_app:make --id cam-7"
)
_AFTER_DASHES = f"the device's options go after --, such as: {_INSTALL_EXAMPLE}"


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
        type=whole_number(1, 10000),
        default=20,
        metavar="1..10000",
        help="default: 20; others: 100",
    )
    parser.add_argument("--nice", type=whole_number(0, 19), default=10, metavar="0..19", help="default: 10")
    parser.add_argument(
        "device",
        nargs=argparse.REMAINDER,
        metavar="-- OPTIONS",
        help="the options of `edge-sdk device`, run in this folder",
    )
    parser.set_defaults(read_device=_read_device, advice=_AFTER_DASHES)


def _read_device(options: list[str]) -> argparse.Namespace:
    """Read the options of `edge-sdk device`, and report mistakes as that command does."""
    usage = "edge-sdk install --systemd -- OPTIONS"
    parser = OneLineParser(prog="edge-sdk install", usage=usage, allow_abbrev=False)
    parser.advice = _AFTER_DASHES
    _device_arguments(parser)
    return parser.parse_args(options)


def _operator_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--broker", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT] (default: that of --identity)")
    parser.add_argument(
        "--identity",
        type=Path,
        metavar="DIR",
        help="the folder `operator` of the lab, whose key signs (docs/how-to/secure-lab.md)",
    )
    parser.add_argument("--federation", required=True, help="name of the running federation")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="longest wait for an answer (default: 10)"
    )
    add_tls_options(parser)


def _devices_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(device=None)
    _operator_arguments(parser)


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="only this device (default: the whole run)")
    parser.add_argument("--undo", action="store_true", help="take it back: the run continues, the device may return")
    _operator_arguments(parser)


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="only this device (default: the whole run)")
    _operator_arguments(parser)


def _forget_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE")
    _operator_arguments(parser)


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE")
    parser.add_argument(
        "--lines",
        type=whole_number(1, 64),
        default=64,
        metavar="N",
        help="at most N lines, 1 to 64 (default: 64)",
    )
    _operator_arguments(parser)


def _rollout_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL.onnx",
        help="the file (default: only show how far the last one is)",
    )
    parser.add_argument(
        "--to", metavar="SHARE", help="of the devices that accept models, such as 10%%; a later stage has more"
    )
    parser.add_argument("--board", default="", metavar="NAME", help="only devices with this board (edge-sdk devices)")
    parser.add_argument(
        "--classes",
        type=whole_number(0, 65535),
        metavar="N",
        help="of the file (default: those of its last layer), or 0 for an extractor: devices keep their last layer",
    )
    parser.add_argument("--cost", action="store_true", help="only show what it would cost in bytes and flash writes")
    parser.add_argument("--back", action="store_true", help="let all devices go back to the model that they had before")
    parser.set_defaults(device=None)
    _operator_arguments(parser)


def _enroll_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--claim", type=Path, required=True, metavar="FILE", help="that edge-sdk lab claim wrote")
    parser.add_argument("--identity", type=Path, metavar="DIR", help="folder for the keys (default: the device's id)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="longest wait for an answer (default: 30)"
    )


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


COMPLETION = Subcommand(
    name="completion",
    help="print the script with which a shell completes commands, options and files",
    example="edge-sdk completion bash > ~/.local/share/bash-completion/completions/edge-sdk\n"
    "  edge-sdk completion zsh > ~/.zfunc/_edge-sdk\n"
    "  edge-sdk completion fish > ~/.config/fish/completions/edge-sdk.fish",
    arguments=_completion_arguments,
    function="edge_sdk.tools.completion:command",
)
ENROLL = Subcommand(
    name="enroll",
    help="enrol this device in a lab with a claim: its keys are made here and never leave it",
    example="edge-sdk enroll --claim device-07.claim",
    arguments=_enroll_arguments,
    function="edge_sdk.tools.enroll:command",
)
DEVICE = Subcommand(
    name="device",
    help="take part in a federation with your own model and data",
    example="edge-sdk device --broker mqtt://lab:1883 --federation cameras --app my_app:make --id device-07",
    arguments=_device_arguments,
    function="edge_sdk.agent.app:command",
    log_level=logging.ERROR,  # what the app raises in training has its trace there alone: it does not travel
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
INSPECT = Subcommand(
    name="inspect",
    help="say what an .onnx file is, where it would be split, and which methods it could take part in",
    example="edge-sdk inspect model.onnx",
    arguments=_inspect_arguments,
    function="edge_sdk.tools.onnx_inspect:command",
)
INSTALL = Subcommand(
    name="install",
    help="make a device a service that starts at boot, with limits",
    example=_INSTALL_EXAMPLE,
    arguments=_install_arguments,
    function="edge_sdk.tools.install.command:command",
)
DEVICES = Subcommand(
    name="devices",
    help="list the devices of a running federation: since when, their activity, and why they are not training",
    example="edge-sdk devices --broker mqtt://lab:1883 --federation cameras",
    arguments=_devices_arguments,
    function="edge_sdk.tools.operator.desk:devices_command",
)
DRAIN = Subcommand(
    name="drain",
    help="finish the round, take no new one, then stop: the whole run, or one device",
    example="edge-sdk drain device-07 --broker mqtt://lab:1883 --federation cameras",
    arguments=_drain_arguments,
    function="edge_sdk.tools.operator.desk:drain_command",
)
PAUSE = Subcommand(
    name="pause",
    help="do not invite a device, nor wait for it, until it is resumed; it stays connected",
    example="edge-sdk pause device-07 --broker mqtt://lab:1883 --federation cameras",
    arguments=_forget_arguments,
    function="edge_sdk.tools.operator.desk:pause_command",
)
RESUME = Subcommand(
    name="resume",
    help="invite a device again that was paused or taken out; without a device: the run does not stop",
    example="edge-sdk resume device-07 --broker mqtt://lab:1883 --federation cameras",
    arguments=_resume_arguments,
    function="edge_sdk.tools.operator.desk:resume_command",
)
REVOKE = Subcommand(
    name="revoke",
    help="take nothing more from a device of a secure lab; edge-sdk lab revoke also closes the broker for it",
    example="edge-sdk revoke device-07 --identity lab/operator --federation cameras",
    arguments=_forget_arguments,
    function="edge_sdk.tools.operator.desk:revoke_command",
)
FORGET = Subcommand(
    name="forget",
    help="let the coordinator forget a device that will not come back, so that another may have its number",
    example="edge-sdk forget device-07 --broker mqtt://lab:1883 --federation cameras",
    arguments=_forget_arguments,
    function="edge_sdk.tools.operator.desk:forget_command",
)
LOGS = Subcommand(
    name="logs",
    help="show the last lines that a device has printed, unless its owner keeps them",
    example="edge-sdk logs device-07 --broker mqtt://lab:1883 --federation cameras",
    arguments=_logs_arguments,
    function="edge_sdk.tools.operator.desk:logs_command",
)
ROLLOUT = Subcommand(
    name="rollout",
    help="offer a new model to a share of a running federation's devices, stage by stage, or take it back",
    example="edge-sdk rollout model.onnx --to 10% --broker mqtt://lab:1883 --federation cameras\n"
    "  edge-sdk rollout --back --broker mqtt://lab:1883 --federation cameras",
    arguments=_rollout_arguments,
    function="edge_sdk.tools.operator.desk:rollout_command",
)
