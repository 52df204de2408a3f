"""A generation: what changes between two rounds without an end, when a coordinator resumes with other settings.

The ledger gets a new run id, so that devices take part as in a new run: with the models that they have, and without a
hand at the board.  Round numbers and history continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.ledger import Ledger
from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.messages import FOREVER, FederationSpec
from edge_sdk.protocol.toml_table import to_table

CARRIES = ("method", "params", "contract", "classes", "feature_dim", "public", "class_names")
"""The settings under which the method's state means the same; if one of them changes, its state starts new."""


def begin_generation(ledger: Ledger, spec: FederationSpec, state: object) -> str | None:
    """Bind a ledger of rounds without an end to other settings; returns a line about it, or None if it cannot be.

    state: of the method at its start.
    """
    try:
        before = storage.deserialise(FederationSpec, ledger.spec)
    except (RemoteProtocolError, StoreError):
        return None
    if not before.rounds == spec.rounds == FOREVER or before.federation != spec.federation:
        return None
    carried = all(getattr(before, name) == getattr(spec, name) for name in CARRIES)
    changed = ", ".join(spec_changes(to_table(before, defaults=True), to_table(spec, defaults=True)))
    ledger.begin_generation(storage.serialise(spec), None if carried else storage.serialise(state))
    kept = "the coordinator's state is carried over" if carried else "the coordinator starts with a new state"
    return (
        f"a new generation: {changed}; {kept}, the open round begins again, and {len(ledger.enrolled())} devices take "
        "part with the models that they have"
    )


def spec_changes(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield what differs between two tables, such as `train.learning_rate 0.01 becomes 0.005`."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from spec_changes(old, new, f"{where}{name}.")
        elif old != new:
            shown = isinstance(old, (bytes, type(None))) or isinstance(new, (bytes, type(None)))
            yield f"{where}{name} changes" if shown else f"{where}{name} {old!r} becomes {new!r}"
