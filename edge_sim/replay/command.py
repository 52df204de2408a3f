"""The command `edge-sdk replay`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from coordinator.trace.log import Trace
from coordinator.trace.replay import replay
from edge_sdk.errors import UsageError
from edge_sim.replay.device import replay_device
from edge_sim.replay.history import device_history
from edge_sim.replay.parts import equipment, maker_of


def command(args: argparse.Namespace) -> int:
    """Replay the coordinator, or the device that the command line names."""
    _check(args)
    trace = Trace(args.trace)
    found = _coordinator(trace) if args.device is None else _device(trace, args)
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(_SENTENCES[args.device is None].format(**found) + "\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options of a device replay where no device is named."""
    for option in ("app", "public"):
        if args.device is None and getattr(args, option) is not None:
            raise UsageError(
                f"--{option}: of no use without --device, for the coordinator is replayed; add --device ID"
            )


def _coordinator(trace: Trace) -> dict[str, Any]:
    done = replay(trace, equipment(trace.header))
    return {
        "federation": done.server.spec.federation,
        "rounds": len(done.server.record.rounds),
        "heard": done.heard,
        "frames": done.frames,
        "refusals": done.refusals,
        "lives": done.lives,
        "state_sha256": done.state.hex(),
        "whole": done.ended,
        "remark": _remark(ended=done.ended),
    }


def _device(trace: Trace, args: argparse.Namespace) -> dict[str, Any]:
    past = device_history(trace, args.device, virtual=trace.header.virtual)
    make, doubt = maker_of(trace.header, past, args.device, args.app, args.public)
    made = replay_device(past, args.device, make, doubt)
    return {"device": args.device, "uploads": made, "whole": past.ended, "remark": _remark(ended=past.ended)}


def _remark(*, ended: bool) -> str:
    return "" if ended else "the trace ends before the run did, all that it holds was replayed: "


_SENTENCES = {
    True: (
        "{remark}{federation}: {rounds} rounds again, {heard} events in, {frames} frames out, each equal to the "
        "recorded one; {refusals} refusals of the ledger's disk; state sha256 {state_sha256}"
    ),
    False: "{remark}{device}: {uploads} uploads made again, each equal to the recorded one",
}
