"""Where a coordinator stands when it starts: at the beginning, or where its ledger says that it was.

The round that was open is computed again, from the checkpoint of its start and the uploads that were durable.
"""

from __future__ import annotations

from coordinator import rounds
from coordinator.ledger import Ledger
from coordinator.record import Record
from coordinator.reduction import Reduction
from coordinator.register import Register
from coordinator.rounds import Place, Policy, RoundState
from coordinator.tally import Tally
from edge_sdk.errors import UsageError
from edge_sdk.protocol import storage
from edge_sdk.protocol.messages import FederationSpec


def standing(
    spec: FederationSpec, policy: Policy, ledger: Ledger, register: Register, reduction: Reduction
) -> tuple[Tally, RoundState]:
    """Fill a new register and a new reduction; what they then add up to, and where the rounds go on.

    Raises UsageError where the ledger belongs to another configuration, StoreError where the disk fails.
    """
    _bind(ledger, spec)
    register.restore(ledger.enrolled())
    record, round_ = Record(), 0
    checkpoint = ledger.last_checkpoint()
    if checkpoint is not None:
        record, round_ = Record.from_json(checkpoint.record), checkpoint.round
        reduction.load(checkpoint.state)
    tally = Tally(register, reduction, record, policy.exchanges)
    closed = ledger.closed(round_)
    for exchange in sorted(closed):
        place = Place(round_, exchange)
        frames = ledger.uploads(place)
        for device in closed[exchange]:
            tally.add_stored(frames[device])
        tally.close(place, closed[exchange])
    place = Place(round_, len(closed))
    frames = ledger.uploads(place)
    for device in sorted(frames):
        tally.add_stored(frames[device])
    return tally, rounds.resumed(policy, place, frozenset(frames), asked=record.asked, answered=record.answered)


def _bind(ledger: Ledger, spec: FederationSpec) -> None:
    """A new ledger takes this configuration as its own."""
    if not ledger.bind(storage.serialise(spec)):
        raise UsageError(
            f"the ledger belongs to another configuration of {spec.federation}: "
            "give --out another folder, or the configuration that it was begun with"
        )
