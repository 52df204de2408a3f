"""The keys of a [[fleet]] row: the conditions under which a simulated device works, and rules that choose its model.

    model = "cnn"                      this family, or MODULE:FACTORY
    model = "board"                    the same as board:mlp,cnn,resnet
    model = "board:small,medium,large" a list from small to large: the faster the board, the further down the list
    model = "random:a,b,c"             one of them, drawn for each device from the federation's seed
    model = "cycle:a,b,c"              one after the other, by the device's number
    model = "group:text-4"             the same, of a list with a name (edge_sim.models.families.GROUPS)

A list holds names of families and MODULE:FACTORY; a factory in a module that is itself called board, cycle, group or
random cannot be named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.boards.profiles import Board
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Real, Text
from edge_sim import byzantine
from edge_sim.models import families

DAY_S = 86_400.0
_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_MIDNIGHT = "24:00"
"""Another way to write midnight as the end of a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A daily window from `opens_s` to `closes_s`, in seconds after midnight; it may span midnight."""

    opens_s: float
    closes_s: float

    def holds(self, day_s: float) -> bool:
        """Whether the window is open at this time.  day_s: seconds since any midnight."""
        return (day_s - self.opens_s) % DAY_S < self.length_s

    def next_edge(self, now_s: float, starts_s: float) -> tuple[float, bool]:
        """Return the first time after `now_s` at which the window opens (True) or closes (False).

        Time 0 is `starts_s` after midnight.  Each edge is computed from midnight, not from the previous edge, so
        that rounding cannot return the same edge twice.
        """
        edges = ((self.opens_s, True), (self.closes_s, False))
        return min(
            (edge_s - starts_s + self._days(now_s + starts_s - edge_s) * DAY_S, opens) for edge_s, opens in edges
        )

    @staticmethod
    def _days(since_s: float) -> int:
        """Return the number of days from a first edge, `since_s` seconds ago, to the next edge."""
        return math.floor(since_s / DAY_S) + 1

    @property
    def length_s(self) -> float:
        """Seconds for which the window is open each day."""
        return (self.closes_s - self.opens_s) % DAY_S


def read_time(text: str, where: str) -> float:
    """Read HH:MM and return seconds after midnight.  Raises UsageError."""
    found = re.fullmatch(_TIME, text)
    if found is None:
        raise UsageError(f'{where}: expected a time of day such as "22:00", found {text!r}')
    return 3600.0 * int(found[1]) + 60.0 * int(found[2])


def read_window(text: str, where: str) -> Window:
    """Read a window written as HH:MM-HH:MM; it may end at 24:00.  Raises UsageError."""
    opens, _, closes = text.partition("-")
    if re.fullmatch(rf"{_TIME}-({_TIME}|{_MIDNIGHT})", text) is None:
        raise UsageError(f'{where}: expected two times of day such as "22:00-06:00", found {text!r}')
    window = Window(read_time(opens, where), DAY_S if closes == _MIDNIGHT else read_time(closes, where))
    if not window.length_s:
        raise UsageError(f"{where}: opens when it closes, {text!r}; leave it out for devices that are always on")
    return window


_Chance = Annotated[float, Real(0.0, 1.0)]
_Duration = Annotated[float, Real(0.0, 1e8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConditions:
    """The conditions of one device.  The federation's seed and the device's number determine the random ones."""

    available: Annotated[str, Text(11)] | None = None
    """Hours of every virtual day in which the device is on, as HH:MM-HH:MM; default: always."""
    battery_wh: Annotated[float, Real(0.0, 1e6)] | None = None
    """Capacity of the battery; the device switches off when it is empty; 0 means mains power; default: the board's
    value."""
    charge_w: Annotated[float, Real(0.0, 1e6)] = 0.0
    """Power that charges the battery while the device is off; a device that ran empty restarts once it is full."""
    dropout: _Chance = 0.0
    """Probability that the device loses power while it computes an exchange."""
    dropout_s: _Duration = 600.0
    """Time for which the device stays off after a dropout."""
    power_cuts_per_day: Annotated[float, Real(0.0, 1e5)] = 0.0
    """Average number of power cuts in a virtual day; they come at random times."""
    power_cut_s: _Duration = 60.0
    """Time for which the device stays off after a power cut."""
    fails_after_s: Annotated[float, Real(0.001, 1e10)] | None = None
    """Mean virtual time to permanent failure, at a random time; default: never."""
    slow_share: _Chance = 0.0
    """Share of the exchanges in which the device computes slowly, as a straggler."""
    slow_factor: Annotated[float, Real(1.0, 1e4)] = 5.0
    """Factor by which the computing time of a slow exchange is multiplied."""
    clock_offset_s: Annotated[float, Real(-1e9, 1e9)] = 0.0
    """Error of the device's clock at virtual time 0."""
    clock_drift: Annotated[float, Real(-0.5, 1.0)] = 0.0
    """Drift of the device's clock: seconds gained per second."""
    byzantine: Annotated[str, Text(200)] | None = None
    """MODULE:FUNCTION that replaces the knowledge in the device's uploads (edge_sim/byzantine.py)."""

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for wrong values that the types of the fields allow."""
        if self.available is not None:
            read_window(self.available, f"{where}.available")
        if self.byzantine is not None:
            try:
                byzantine.load_tamper(self.byzantine)
            except UsageError as error:
                raise UsageError(f"{where}.byzantine: {error}") from None


IDEAL_CONDITIONS = DeviceConditions()
"""Conditions of a device that is always on, has its board's power supply and is never slow."""


