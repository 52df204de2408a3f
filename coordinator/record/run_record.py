"""The record of a run: what a coordinator counts and notes while it runs.  `saved_record` saves and restores it."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from coordinator.record.control_group import ControlGroup
from coordinator.record.periods import Periods
from coordinator.record.round_result import CURVES, PREFIXES, ByName, Missed, RoundResult, Waiting
from edge_sdk.errors import REFUSAL_WORDS
from edge_sdk.methods.contract.requests import MeasuredModel
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.records import getter
from edge_sdk.protocol.knowledge import ByClass, Payload
from edge_sdk.protocol.messages import Upload

MISSED_SHARE = 0.1
"""Share of missed exchanges above which a lock-step method is worth a warning (W5)."""

MAX_REFUSED = 256
"""The most devices whose refusal is kept, so that a sender that invents names fills neither the memory nor a report."""
MAX_MISSED, NEWEST_MISSED = 2000, 200
"""The maximum number of missed exchanges kept one by one: of a run, and of one without an end.  Counts continue."""
CAME_LATE, SAID_NOTHING, LINK_LOST = (
    "its upload came after the deadline",
    "nothing came before the deadline",
    "nothing came before the deadline, and its link was lost or it had missed one before",
)
"""Why a device that did not decline missed an exchange."""
PAUSED = ("paused", "an operator paused it")
"""Word and reason of a device that is not asked."""
MAX_STRANGERS = 100
"""The most names that are kept of senders that do not take part, and whose frames were refused."""
OTHERS = "others"
"""The name under which further ones are counted."""
KINDS = ("knowledge", "receipts", "joining", "public set", "other")
"""What travels: uploads and tasks, which hold the knowledge; receipts of uploads; Hello, Welcome and refusals; the
public set in blocks, and requests for them; everything else."""


def _scalars(payload: Payload) -> int:
    found = 0
    for value in getter(type(payload))(payload):
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            found += value.size
    return found


def _model(name: str) -> MeasuredModel:
    """Return the model that the name of a figure is about."""
    return next((model for model, prefix in PREFIXES.items() if prefix and name.startswith(prefix)), "personal")


TOTALS = (
    "wall_s",
    "bytes_up",
    "bytes_down",
    "scalars_up",
    "scalars_down",
    "device_flops",
    "device_s",
    "device_j",
)
"""The fields of a RoundResult that count since the run began: a round has the difference of two totals."""


class FleetWork(NamedTuple):
    """The total cost on all devices since the run began: FLOPs, seconds of computing, joules."""

    flops: int = 0
    busy_s: float = 0.0
    used_j: float = 0.0


def nobody_knows(_device: str) -> str:
    """Default: the cause of silence is unknown outside a simulation."""
    return ""


NO_WORK = FleetWork()
"""The work in runs whose devices are not metered."""


@dataclass
class RunRecord:
    """Counters and curves of one run."""

    accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """Number of completed rounds -> device -> accuracy."""
    local_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """Accuracies on each device's own task, with the same keys."""
    global_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """Accuracies of the global model; the fields without a prefix are about each device's personal model."""
    global_local_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    active_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """Accuracies of the mean over the round's devices, where the global model is a mean over all cached ones."""
    active_local_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    pm_v: dict[int, dict[str, float]] = field(default_factory=dict)
    """FedNH's PM(V), by rounds and device; `pm_l` is its PM(L)."""
    pm_l: dict[int, dict[str, float]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """All other values of each device's newest evaluations: device -> name with the model's prefix -> value."""
    instruments: dict[int, ByName] = field(default_factory=dict)
    """The method's own figures: number of the round, from 1 -> name -> device, or COORDINATOR -> value."""
    rounds: list[RoundResult] = field(default_factory=list)
    """The completed rounds, without accuracies, which may arrive a round later; without an end, the newest of them."""
    rolled: int = 0
    """The number of completed rounds before those of `rounds`, of which only `periods` are kept."""
    periods: Periods = field(default_factory=Periods)
    """Hours and days of rounds without an end.  Saved by rows of their own."""
    updates: Counter[str] = field(default_factory=Counter)
    refused_frames: dict[str, Counter[str]] = field(default_factory=dict)
    refused_by_devices: dict[str, Counter[str]] = field(default_factory=dict)
    """Frames that devices refused, as their uploads report: device -> word -> count."""
    refused_devices: dict[str, dict[str, str]] = field(default_factory=dict)
    sums: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """The sums of `add`: name of a figure -> device -> amount."""
    round_sums: Counter[str] = field(default_factory=Counter)
    """The sums of `add` over all devices since the last round closed, by name.  Not saved."""
    why_withheld: dict[str, str] = field(default_factory=dict)
    """The newest reason of each device."""
    refused_uploads: dict[str, tuple[ExchangeId, str]] = field(default_factory=dict)
    """The newest upload of each device that was refused for what it held: its place, and why.  Not saved."""
    declining: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The devices that decline now -> word and text of the reason.  Not saved: after a restart their statuses report
    it."""
    declined: dict[str, Counter[str]] = field(default_factory=dict)
    """By device: the exchanges that closed without it because it declined, by the word of the reason."""
    joules_source: dict[str, str] = field(default_factory=dict)
    """Where the joules of each device are from: measured, or profile if any of them are from a profile."""
    temperature_c: dict[str, float] = field(default_factory=dict)
    """The temperature that each device reported last."""
    stopped: str = ""
    """Why the run ends before its last round, with the closing exchange, or empty."""
    pace: dict[str, Any] = field(default_factory=dict)
    """When the last round opened (`opened_s`, since 1970), and what was spent when the `day` began: `bytes`, `joules`.
    """
    skips: int = 0
    """Attempts at a round that were skipped, because it could not be filled."""
    last_skip: dict[str, Any] = field(default_factory=dict)
    """The last of them: the `round`, from 1, when (`at_s`, since 1970), and the `reason`, or empty before the first."""
    missed: list[Missed] = field(default_factory=list)
    """Who missed which exchange, the first MAX_MISSED."""
    round_declined: Counter[str] = field(default_factory=Counter)
    """This round's exchanges that devices declined, by the word of the reason.  Not saved."""
    round_silent: int = 0
    """This round's exchanges that devices left without any answer.  Not saved."""
    contested: Counter[str] = field(default_factory=Counter)
    """By id: how often one of several devices that use it showed that it was still alive."""
    why_not_served: dict[str, str] = field(default_factory=dict)
    """The newest reason of each device."""
    joining: dict[str, dict[str, float]] = field(default_factory=dict)
    """The figures of each device's own model before its first round: device -> name -> value."""
    outliers: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By device: the number of its updates far larger than the others', and the largest ratio to the median."""
    left_out: Counter[str] = field(default_factory=Counter)
    """By device: the accepted uploads that count in no aggregate, because it is held out or they are out of bounds."""
    held_out: dict[str, int] = field(default_factory=dict)
    """By device: the round, from 0, in which it counts again."""
    why_left_out: dict[str, str] = field(default_factory=dict)
    """By device: why it was held out last."""
    capped: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By device that claimed more samples than it is believed to have: what it claimed last, and what it weighed as."""
    count_cap: tuple[int, int] | None = None
    """(limit, weight) of this round: a device that claims more than `limit` samples weighs as `weight`; with the limit
    0 every claim counts.  None before the first round."""
    slot_caps: dict[str, int] = field(default_factory=dict)
    """The caps that cut the counts in slots, by device."""
    control: ControlGroup = field(default_factory=ControlGroup)
    """The devices that train alone, and what they and the others reached."""
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    """In rounds without an end, what sets devices apart: `board`, `model` and the month in which each `joined`, by
    device."""
    canary: dict[str, Any] = field(default_factory=dict)
    """What the guard for all classes knows of earlier models; empty without one."""
    left: dict[str, str] = field(default_factory=dict)
    """Devices that sent a Bye before the end -> reason."""
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bytes by way, `up` or `down`, and by what travelled: a word of KINDS.  Not saved: since the last start."""
    scalars: Counter[str] = field(default_factory=Counter)
    """Numbers of knowledge sent: `up` in accepted uploads, `down` to devices."""
    contributed: Counter[str] = field(default_factory=Counter)
    """By device, the number of exchanges that counted its upload."""
    rounds_done: Counter[str] = field(default_factory=Counter)
    last_round: dict[str, int] = field(default_factory=dict)
    """The last round, from 1, in which an upload of each device counted.  Not saved."""
    holders: Counter[int] = field(default_factory=Counter)
    """By class, the number of this round's uploads with a row for it.  Not saved: a restart reads the uploads again."""
    sharers: int = 0
    """The number of this round's uploads that have rows for any class."""
    asked: int = 0
    """How many devices are known to have answered or not, summed over rounds (as in RoundState)."""
    answered: int = 0
    """How many of these answered."""
    started_s: float | None = None
    """When the first exchange opened, in seconds of the server's clock.

    After a restart the caller may set it; otherwise the time since the last round ended is not counted.
    """
    why_silent: Callable[[str], str] = field(default=nobody_knows, repr=False, compare=False)
    """Tells why nothing has come from a device, where a simulation knows; otherwise empty.  Not saved."""
    waiting: Waiting = field(default_factory=Waiting)
    """Starts empty after a restart, unless `saved_record.remember` restores it."""
    sample: frozenset[str] = frozenset()
    """The devices whose accuracies count where a sample of a fleet is measured, or empty.  Not saved."""
    whole: tuple[int, int] | None = None
    """In a simulation, the last round after which all measured devices were measured, and their number; else None.  Not
    saved."""
    unsaved: set[int] = field(default_factory=set, repr=False, compare=False)
    """The numbers of the rounds with figures that are not saved yet."""
    skips_rolled: int = 0
    """How many of `skips` are in `periods`."""
    closed: dict[str, Any] = field(default_factory=dict)
    """The sums over all completed rounds, by the name of a figure."""

    def __post_init__(self) -> None:
        self.closed = {name: sum(getattr(entry, name) for entry in self.rounds) for name in TOTALS}

    @property
    def done(self) -> int:
        """The number of completed rounds."""
        return self.rolled + len(self.rounds)

    @property
    def wall_s(self) -> float:
        """The seconds of all completed rounds."""
        return float(self.closed["wall_s"])

    def roll_up(self, now_s: float, day: date, *, keep: int | None) -> None:
        """Add the round that was just closed to the hour and the day, and forget all rounds but the newest.

        now_s: since 1970.  keep: how many rounds stay one by one, or a tenth more before they are cut; None for all.
        """
        _, found = self.newest_accuracies()
        mean = statistics.fmean(found.values()) if found else None
        known = self.kinds.setdefault("joined", {})
        if len(known) < len(self.contributed):
            known.update(dict.fromkeys(self.contributed.keys() - known.keys(), f"{day:%Y-%m}"))
        skipped, self.skips_rolled = self.skips - self.skips_rolled, self.skips
        self.periods.add(self.rounds[-1], now_s, day, skipped=skipped, accuracy=mean)
        if keep is None:
            return
        del self.missed[:-NEWEST_MISSED]
        if len(self.rounds) <= keep + keep // 10:
            return
        self.rolled = self.done - keep
        del self.rounds[:-keep]
        for name in (*CURVES, "instruments"):
            curve = getattr(self, name)
            for number in [number for number in curve if number <= self.rolled]:
                del curve[number]
        self.unsaved = {number for number in self.unsaved if number > self.rolled}

    def is_kind(self, device: str, **kinds: str) -> None:
        """Note what sets a device apart, such as its `board`."""
        for name, value in kinds.items():
            self.kinds.setdefault(name, {})[device] = value

    def measured(
        self, device: str, rounds: int, metrics: Mapping[str, float], model: MeasuredModel = "personal"
    ) -> None:
        """Note an evaluation of a model on a device, if this device's figures count.

        Devices that take part measure themselves, also those outside the sample: they have trained more than others,
        so that a mean with them would be too high.
        """
        if not metrics or rounds <= 0 or (self.sample and device not in self.sample):
            return
        named = {PREFIXES[model] + name: value for name, value in metrics.items()}
        self.unsaved.add(rounds)
        for name in CURVES:
            if name in named:
                getattr(self, name).setdefault(rounds, {})[device] = named[name]
        named.pop("accuracy", None)
        self.metrics[device] = {
            **{name: value for name, value in self.metrics.get(device, {}).items() if _model(name) != model},
            **named,
        }

    def instrument(self, round_: int, source: str, values: Mapping[str, float]) -> None:
        """Note instruments of a device or the coordinator; a later exchange of the round replaces an earlier one."""
        self.unsaved.add(round_)
        for name, value in values.items():
            self.instruments.setdefault(round_, {}).setdefault(name, {})[source] = value

    def stands(self, device: str, rounds: int) -> bool:
        """Carry a device's last measurements of its personal model forward; return False if it has none."""
        names = [name for name in CURVES if _model(name) == "personal"]
        earlier = {number for name in names for number, found in getattr(self, name).items() if device in found}
        last = max((number for number in earlier if number < rounds), default=0)
        self.unsaved.add(rounds)
        for name in names:
            value = getattr(self, name).get(last, {}).get(device)
            if value is not None:
                getattr(self, name).setdefault(rounds, {})[device] = value
        return bool(last)

    def held(self, knowledge: Mapping[str, Payload]) -> None:
        """Count the classes that an upload has rows for."""
        classes: set[int] = set()
        for payload in knowledge.values():
            if isinstance(payload, ByClass):
                classes.update(payload.classes.tolist())
        for each in classes:
            self.holders[each] += 1
        self.sharers += bool(classes)

    def refused_frame(self, sender: str, kind: str, *, count: int = 1, named: bool = True) -> int:
        """Count frames that broke the protocol; returns how many this sender has sent under this word.

        named: whether the sender has an entry of its own in any case; beyond MAX_STRANGERS entries, others share one.
        """
        if kind not in REFUSAL_WORDS:
            kind = "knowledge"  # a payload kind of another package refused it
        if not named and len(self.refused_frames) >= MAX_STRANGERS and sender not in self.refused_frames:
            sender = OTHERS
        self.refused_frames.setdefault(sender, Counter())[kind] += count
        return self.refused_frames[sender][kind]

    def refused_device(self, device: str, note: dict[str, str]) -> None:
        """Note a device that was refused; beyond MAX_REFUSED, new names are not kept."""
        if device in self.refused_devices or len(self.refused_devices) < MAX_REFUSED:
            self.refused_devices[device] = note

    def add(self, name: str, device: str, amount: float) -> None:
        """Add to a figure of a device; coordinator/results/figures/device_figures.py declares its name."""
        self.sums[name][device] += amount  # type: ignore[assignment]  # a Counter of seconds or joules, too
        self.round_sums[name] += amount  # type: ignore[assignment]  # likewise

    def add_to_round(self, name: str, amount: float) -> None:
        """Add to a figure of the open round; coordinator/results/figures/round_figures.py declares its name."""
        self.round_sums[name] += amount  # type: ignore[assignment]  # a Counter of seconds or joules, too

    def displaced(self, device: str) -> None:
        """Forget a device that was on probation, and gave up its place."""
        for counts in (self.bytes_up, self.bytes_down, self.sums["silent"]):
            counts.pop(device, None)
        self.declining.pop(device, None)

    def admitted(self, device: str, frame_bytes: int) -> None:
        """Note a device that may take part, and forget an earlier refusal or Bye."""
        self.refused_devices.pop(device, None)
        self.left.pop(device, None)
        self.came(device, frame_bytes, "joining")

    def came(self, device: str, frame_bytes: int, kind: str) -> None:
        """Count a frame of a device; kind: of KINDS."""
        self.bytes_up[device] += frame_bytes
        self.kind_bytes["up", kind] += frame_bytes

    def diverged(self, device: str, reason: str) -> None:
        """Count an upload that the device withheld."""
        self.add("withheld", device, 1)
        self.why_withheld[device] = reason

    def closed_without(
        self,
        declined: Collection[str],
        silent: Collection[str],
        *,
        at: ExchangeId | None = None,
        away: Collection[str] = (),
        withheld: Collection[str] = (),
        paused: Collection[str] = (),
    ) -> None:
        """Count an exchange that closed without these devices.

        at: the exchange, or None to list no devices.  away: those whose link was lost, or that missed an earlier
        deadline.  withheld: those that sent no knowledge because their training diverged or failed.  paused: those that
        an operator paused, which are among `declined`.
        """
        why = {device: f"withheld: {self.why_withheld.get(device, 'it did not say why')}" for device in withheld}
        for device in sorted(declined):
            reason, text = PAUSED if device in paused else self.declining.get(device, ("unknown", ""))
            self.declined.setdefault(device, Counter())[reason] += 1
            self.round_declined[reason] += 1
            why[device] = f"declined: {text or reason}"
        self.sums["silent"].update(silent)
        self.round_silent += len(silent)
        why |= {device: self._why_missed(device, at, lost=device in away) for device in silent}
        if at is not None:
            room = max(0, MAX_MISSED - len(self.missed))
            self.missed += [Missed(at.round + 1, at.exchange + 1, name, why[name]) for name in sorted(why)][:room]

    def _why_missed(self, device: str, at: ExchangeId | None, *, lost: bool) -> str:
        """Why no upload of a device counted in an exchange: what was wrong with it, or why none came."""
        place, fault = self.refused_uploads.get(device, (None, ""))
        if place is not None and place == at:
            return f"refused: {fault}"
        return self.why_silent(device) or (LINK_LOST if lost else SAID_NOTHING)

    def came_late(self, device: str, at: ExchangeId) -> None:
        """Note that an upload arrived after its exchange had closed without it."""
        for place in range(len(self.missed) - 1, -1, -1):
            found = self.missed[place]
            if (found.round, found.exchange) < (at.round + 1, at.exchange + 1):
                return
            if found[:3] == (at.round + 1, at.exchange + 1, device) and not found.reason.startswith(CAME_LATE):
                known = "" if found.reason in (SAID_NOTHING, LINK_LOST) else f" (at the deadline: {found.reason})"
                self.missed[place] = found._replace(reason=CAME_LATE + known)

    def reported(self, device: str, upload: Upload) -> None:
        """Count what an accepted upload reports about its device: the cost of training, and frames that it refused."""
        if upload.busy_s:
            self.add("busy_s", device, upload.busy_s)
        if upload.energy_j:
            self.add("energy_j", device, upload.energy_j)
        if upload.joules_source and self.joules_source.get(device) != "profile":
            self.joules_source[device] = upload.joules_source
        if upload.temperature_c is not None:
            self.temperature_c[device] = upload.temperature_c
        for kind, count in upload.refused_frames.items():
            word = kind if kind in REFUSAL_WORDS else "knowledge"
            self.refused_by_devices.setdefault(device, Counter())[word] += count

    def served(self, device: str, joining: Mapping[str, float], not_served: str) -> None:
        """Note what an upload reports about the model that the device's app predicts with."""
        if joining:
            self.joining[device] = dict(joining)
        if not_served:
            self.add("not_served", device, 1)
            self.why_not_served[device] = not_served

    def outlier(self, device: str, times: float) -> None:
        """Note an update whose norm was `times` the median."""
        count, most = self.outliers.get(device, (0, 0.0))
        self.outliers[device] = count + 1, max(most, times)

    def travelled(self, way: str, knowledge: Mapping[str, Payload], *, times: int = 1) -> None:
        """Count the numbers of an upload (`up`), or of knowledge that is sent to this many devices (`down`)."""
        for payload in knowledge.values():
            self.scalars[way] += times * _scalars(payload)

    def sent(self, device: str, frame_bytes: int, kind: str) -> None:
        """Count a frame to a device; kind: of KINDS."""
        self.bytes_down[device] += frame_bytes
        self.kind_bytes["down", kind] += frame_bytes

    def sent_again(self, way: str, device: str, frame_bytes: int, knowledge: Mapping[str, Payload]) -> None:
        """Do not count a frame that a resumed simulation sends again; way: `up` or `down`."""
        (self.bytes_up if way == "up" else self.bytes_down)[device] -= frame_bytes
        self.kind_bytes[way, "knowledge"] -= frame_bytes
        self.scalars[way] -= sum(_scalars(payload) for payload in knowledge.values())

    def begun(self, now_s: float) -> None:
        """Note that the first exchange since the start or a restart is open."""
        if self.started_s is None:
            self.started_s = now_s - self.closed["wall_s"]

    def round_done(self, contributors: int, exchanges: int, now_s: float, work: FleetWork = NO_WORK) -> RoundResult:
        """Close a round and return it; `work` is what the devices have spent since the run began.

        The bytes and work before the first round, such as those of joining, count in the first round, but not the time.
        """
        then, now = self.closed, self._totals(now_s, work)
        waited_for, waited_s = self.waiting.round_done()
        result = RoundResult(
            round=self.done + 1,
            contributors=contributors,
            exchanges=exchanges,
            waited_for=waited_for,
            waited_s=waited_s,
            declined=dict(self.round_declined),
            silent=self.round_silent,
            **{name: now[name] - then[name] for name in TOTALS},
            sums=dict(self.round_sums),
        )
        self.closed = now
        self.rounds.append(result)
        self.unsaved.add(result.round)
        self.holders, self.sharers = Counter(), 0
        self.round_declined, self.round_silent, self.round_sums = Counter(), 0, Counter()
        return result

    def _totals(self, now_s: float, work: FleetWork) -> dict[str, Any]:
        """The totals since the run began: seconds since the first exchange opened, and what was counted."""
        return {
            "wall_s": self.closed["wall_s"] if self.started_s is None else now_s - self.started_s,
            "bytes_up": self.bytes_up.total(),
            "bytes_down": self.bytes_down.total(),
            "scalars_up": self.scalars["up"],
            "scalars_down": self.scalars["down"],
            "device_flops": work.flops,
            "device_s": work.busy_s + math.fsum(self.sums["busy_s"].values()),
            "device_j": device_joules(self, work),
        }

    def laggards(self) -> tuple[str, ...]:
        """The devices that missed more than a tenth of the exchanges since the run began."""
        closed = sum(result.exchanges for result in self.rounds)
        closed += self.rolled * (self.rounds[-1].exchanges if self.rounds else 0)
        return tuple(sorted(name for name, count in self.contributed.items() if count < (1 - MISSED_SHARE) * closed))

    def last_accuracy(self, device: str) -> float | None:
        """The accuracy of a device's newest evaluation."""
        newest_first = sorted(self.accuracy, reverse=True)
        return next((self.accuracy[r][device] for r in newest_first if device in self.accuracy[r]), None)

    def newest_accuracies(self) -> tuple[int, dict[str, float]]:
        """The last round that any device measured, and its accuracies by device; (0, {}) before the first.

        In a simulation it is the last round that all devices measured: those that took part come first.
        """
        done, devices = self.whole or (math.inf, 0)
        rounds = (number for number, found in self.accuracy.items() if number <= done or len(found) >= devices)
        newest = max(rounds, default=0)
        return newest, self.accuracy.get(newest, {})

    def newest_of_each(self) -> dict[str, float]:
        """The newest accuracy of each device that was ever measured."""
        found: dict[str, float] = {}
        for number in sorted(self.accuracy, reverse=True):
            found = {**self.accuracy[number], **found}
            if len(found) >= len(self.bytes_down):
                break
        return found

    def saved(self) -> None:
        """Note that what `saved_record.new_history` returned is durable."""
        self.unsaved.clear()
        self.periods.unsaved.clear()


def device_joules(record: RunRecord, work: FleetWork) -> float:
    """The joules that all devices have spent since the run began, those that they reported included."""
    return work.used_j + math.fsum(record.sums["energy_j"].values())
