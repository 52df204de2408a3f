"""Starts a coordinator: checks that no other one runs, and begins a state or restores it from the ledger.

The open round is recomputed from the checkpoint at its start and the durable uploads.  A run without end that resumes
with other settings begins a new generation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from coordinator import rounds
from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.record.periods import Periods
from coordinator.record.run_record import RunRecord
from coordinator.rounds import RoundPolicy, RoundState
from coordinator.serving import round_pacing
from coordinator.serving.aggregation import Aggregation
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake.canary import Canary
from coordinator.serving.operators.orders import Orders
from coordinator.serving.reduction import EarlierVersions, Reduction, StoredUpload
from edge_sdk.errors import EmptyRound, RemoteProtocolError, StoreError, UsageError
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.messages import FOREVER, CoordinatorStatus, FederationSpec
from edge_sdk.protocol.operator_messages import ControlAnswer, Inquiry
from edge_sdk.protocol.toml_table import to_table
from edge_sdk.reductions.influence import RobustTable
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport

CARRIES = ("method", "params", "contract", "classes", "feature_dim", "public", "class_names")
"""The settings that give the method's state its meaning; if one of them changes, a new state begins."""


def begin_generation(ledger: Ledger, spec: FederationSpec, state: object) -> str | None:
    """Bind a ledger of rounds without an end to other settings; returns a line about it, or None if that is impossible.

    The ledger gets a new run id, so that devices take part as in a new run, with their present models and without
    manual work.  Round numbers and history continue.  state: of the method at its start.
    """
    try:
        before = storage.deserialise(FederationSpec, ledger.spec)
    except (RemoteProtocolError, StoreError):
        return None
    if not before.rounds == spec.rounds == FOREVER or before.federation != spec.federation:
        return None
    carried = all(getattr(before, name) == getattr(spec, name) for name in CARRIES)
    changed = ", ".join(spec_changes(to_table(before, defaults=True), to_table(spec, defaults=True)))
    if not carried and (kept := ledger.last_checkpoint()) is not None:  # a new model has its own levels on the canary
        ledger.checkpoint(kept.round, kept.state, {**kept.record, "canary": {}})
    ledger.begin_generation(storage.serialise(spec), None if carried else storage.serialise(state))
    news = "the coordinator's state is carried over" if carried else "the coordinator starts with a new state"
    return (
        f"a new generation: {changed}; {news}, the open round begins again, and {len(ledger.enrolled())} devices take "
        "part with the models that they have"
    )


