"""The section [federation]: its keys, and the checks of its values, each mistake in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from zoneinfo import ZoneInfoNotFoundError

from coordinator.record.units import human_seconds
from coordinator.rounds.pace import DAY_MINUTES, UTC, OpenHours, RoundPace
from edge_sdk.class_names import checked_names
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import requests_of, why_in_rounds
from edge_sdk.methods.contract.requests import ReadSplice
from edge_sdk.protocol.frames.leaves import ABOVE_0
from edge_sdk.protocol.frames.schema import Count, Id, Integer, Real, Text, Word
from edge_sdk.protocol.messages import FOREVER, MOST_NAMES_BYTES, ClassNames
from edge_sdk.reductions.influence import RobustTable

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24):(00))")
LEAST_ROUND_BYTES = 400
"""A device's Assign, Upload and Receipt of one round, without any knowledge in them."""
LONGEST_EVERY_S = 366 * UNITS["d"]
MAX_STALENESS = 20
"""The default of `max_staleness`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationTable:
    """The section [federation]."""

    name: Id
    """The name in topics and folders: small letters, digits and hyphens."""
    method: Word = "fedmd"
    """The method: one of those that `edge-sdk methods` lists, or your own."""
    rounds: Annotated[int, Integer(1, FOREVER)]
    """The number of rounds, after which a closing exchange sends the result to all devices; or "forever": a service,
    which skips a round that cannot be filled, and ends only when an operator stops it."""
    every: Annotated[str, Text(20)] | None = None
    """The least time between the openings of two rounds, such as "30min", "1h" or "1d"; default: none."""
    window: Annotated[str, Text(11)] | None = None
    """The hours of the day in which rounds open, such as "22:00-06:00"; default: all.  An open round may end later."""
    time_zone: Annotated[str, Text(64)] | None = None
    """The time zone of `window` and of the days of budgets, such as "Europe/Berlin"; default: UTC."""
    bytes_per_day: Annotated[int, Integer(1, 2**60)] | None = None
    """After the round in which the bytes that all devices sent and received on a day reach this, no round opens until
    the next day; default: no limit."""
    joules_per_day: Annotated[float, Real(ABOVE_0, 1e15)] | None = None
    """The same for the joules that devices report; default: no limit."""
    min_new_samples: Annotated[int, Integer(0, 10**9)] = 0
    """A device takes part in a round only if its `SampleStore` got this many samples since its last training; 0 for no
    minimum."""
    devices: Annotated[int, Integer(1, 10**6)]
    """The number of devices that the run is planned for."""
    quorum: Annotated[int, Integer(1, 10**6)] | None = None
    """The minimum number of uploads to close an exchange; default: all devices, or all participants."""
    participants: Annotated[int, Integer(1, 10**6)] | None = None
    """How many answers a round waits for, from devices drawn for it, or which share of `devices`, as 0.3; default: it
    invites all devices."""
    over_selection: bool = False
    """Whether to invite more devices than `participants`, by the measured rate of answers; the first answers count."""
    buffer: Annotated[int, Integer(1, 10**6)] | None = None
    """Aggregate as soon as this many devices have answered, from any versions; a device that answers gets the newest
    version at once.  Then `rounds` counts versions.  Default: none, but rounds that all devices share."""
    busy: Annotated[int, Integer(1, 10**6)] | None = None
    """With `buffer`: how many devices compute at any time; default: all."""
    max_staleness: Annotated[int, Integer(0, 1000)] | None = None
    """With `buffer`: the maximum number of versions since the one with which a device began; an older upload is late.
    Default: 20."""
    classes: Annotated[int, Integer(2, 65535)] | None = None
    """The number of classes; needed if neither a data set nor `class_names` gives it."""
    class_names: ClassNames = ()
    """The names of the classes in their order, for tables, plots and pages.  A device whose data name them otherwise is
    refused when it joins; default: those of a simulation's data set, else numbers."""
    seed: Annotated[int, Integer(0, 2**32 - 1)] = 0
    """The seed of all random draws: the same file gives the same run."""
    start: Annotated[str, Text(8, "equal|own")] | None = None
    """Whether all devices of one architecture begin with equal weights, or each with its own; default: equal in a
    simulation, own in a deployment.  Equal weights in a deployment need one weights file, given to all devices."""
    roster: tuple[Id, ...] = ()
    """Ids of the devices that may join; if empty, any device may join while seats are free."""
    most_devices: Annotated[int, Integer(1, 10**6)] | None = None
    """Without a roster: the maximum number of devices; default: `devices`.  A device takes its seat with its first
    upload and keeps it until it leaves or an operator forgets it."""
    deadline_s: Annotated[float, Real(0.001, 1e7)] = 60.0
    """Seconds after which an exchange closes if it has a quorum."""
    retry_s: Annotated[float, Real(0.001, 1e6)] = 5.0
    """The first wait in seconds before a silent device is invited again; it doubles up to the deadline.  A device whose
    last answers took longer is left out until it takes 1.5 times as long; except for ten rounds after messages were
    lost, and where it needs more than two fifths of `deadline_s`."""
    join_grace_s: Annotated[float, Real(0.0, 1e6)] = 5.0
    """The wait in seconds for the remaining devices once a quorum has joined."""
    control: Annotated[float, Real(0.0, 1.0)] = 0.0
    """The share of the devices that train alone, as a control group: reports say how much better the others are, with
    an interval.  0: none."""
    control_rounds: Annotated[int, Integer(1, 10**6)] = 50
    """The rounds after which other devices train alone, until every device has had its turn."""
    patience: Annotated[int, Integer(0, 1000)] = 3
    """Deadlines that an exchange may pass without a quorum before the run fails.  Deadlines missed because devices
    decline do not count, nor, in a deployment without a roster, those before the first upload."""
    stop_at_bytes: Annotated[int, Integer(1, 2**60)] | None = None
    """End the run after the first round in which the bytes sent and received by all devices reach this; default: no
    limit."""
    stop_at_accuracy: Annotated[float, Real(0.001, 1.0)] | None = None
    """End the run after the first round in which the mean accuracy reaches this: of the global model where there is
    one, else of the devices' own models; default: no limit."""
    feature_dim: Count = 0
    """The width of every model's features; needed by methods that exchange rows of features."""
    nets: Annotated[str, Text(200)] | None = None
    """A MODULE:FACTORY that returns one model of each architecture, for methods that run models on the coordinator."""

    @property
    def asked(self) -> int:
        """The number of devices whose answers a round waits for."""
        return self.devices if self.participants is None else self.participants

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for values that contradict each other."""
        if self.asked > self.devices:
            raise UsageError(
                f"{where}.participants: expected at most the {self.devices} devices, found {self.participants}"
            )
        read_pace(self, where)
        check_control(self, where)
        checked_names(self.class_names, where=f"{where}.class_names")
        if self.class_names and self.classes not in (None, len(self.class_names)):
            raise UsageError(f"{where}.class_names: {len(self.class_names)} names for {self.classes} classes")
        if not names_fit(self.class_names):
            raise UsageError(f"{where}.class_names: more than {MOST_NAMES_BYTES // 1024} KiB of names; shorten them")
        if self.quorum is not None and self.quorum > self.asked:
            word = "devices" if self.participants is None else "participants"
            raise UsageError(f"{where}.quorum: expected at most the {self.asked} {word}, found {self.quorum}")
        if self.most_devices is not None and self.roster:
            raise UsageError(
                f"{where}.most_devices: has no effect with federation.roster, which names all devices; leave it out"
            )
        if self.most_devices is not None and self.most_devices < self.devices:
            raise UsageError(
                f"{where}.most_devices: expected at least the {self.devices} devices, found {self.most_devices}"
            )
        check_buffer(self, where)
        if self.over_selection and self.participants is None:
            raise UsageError(
                f"{where}.over_selection: has no effect without federation.participants; set that, or leave it out"
            )


def names_fit(names: Sequence[str]) -> bool:
    """Whether a Welcome has room for these names of classes."""
    short = len(names) <= 1000 and all(len(name) <= 64 for name in names)
    return short and len("".join(names).encode()) <= MOST_NAMES_BYTES


def read_duration(text: str, where: str) -> float:
    """Read 90s, 30min, 1h or 7d as seconds.  Raises UsageError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f'{where}: expected a duration such as "30min", "1h" or "7d", found {text!r}')
    return float(found[1]) * UNITS[found[2]]