RULES = ("board", "cycle", "group", "random")
FOR_BOARDS = "mlp,cnn,resnet"
FAST_FLOPS_PER_S, STEP = 5e9, 4
"""A board of at least this training speed takes the second model of a list; a board STEP times as fast, the third."""


def model_of(rule: str, board: Board, number: int, seed: int) -> str:
    """Return the family or MODULE:FACTORY of one device.

    Raises UsageError for an unknown name anywhere in a list, and for a board that cannot run any model of its list.
    """
    kind, _, listed = ("board", ":", FOR_BOARDS) if rule == "board" else rule.partition(":")
    if kind not in RULES:
        families.check_family(rule)
        return rule
    if kind == "group":
        listed = _group(listed)
    names = [name.strip() for name in listed.split(",")]
    for name in names:
        families.check_family(name)
    if kind == "board":
        return _for_board(names, board)
    if kind in ("cycle", "group"):
        return names[number % len(names)]
    return names[int(np.random.default_rng([seed, 8, number]).integers(len(names)))]


def _group(name: str) -> str:
    """Return the list of a group.  Raises UsageError."""
    if name not in families.GROUPS:
        raise UsageError(f"no group of model families {name!r}; known are {', '.join(families.GROUPS)}")
    return families.GROUPS[name]


def _for_board(names: list[str], board: Board) -> str:
    """Return the model for the board's speed, or the largest smaller one for which the board has a runtime."""
    place = sum(board.train_flops_per_s >= FAST_FLOPS_PER_S * STEP**i for i in range(len(names) - 1))
    for name in reversed(names[: place + 1]):
        if families.runtime(name) in board.runtimes:
            return name
    raise UsageError(
        f"fleet.model: board:{','.join(names)}: {board.name} runs {', '.join(board.runtimes)} and none of the models "
        f"for its speed ({', '.join(names[: place + 1])}); begin the list with one that it can run"
    )


def named_functions(value: Any) -> Iterator[str]:
    """Yield every text with a colon in tables of settings, the entries of a rule for models one by one."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from named_functions(inner)
    elif isinstance(value, str):
        kind, _, listed = value.partition(":")
        names = listed.split(",") if kind in RULES else [value]
        yield from (name.strip() for name in names if ":" in name)
