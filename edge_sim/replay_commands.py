"""The sub-command replay."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_sdk.cli import Command
from edge_sdk.errors import UsageError

if TYPE_CHECKING:
    from coordinator.trace import Trace


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the trace.edgt of a run that was made with --trace")
    parser.add_argument("--device", metavar="ID", help="replay what this device did, instead of the coordinator")
    parser.add_argument("--app", metavar="MODULE:FACTORY", help="its model and data, where it was a real one")
    parser.add_argument("--public", metavar="FILE.npz", type=Path, help="the public set, where the app brings none")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _replay(args: argparse.Namespace) -> int:
    from coordinator.trace import Trace  # noqa: PLC0415  # nothing heavy before the arguments are read

    _check(args)
    trace = Trace(args.trace)
    found = _coordinator(trace) if args.device is None else _device(trace, args)
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(_SENTENCES[args.device is None].format(**found) + "\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for what is only about a device, where none is named."""
    for option in ("app", "public"):
        if args.device is None and getattr(args, option) is not None:
            raise UsageError(
                f"--{option}: of no use without --device, for the coordinator is replayed; add --device ID"
            )


def _coordinator(trace: Trace) -> dict[str, Any]:
    from coordinator.replay import replay  # noqa: PLC0415
    from edge_sim.replay_parts import equipment  # noqa: PLC0415

    done = replay(trace, equipment(trace.header))
    return {
        "federation": done.server.spec.federation,
        "rounds": len(done.server.record.rounds),
        "heard": done.heard,
        "frames": done.frames,
        "lives": done.lives,
        "state_sha256": done.state.hex(),
        "whole": done.ended,
        "remark": _remark(ended=done.ended),
    }


def _device(trace: Trace, args: argparse.Namespace) -> dict[str, Any]:
    from edge_sim.replay_device import replay_device  # noqa: PLC0415
    from edge_sim.replay_history import device_history  # noqa: PLC0415
    from edge_sim.replay_parts import maker_of  # noqa: PLC0415

    past = device_history(trace, args.device, virtual=trace.header.virtual)
    make, doubt = maker_of(trace.header, past, args.device, args.app, args.public)
    made = replay_device(past, args.device, make, doubt)
    return {"device": args.device, "uploads": made, "whole": past.ended, "remark": _remark(ended=past.ended)}


def _remark(*, ended: bool) -> str:
    return "" if ended else "the trace ends before the run did, all that it holds was replayed: "


_SENTENCES = {
    True: (
        "{remark}{federation}: {rounds} rounds again, {heard} events in, {frames} frames out, each equal to the "
        "recorded one; state sha256 {state_sha256}"
    ),
    False: "{remark}{device}: {uploads} uploads made again, each equal to the recorded one",
}

REPLAY = Command(
    name="replay",
    help="feed a recorded run to the coordinator again, or to one device",
    example="edge-sdk replay runs/demo/trace.edgt --device device-03",
    arguments=_arguments,
    run=_replay,
)