def read_hours(text: str, where: str) -> OpenHours:
    """Read HH:MM-HH:MM, which may span midnight or end at 24:00.  Raises UsageError."""
    found = _HOURS.fullmatch(text)
    if found is None:
        raise UsageError(f'{where}: expected two times of day such as "22:00-06:00", found {text!r}')
    opens_h, opens_m, closes_h, closes_m = (int(each) for each in found.groups() if each is not None)
    hours = OpenHours(60 * opens_h + opens_m, 60 * closes_h + closes_m)
    if (hours.opens - hours.closes) % DAY_MINUTES == 0 and (hours.opens, hours.closes) != (0, DAY_MINUTES):
        raise UsageError(f"{where}: closes when it opens, {text!r}, so no round would open; leave it out for all hours")
    return hours


def read_pace(table: FederationTable, where: str) -> RoundPace:
    """Read the pace that [federation] asks for.  where: the file and section, for messages.  Raises UsageError."""
    every_s = 0.0 if table.every is None else read_duration(table.every, f"{where}.every")
    if table.every is not None and not 1.0 <= every_s <= LONGEST_EVERY_S:
        raise UsageError(f'{where}.every: expected "1s" to "366d", found {table.every!r}')
    hours = None if table.window is None else read_hours(table.window, f"{where}.window")
    pace = RoundPace(
        every_s=every_s,
        hours=hours if hours is None or hours.closes - hours.opens != DAY_MINUTES else None,
        zone=table.time_zone or UTC,
        bytes_per_day=table.bytes_per_day or 0,
        joules_per_day=table.joules_per_day or 0.0,
    )
    needed = table.quorum or table.asked
    least = LEAST_ROUND_BYTES * needed
    if 0 < pace.bytes_per_day < least:
        raise UsageError(
            f"{where}.bytes_per_day: a round of {needed} device{'s' * (needed != 1)} needs {least} bytes without any "
            f"knowledge, found {pace.bytes_per_day}; give {least} and the bytes of your model, for each round of a day"
        )
    try:
        zone_known = pace.tz is not None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone_known = False
    if not zone_known:
        raise UsageError(
            f'{where}.time_zone: expected a name such as "Europe/Berlin" that this machine knows, found '
            f"{table.time_zone!r}; where it knows none, pip install tzdata"
        )
    if table.time_zone is not None and hours is None and not (pace.bytes_per_day or pace.joules_per_day):
        raise UsageError(f"{where}.time_zone: has no effect without window, bytes_per_day or joules_per_day")
    return pace


