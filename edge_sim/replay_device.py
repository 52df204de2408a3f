"""A trace from the side of one device: what was sent to it, again, on a fresh model.

One thread, no waiting: made to be stopped in a debugger.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from coordinator.config import public_set
from coordinator.equipment import Equipment, load_nets
from coordinator.replay import Nowhere
from coordinator.trace import Entry, Header, Heard, Life, Sent
from edge_sdk.agent import Agent
from edge_sdk.app import App, load_app
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.protocol import codec, keep, topics
from edge_sdk.protocol.messages import Upload
from edge_sdk.public import PublicSet
from edge_sdk.transport.base import Connected, Incoming, TransportEvent
from edge_sim import config as configs
from edge_sim import fleet as fleets


def equipment(header: Header) -> Equipment:
    """What the run's coordinator had: of a simulated run made again from its TOML."""
    tables, file = header.tables, Path(header.file)
    if "fleet" in tables:

        def fleet() -> fleets.Fleet:
            return fleets.build(configs.parse(tables, file))

        return Equipment(nets=lambda: fleet().nets(), public=lambda: fleet().dataset.public)
    return Equipment(nets=lambda: load_nets(tables["federation"].get("nets")), public=lambda: public_set(tables, file))


def app_of(header: Header, device: str, app: str | None, public: Path | None) -> App:
    """The device's model and data: from its factory, or, of a simulated run, made again from its TOML.

    Raises UsageError where neither is to be had.
    """
    given = PublicSet.load(public) if public is not None else None
    if app is not None:
        parts = load_app(app)
        return dataclasses.replace(parts, public=given or parts.public)
    if "fleet" not in header.tables:
        raise UsageError(f"a trace of real devices holds no model of {device}; give --app MODULE:FACTORY")
    fleet = fleets.build(configs.parse(header.tables, Path(header.file)))
    known = {each.kit.id: each for each in fleet.devices}
    if device not in known:
        raise UsageError(f"--device {device}: the run has {', '.join(known)}")
    own = known[device]
    model = own.kit.model(own.public)
    return App(model=model, data=own.data, public=own.public, disclose_classes=True, share_weights=True)


def replay_device(entries: Iterable[Entry], device: str, app: App) -> int:
    """Let the device answer everything that it was sent; how many uploads it made, all equal to the recorded ones.

    What is compared is the knowledge and the metrics, bit for bit.  Raises RunFailed where an upload differs.
    """
    agent: Agent | None = None
    line = Nowhere()
    recorded: dict[tuple[int, int], Upload] = {}
    now_s = 0.0
    for entry in entries:
        if isinstance(entry, Life) and agent is None:
            agent = _agent(entry.spec.federation, device, app, line)
            agent.connect()
            _give(agent, Connected(), now_s)
        elif isinstance(entry, Heard) and isinstance(entry.event, Incoming):
            now_s = entry.now_s
            _note(entry.event, device, recorded)
        elif isinstance(entry, Sent) and agent is not None and _reaches(line, entry.topic):
            _give(agent, Incoming(entry.topic, entry.frame), now_s)
    made = _uploads(line)
    if not recorded:
        raise UsageError(f"--device {device}: the trace holds no upload of it")
    for place, upload in made.items():
        _compare(device, upload, recorded.get(place))
    return len(made)


def _agent(federation: str, device: str, app: App, line: Nowhere) -> Agent:
    return Agent(
        federation=federation,
        broker=line,
        identity=device,
        model=app.model,
        data=app.data,
        public=app.public,
        disclose_classes=app.disclose_classes,
        share_weights=app.share_weights,
    )


def _give(agent: Agent, event: TransportEvent, now_s: float) -> None:
    """One event, and all the work that it makes."""
    agent.handle(event, now_s)
    while agent.computing:
        if agent.work_slice():
            agent.finish_work(now_s)


def _note(incoming: Incoming, device: str, recorded: dict[tuple[int, int], Upload]) -> None:
    if topics.sender(incoming.topic) == device:
        message = codec.decode(incoming.frame).message
        if isinstance(message, Upload):
            recorded.setdefault((message.round, message.exchange), message)


def _compare(device: str, upload: Upload, recorded: Upload | None) -> None:
    where = f"{device}, round {upload.round}, exchange {upload.exchange}"
    if recorded is None:
        return  # it was on its way when the run ended, or was lost
    if keep.to_bytes(upload) == keep.to_bytes(recorded):
        return
    for role, payload in recorded.knowledge.items():
        own = upload.knowledge.get(role)
        if own is None or keep.to_bytes(own) != keep.to_bytes(payload):
            raise RunFailed(f"{where}: {role} differs from what was uploaded in the run")
    if upload.metrics != recorded.metrics:
        raise RunFailed(f"{where}: measured {dict(upload.metrics)}, in the run {dict(recorded.metrics)}")


def _uploads(line: Nowhere) -> dict[tuple[int, int], Upload]:
    """What was uploaded, by round and exchange."""
    messages = (codec.decode(sent.frame).message for sent in line.sent)
    return {(each.round, each.exchange): each for each in messages if isinstance(each, Upload)}


def _reaches(line: Nowhere, topic: str) -> bool:
    return any(topics.matches(pattern, topic) for pattern in line.subscriptions)
