"""The command `edge-sdk replay`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.config import public_set, read_settings
from coordinator.serving.equipment import Equipment, load_nets
from coordinator.trace.log import Header, Trace
from coordinator.trace.replay import replay
from edge_sdk.agent.agent import Agent
from edge_sdk.agent.app import App, load_app
from edge_sdk.agent.arguments import SimulatedId
from edge_sdk.device.store import MemoryStore
from edge_sdk.errors import UsageError
from edge_sdk.public_set.samples import public_for
from edge_sdk.transport.base import Transport
from edge_sim.byzantine import agent_for
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device, Fleet, build_fleet
from edge_sim.replay.device import History, Make, device_history, replay_device


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
    """Raise UsageError for options of a device replay without --device."""
    for option in ("app", "public"):
        if args.device is None and getattr(args, option) is not None:
            raise UsageError(f"--{option}: has no effect without --device; add --device ID")


def _coordinator(trace: Trace) -> dict[str, Any]:
    done = replay(trace, equipment(trace.header))
    return {
        "federation": done.server.spec.federation,
        "rounds": done.server.record.done,
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
    return "" if ended else "the trace ends before the run did; all of it was replayed: "


_SENTENCES = {
    True: (
        "{remark}{federation}: {rounds} rounds again, {heard} events in, {frames} frames out, each equal to the "
        "recorded one; {refusals} refusals of the ledger's disk; state sha256 {state_sha256}"
    ),
    False: "{remark}{device}: {uploads} uploads made again, each equal to the recorded one",
}


# The parts for computing a replay: built from the TOML of a simulated run, or given for a real run.


def equipment(header: Header) -> Equipment:
    """Return the equipment of the run's coordinator."""
    if "fleet" in header.tables:
        return Equipment(nets=lambda: _fleet(header).nets(), public=lambda: _fleet(header).dataset.public)
    settings = read_settings(header.tables, Path(header.file))
    return Equipment(nets=lambda: load_nets(settings.federation.nets), public=lambda: public_set(settings))


def maker_of(header: Header, past: History, device: str, app: str | None, public: Path | None) -> tuple[Make, str]:
    """Return the function that makes the device's agent, and a reason why results might differ, or empty.

    The agent is made from the app's factory or, for a simulated run, from its TOML.  Raises UsageError if neither
    is available.
    """
    doubt = ""
    if past.first_epoch > 1:
        doubt = f"the trace begins with start {past.first_epoch} of the coordinator; the device may have trained before"
    if app is not None:
        parts = load_app(app)
        given = public_for(public, parts.model.spec.preprocess) if public is not None else None
        return _real(replace(parts, public=given or parts.public), past.federation, device), doubt
    if "fleet" not in header.tables:
        raise UsageError(f"a trace of real devices contains no models; give --app MODULE:FACTORY for {device}")
    known = {each.kit.id: each for each in _fleet(header).devices}
    if device not in known:
        raise UsageError(f"--device {device}: the run has {', '.join(known)}")
    own = known[device]
    return _simulated(own, past.federation, virtual=header.virtual), doubt or _rounding(header, own)


def _fleet(header: Header) -> Fleet:
    """Build the fleet of a simulated run; torch computes in one thread, as it did in that run."""
    fleet = build_fleet(settings.parse(header.tables, Path(header.file)))
    if any(device.kit.needs_torch for device in fleet.devices):
        from edge_sim.engines.torch_threads import use_one_thread  # torch is imported only if a device needs it

        use_one_thread()
    return fleet


def _simulated(device: Device, federation: str, *, virtual: bool) -> Make:
    """Make the agent as a simulation does; Byzantine devices exist only in virtual time."""
    kit = device.kit
    make = agent_for(device.conditions.byzantine if virtual else None, federation, kit.seed)

    def switched_on(line: Transport, store: MemoryStore) -> Agent:
        return make(
            federation=federation,
            broker=line,
            identity=SimulatedId(kit.id),
            model=kit.model(device.public),
            data=device.data,
            public=device.public,
            state=store,
            disclose_classes=True,
            privacy=kit.budget,
            sends_logs=False,
            share_weights=True,
            share_sample_codes=True,
            secret=kit.secret,
            proxy=kit.proxy_model(device.public),
        )

    return switched_on


def _real(app: App, federation: str, device: str) -> Make:
    make = partial(
        Agent,
        federation=federation,
        identity=SimulatedId(device),
        model=app.model,
        data=app.data,
        public=app.public,
        disclose_classes=app.disclose_classes,
        privacy=app.privacy,
        share_weights=app.share_weights,
        share_sample_codes=app.share_sample_codes,
        proxy=app.proxy,
    )
    return lambda line, store: make(broker=line, state=store)


def _rounding(header: Header, device: Device) -> str:
    """Explain why a single device may round differently than in the run, or return empty."""
    table = settings.parse(header.tables, Path(header.file)).run
    if not header.virtual or not table.stack or not device.kit.needs_torch:
        return ""
    names = table.stacked
    if names is not None and device.kit.model(device.public).spec.name not in names:
        return ""
    return (
        "run.stack had its model computed together with others, which rounds otherwise than a model alone; record a "
        "run without it"
    )