def rounds_of(plain: object) -> object:
    """Return the number of rounds that `rounds = "forever"` stands for, and any other value as it is."""
    return FOREVER if plain == "forever" else plain


def words_of(pace: RoundPace) -> str:
    """Describe a pace in a line, or return an empty text without one."""
    found = [f"at least {human_seconds(pace.every_s)} apart"] if pace.every_s else []
    found += [f"within {pace.hours} ({pace.zone})"] if pace.hours is not None else []
    found += [f"until {pace.bytes_per_day} bytes a day ({pace.zone}) are spent"] if pace.bytes_per_day else []
    found += [f"until {pace.joules_per_day:g} J a day ({pace.zone}) are spent"] if pace.joules_per_day else []
    return f"rounds open {', '.join(found)}" if found else ""


def check_buffer(table: FederationTable, where: str) -> None:
    """Raise UsageError, naming `where` and the key, for settings that contradict each other."""
    if table.buffer is None:
        for key in ("busy", "max_staleness"):
            if getattr(table, key) is not None:
                raise UsageError(f"{where}.{key}: has no effect without federation.buffer; set that, or leave it out")
        return
    if table.participants is not None:
        raise UsageError(
            f"{where}.participants: a buffer has no rounds to draw devices for; use busy, the number of devices that "
            "compute at any time"
        )
    oldest = MAX_STALENESS if table.max_staleness is None else table.max_staleness
    if table.control and table.control_rounds < oldest:
        raise UsageError(
            f"{where}.control_rounds: {table.control_rounds} versions; uploads may be {oldest} versions old "
            f"(max_staleness), and would come after two changes of the control group: give at least {oldest}"
        )
    if table.busy is not None and table.busy > table.devices:
        raise UsageError(f"{where}.busy: expected at most the {table.devices} devices, found {table.busy}")
    at_work = table.busy or table.devices
    if table.buffer > at_work:
        raise UsageError(
            f"{where}.buffer: {table.buffer} answers of {at_work} busy devices: a device counts once in a buffer, so "
            f"give at most {at_work}"
        )


def check_buffered_method(method: Method[Any], table: FederationTable, robust: RobustTable, where: str) -> None:
    """Raise UsageError for a method, or a way to combine uploads, that needs rounds."""
    if table.buffer is None:
        return
    why = why_in_rounds(method)
    if why:
        raise UsageError(f"{where}.buffer: {method.name} needs rounds: {why}; leave federation.buffer out")
    if robust.logits != "mean":
        raise UsageError(
            f"{where}.buffer: robust.logits = {robust.logits!r} gives all uploads the same weight, and old ones count "
            "for less; leave one of the two out"
        )


def check_control(table: FederationTable, where: str) -> None:
    """Raise UsageError for an empty control group, or one that leaves fewer than two devices to federate."""
    if not table.control:
        return
    count = round(table.control * table.devices)
    if count < 1:
        least = 1 / table.devices
        raise UsageError(
            f"{where}.control: {table.control:g} of {table.devices} devices is less than one; give at least {least:.2g}"
        )
    if table.devices - count < 2:
        raise UsageError(
            f"{where}.control: {table.control:g} of {table.devices} devices leaves {table.devices - count} to learn "
            "from each other; a control group leaves at least 2"
        )


def unfit_for_control(method: Method[Any]) -> str:
    """Return why a method has no control group, or an empty text."""
    if not method.every_exchange or all(not row.up for row in method.exchanges):
        return f"under {method.name} all devices train alone, so there is nothing to compare"
    if ReadSplice in requests_of(type(method)):
        return f"{method.name} trains a device's two models as one, and a device alone would train only its own model"
    if method.releases:
        return f"{method.name} covers by its privacy budget what all devices upload, and not the figures of some alone"
    return ""