def spec_changes(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield the differences of two tables, such as `train.learning_rate 0.01 becomes 0.005`."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from spec_changes(old, new, f"{where}{name}.")
        elif old != new:
            shown = isinstance(old, (bytes, type(None))) or isinstance(new, (bytes, type(None)))
            yield f"{where}{name} changes" if shown else f"{where}{name} {old!r} becomes {new!r}"


def standing(
    spec: FederationSpec,
    policy: RoundPolicy,
    ledger: Ledger,
    registry: DeviceRegistry,
    reduction: Reduction,
    *,
    orders: Orders,
    robust: RobustTable,
    canary: Canary | None = None,
    revoked: frozenset[str] = frozenset(),
) -> tuple[Aggregation, RoundState, str]:
    """Fill a new registry and a new reduction from the ledger; returns aggregation, rounds and news.

    News are a line if a new generation begins, or an empty text.  revoked: devices that may no longer take part.
    Raises UsageError if the ledger belongs to another configuration, StoreError if the disk fails.
    """
    news = _bind(ledger, spec, reduction)
    with ledger.reading():
        aggregation, place, answered = _read(ledger, registry, reduction, policy, robust, canary=canary)
    record = aggregation.record
    if place.exchange == policy.exchanges and not record.stopped:
        record.stopped = round_pacing.why_stop(policy, record)  # the end of this round is not recorded
    counted_to = {device: after - 1 for device, after in record.last_round.items()}
    ahead = _ahead(ledger, reduction, place, policy)
    return (
        aggregation,
        rounds.resumed(
            policy,
            place,
            answered,
            asked=record.asked,
            answered=record.answered,
            gone=orders.gone | revoked,
            known=frozenset(registry.numbers),
            stopping=orders.stopping,
            enough=bool(record.stopped),
            counted_to=dict(counted_to, **{each.device: each.place.round for each in ahead}),
            ahead=ahead,
        ),
        news,
    )


def _read(
    ledger: Ledger,
    registry: DeviceRegistry,
    reduction: Reduction,
    policy: RoundPolicy,
    robust: RobustTable,
    *,
    canary: Canary | None,
) -> tuple[Aggregation, ExchangeId, frozenset[str]]:
    """Fill registry and reduction; returns the aggregation, the open exchange, and the devices that answered in it."""
    registry.restore(ledger.enrolled())
    record, round_ = RunRecord(), 0
    checkpoint = ledger.last_checkpoint()
    if checkpoint is not None:
        record = saved_record.from_json(checkpoint.record, checkpoint.history, Periods.restored(checkpoint.periods))
        round_ = checkpoint.round
        reduction.load(checkpoint.state)
    record.sample = frozenset(policy.closed_with)
    versions = EarlierVersions(ledger, reduction, policy) if policy.buffer else None
    aggregation = Aggregation(registry, reduction, record, policy.exchanges, robust, canary=canary, versions=versions)
    if record.stopped:
        round_ = policy.rounds  # only the closing exchange is left
    closed = ledger.closed(round_)
    for exchange in sorted(closed):
        place = ExchangeId(round_, exchange)
        frames = ledger.uploads(place)
        for device in closed[exchange]:
            aggregation.add_stored(frames[device])
        if versions is not None:
            versions.keep(round_)
        with suppress(EmptyRound):  # this was logged before the restart, and the round has no result again
            aggregation.close(place, closed[exchange])
    place = ExchangeId(round_, len(closed))
    frames = ledger.uploads(place)
    for device in sorted(frames):
        aggregation.add_stored(frames[device])
    return aggregation, place, frozenset(frames)


def _ahead(
    ledger: Ledger, reduction: Reduction, place: ExchangeId, policy: RoundPolicy
) -> tuple[rounds.Persisted, ...]:
    """Return the durable uploads that count in the next buffer."""
    if not policy.buffer:
        return ()
    found = []
    for device, frame in sorted(ledger.uploads(ExchangeId(place.round + 1, 0)).items()):
        upload = reduction.stored(frame)
        if upload is not None:
            made = ExchangeId(upload.round, upload.exchange)
            found.append(rounds.Persisted(device, made, StoredUpload(upload), 0.0))
    return tuple(found)


def _bind(ledger: Ledger, spec: FederationSpec, reduction: Reduction) -> str:
    """Bind a new ledger to this configuration; returns a line if a new generation begins, or an empty text.

    Raises UsageError if it is bound to another configuration, and its rounds have an end.
    """
    if ledger.bind(storage.serialise(spec)):
        return ""
    news = begin_generation(ledger, spec, reduction.state)
    if news is None:
        raise _of_another_configuration(spec)
    return news


def check_same_federation(bound: bytes | None, spec: FederationSpec) -> None:
    """Raise UsageError if a ledger is bound to another configuration.  bound: the one it has, or None if unknown."""
    if bound is not None and bound != storage.serialise(spec):
        raise _of_another_configuration(spec)


def _of_another_configuration(spec: FederationSpec) -> UsageError:
    return UsageError(
        f"the ledger belongs to another configuration of {spec.federation}: "
        "give --out another folder, or the configuration that it was begun with"
    )


LINK_S = 10.0
"""Maximum wait for a link: a broker that is silent or refuses these topics must not block a coordinator."""
SETTLE_S = 0.3
"""Seconds within which a broker delivers the retained status of a coordinator."""
ANSWER_S = 3.0
"""Maximum wait for the answer of a coordinator that has announced that it serves."""
POLL_S, ASK_S = 0.1, 1.0
"""Maximum wait for one event, and the seconds after which the question is repeated."""


def another_serves(
    transport: Transport, federation: str, operator: str, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Whether a coordinator of this federation has announced that it serves and answers a question.

    transport: not connected yet; closed in the end.  operator: an id for the answer, used only here.
    Returns False at once without a broker.  A killed coordinator cannot answer, even if its status is still on the
    broker, so it can be restarted.
    """
    question = Inquiry(federation=federation, about="devices", operator=operator, request=secrets.token_bytes(16))
    transport.connect(topics.operator_subscriptions(federation, operator))
    linked = ready = False
    end_s, ask_s = clock() + LINK_S, clock()
    try:
        while clock() < end_s:
            if linked and ready and clock() >= ask_s:
                transport.send(topics.control(federation), codec.encode(question))
                ask_s = clock() + ASK_S
            event = transport.poll(POLL_S)
            if isinstance(event, Disconnected):
                return False
            if isinstance(event, Connected):
                linked, end_s = True, clock() + (ANSWER_S if ready else SETTLE_S)
            message = _message(event, federation) if isinstance(event, Incoming) else None
            if isinstance(message, ControlAnswer) and message.request == question.request:
                return True
            if isinstance(message, CoordinatorStatus):
                if message.state != "ready":
                    return False
                if not ready:
                    ready, end_s = True, clock() + (ANSWER_S if linked else LINK_S)
        return False
    finally:
        transport.close()


def _message(incoming: Incoming, federation: str) -> object:
    """Return the message of a frame, or None if it is illegal or of another federation."""
    incoming.acknowledge()
    try:
        message = codec.decode(incoming.frame).message
    except RemoteProtocolError:
        return None
    return message if message.federation == federation else None
