"""A run's record as plain values for JSON: what a checkpoint of the ledger holds, and how a restart restores it.

What is noted of each round is written once, when the round closes (`new_history`), so a checkpoint does not grow with
the rounds.  The open round's counts (`unclosed`) are only in the checkpoints of simulations: a restarted coordinator
reads the uploads again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.record.control_group import ControlGroup
from coordinator.record.periods import Periods
from coordinator.record.round_result import CURVES, Missed, RoundResult
from coordinator.record.run_record import TOTALS, RunRecord

NOTED = ("contributors", "exchanges", "waited_s", "waited_for", "declined", "silent")
"""The fields of a RoundResult that are counted separately in each round."""


def _pairs(plain: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {device: tuple(pair) for device, pair in plain.items()}


def _dicts(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {device: dict(found) for device, found in plain.items()}


def _counters(plain: Mapping[str, Mapping[str, int]]) -> dict[str, Counter[str]]:
    return {device: Counter(counts) for device, counts in plain.items()}


_RESTORED: Mapping[str, Callable[[Any], Any]] = {
    "updates": Counter,
    "refused_frames": _counters,
    "refused_devices": dict,
    "left": dict,
    "why_withheld": dict,
    "outliers": _pairs,
    "bytes_up": Counter,
    "bytes_down": Counter,
    "scalars": Counter,
    "contributed": Counter,
    "rounds_done": Counter,
    "metrics": _dicts,
    "asked": int,
    "answered": int,
}
"""The fields that are saved, beside the sums and what is noted of each round, and how each comes back from JSON."""
_RESTORED_LATER: Mapping[str, Callable[[Any], Any]] = {
    "refused_by_devices": _counters,
    "why_not_served": dict,
    "joining": _dicts,
    "declined": _counters,
    "joules_source": dict,
    "contested": Counter,
    "left_out": Counter,
    "held_out": dict,
    "why_left_out": dict,
    "capped": _pairs,
    "count_cap": lambda plain: plain and tuple(plain),
    "slot_caps": dict,
    "missed": lambda plain: [Missed(*each) for each in plain],
    "stopped": str,
    "pace": dict,
    "skips": int,
    "last_skip": dict,
    "rolled": int,
    "kinds": _dicts,
    "last_round": dict,
    "canary": dict,
}
"""Those that older records may lack."""
_FIELDS = frozenset((*_RESTORED, *_RESTORED_LATER, *CURVES, "instruments", "rounds", "control", "control_later"))
"""The keys of a saved record that are not sums."""


def to_json(record: RunRecord) -> dict[str, Any]:
    """Return the record as plain values, without what it notes of each round (`new_history`)."""
    found = {name: getattr(record, name) for name in (*_RESTORED, *_RESTORED_LATER)}
    found["control"] = record.control.to_json()
    found["control_later"] = record.control.later_to_json()
    return {**found, **({"closed": record.closed} if record.rolled else {}), **record.sums}


def new_history(record: RunRecord) -> dict[int, dict[str, Any]]:
    """Return the notes on each unsaved round, by its number."""
    return {number: _noted(record, number) for number in sorted(record.unsaved)}


def _noted(record: RunRecord, number: int) -> dict[str, Any]:
    by_round = {name: getattr(record, name).get(number) for name in (*CURVES, "instruments")}
    found: dict[str, Any] = {name: noted for name, noted in by_round.items() if noted}
    if record.rolled < number <= record.done:
        result = record.rounds[number - 1 - record.rolled]
        found["result"] = {name: getattr(result, name) for name in (*NOTED, *TOTALS)}
        found["result"] |= {"sums": dict(result.sums)} if result.sums else {}
    return found


def from_json(
    plain: Mapping[str, Any], history: Mapping[int, Mapping[str, Any]], periods: Periods | None = None
) -> RunRecord:
    """Restore what `to_json` returned, what `new_history` did of each round, and the periods."""
    older = _older_history(plain)
    history = {**older, **history}
    by_round: dict[str, Any] = {
        name: {number: noted[name] for number, noted in sorted(history.items()) if name in noted}
        for name in (*CURVES, "instruments", "result")
    }
    results = by_round.pop("result")
    record = RunRecord(
        periods=periods or Periods(),
        **by_round,
        rounds=[RoundResult(round=number, **result) for number, result in results.items()],
        sums=defaultdict(Counter, {name: Counter(found) for name, found in plain.items() if name not in _FIELDS}),
        **{name: restore(plain[name]) for name, restore in _RESTORED.items()},
        **{name: restore(plain[name]) for name, restore in _RESTORED_LATER.items() if name in plain},
        unsaved=set(older),
    )
    if "control" in plain:
        record.control = ControlGroup.from_json(plain["control"], plain.get("control_later", {}))
    record.closed |= plain.get("closed", {})
    record.skips_rolled = record.skips
    return record


def _older_history(plain: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the history by round of a record that holds all of it: ledgers had no table of it once."""
    found = {number: {"result": result} for number, result in enumerate(plain.get("rounds", ()), 1)}
    for name in (*CURVES, "instruments"):
        for number, noted in plain.get(name, {}).items():
            found.setdefault(int(number), {})[name] = noted
    return found


def unclosed(record: RunRecord) -> dict[str, Any]:
    """Return the counts and figures of the open round; a restart would lose them."""
    done = record.done
    return {
        "figures": {
            name: {number: found for number, found in getattr(record, name).items() if number >= done}
            for name in CURVES
        },
        "metrics": record.metrics,
        "bytes_up": dict(record.bytes_up),
        "bytes_down": dict(record.bytes_down),
        "scalars_down": record.scalars["down"],
        "waiting": record.waiting.to_json(),
    }


def remember(record: RunRecord, plain: Mapping[str, Any]) -> None:
    """Restore what `unclosed` returned."""
    record.bytes_up, record.bytes_down = Counter(plain["bytes_up"]), Counter(plain["bytes_down"])
    record.scalars["down"] = plain["scalars_down"]
    record.waiting.restore(plain["waiting"])
    for name, rounds in plain.get("figures", {}).items():  # older checkpoints do not have them
        for number, found in rounds.items():
            getattr(record, name).setdefault(int(number), {}).update(found)
            record.unsaved.add(int(number))
    record.metrics.update({device: {**found} for device, found in plain.get("metrics", {}).items()})
