"""Simulated boards: the seconds and joules of computing, sending, receiving and waiting, of each and of the fleet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from edge_sdk.boards.profiles import Board, Effort, Link

J_PER_WH = 3600.0
_LINKS = 64
"""Links whose times are cached."""
_TRANSFERS = 1024
"""Maximum number of frame sizes whose times a link caches: a round's frames have few sizes."""


class DeviceCost(NamedTuple):
    """The cost of a run for one device: seconds of computing, joules, floating-point operations and optimiser steps."""

    busy_s: float = 0.0
    energy_j: float = 0.0
    flops: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Books:
    """Totals of a board over the whole run, power cuts included."""

    flops: int = 0
    steps: int = 0
    computed_s: float = 0.0
    """Seconds of computing, including the one until `busy_until_s`."""
    air_s: float = 0.0
    """Seconds of sending and receiving."""
    on_s: float = 0.0
    """Seconds with the power on, before `since_s`."""
    hot_s: float = 0.0
    """Heat at `rested_s`, as seconds of computing not yet cooled off."""
    stored_j: float = 0.0
    """Energy in the battery when the board had used `settled_j` joules."""


class _Work(NamedTuple):
    """Totals of a board's computing so far."""

    flops: int = 0
    steps: int = 0
    computed_s: float = 0.0


_NO_WORK = _Work()
_Transfers: TypeAlias = dict[tuple[int, bool], tuple[float, float]]
"""Seconds on the air and of the whole transfer, by the size and direction of a frame."""
_KNOWN_LINKS: dict[int, tuple[Link, _Transfers]] = {}


def _transfers_of(link: Link) -> _Transfers:
    """Return the times that all boards with this link cache together."""
    known = _KNOWN_LINKS.get(id(link))
    if known is None or known[0] is not link:
        if len(_KNOWN_LINKS) >= _LINKS:
            _KNOWN_LINKS.clear()
        _KNOWN_LINKS[id(link)] = known = link, {}
    return known[1]


class Hardware:
    """A board and its link.  Times are virtual seconds; `now_s` never goes back.

    A board throttles after `throttles_after_s` of computing and is cold again after the same rest.  Its heat is a
    number of seconds, to which computing adds and from which resting subtracts.
    """

    def __init__(self, board: Board, link: Link, *, battery_wh: float | None = None, charge_w: float = 0.0) -> None:
        """battery_wh: replaces the board's value; 0 means mains power.  charge_w: charging power while it is off."""
        self.board, self.link = board, link
        self._capacity_j = J_PER_WH * (board.battery_wh if battery_wh is None else battery_wh)
        self._charge_w = charge_w
        self._books = _Books(stored_j=self._capacity_j)
        self._transfers = _transfers_of(link)
        self._since_s: float | None = None
        """When the board was switched on, or None while it is off."""
        self._busy_until_s = 0.0
        self._rested_s = 0.0
        self._off_s = 0.0
        """When the board was switched off, if it is off."""
        self._settled_j = 0.0
        self._before = _NO_WORK
        """Totals before the last computation."""
        self._began_s, self._unfinished = 0.0, False
        """When the last computation began, and whether its result is not stored yet."""
        self._changed: list[int] | None = None
        self._place = 0

    def watch(self, changed: list[int], place: int) -> None:
        """Add `place` to a list, once, when next something happens."""
        self._changed, self._place = changed, place

    def _note(self) -> None:
        if self._changed is not None:
            self._changed.append(self._place)
            self._changed = None

    def figures(self) -> tuple[tuple[float, float, float, float, float], int]:
        """Return the seconds from which `busy_s` and `used_j` follow at any time, and the FLOPs so far.

        The seconds: computed, busy until, on before the last start, when it was switched on or nan, on the air.
        """
        since_s = math.nan if self._since_s is None else self._since_s
        books = self._books
        return (books.computed_s, self._busy_until_s, books.on_s, since_s, books.air_s), books.flops

    # -- what happens to it -----------------------------------------------------------------------------------------

    def power_on(self, now_s: float) -> None:
        """Switch the power on; the battery was charged while the board was off."""
        if self._since_s is not None:
            return
        self._note()
        charged_j = self._charge_w * (now_s - self._off_s)
        self._books.stored_j = min(self._capacity_j, self._books.stored_j + charged_j)
        self._since_s = now_s

    def power_off(self, now_s: float) -> None:
        """Switch the power off; ends a running computation."""
        if self._since_s is None:
            return
        self._note()
        self._abandon(now_s)
        self._unfinished = False
        self._settle(now_s)
        self._books.on_s += now_s - self._since_s
        self._since_s, self._off_s = None, now_s

    def compute(
        self, train: Effort, infer: Effort, now_s: float, *, slow_factor: float = 1.0, saved_bytes: int = 0
    ) -> float:
        """Begin a computation, replacing a running one; return the seconds for computing and saving."""
        self._note()
        self._abandon(now_s)
        books = self._books
        self._before = _Work(books.flops, books.steps, books.computed_s)
        self._began_s, self._unfinished = now_s, True
        books.flops += int(train.flops + infer.flops)
        took_s = self.throttled_s(self.board.compute_s(train, infer) * slow_factor, now_s)
        took_s += saved_bytes / self.board.disk_bytes_per_s
        books.computed_s += took_s
        self._busy_until_s = now_s + took_s
        return took_s

    def stored(self) -> None:
        """Note that the result of the last computation is stored: it will not be repeated."""
        self._unfinished = False

    def stepped(self, steps: int) -> None:
        """Count optimiser steps."""
        self._books.steps += steps

    def throttled_s(self, cold_s: float, now_s: float) -> float:
        """Return the seconds that `cold_s` of computing take at the board's present heat, and add to the heat."""
        limit_s = self.board.throttles_after_s
        if not limit_s:
            return cold_s
        hot_s = max(0.0, self._books.hot_s - max(0.0, now_s - self._rested_s))
        fast_s = min(cold_s, limit_s - hot_s)
        took_s = fast_s + (cold_s - fast_s) / self.board.throttled_share
        self._books.hot_s, self._rested_s = hot_s + fast_s, now_s + took_s
        return took_s

    def transfer_s(self, size_bytes: int, *, up: bool) -> float:
        """Return the seconds of a transfer and count them as radio time."""
        known = self._transfers.get((size_bytes, up))
        if known is None:
            if len(self._transfers) >= _TRANSFERS:
                self._transfers.clear()
            known = self.link.air_s(size_bytes, up=up), self.link.transfer_s(size_bytes, up=up)
            self._transfers[size_bytes, up] = known
        air_s, transfer_s = known
        self._books.air_s += air_s
        self._note()
        return transfer_s

    __call__ = transfer_s  # so a board is a TransferTime itself: a bound method for each device takes 64 bytes

    # -- what it has come to ----------------------------------------------------------------------------------------

    def spent(self, now_s: float) -> DeviceCost:
        """Return all that the board has spent so far."""
        return DeviceCost(self.busy_s(now_s), self.used_j(now_s), self._books.flops, self._books.steps)

    @property
    def battery(self) -> bool:
        """Whether the board runs on a battery."""
        return bool(self._capacity_j)

    @property
    def air_s(self) -> float:
        """Seconds of sending and receiving so far."""
        return self._books.air_s

    def heat(self, now_s: float) -> float | None:
        """Return the heat as a share of the throttling point, or None if the board never throttles."""
        limit_s = self.board.throttles_after_s
        if not limit_s:
            return None
        return max(0.0, self._books.hot_s - max(0.0, now_s - self._rested_s)) / limit_s

    def unfinished_s(self, now_s: float) -> float:
        """Seconds since a computation began whose result is not stored yet, or 0."""
        return now_s - self._began_s if self._unfinished else 0.0

    def set_aside(self, on_s: float, air_s: float) -> float:
        """Take seconds of idling, including sending and receiving, out of the totals; return their joules.

        The battery has still supplied them.
        """
        self._note()
        joules = self.board.idle_w * on_s + self.link.radio_w * air_s
        self._books.on_s -= on_s
        self._books.air_s -= air_s
        self._settled_j -= joules
        return joules

    def busy_s(self, now_s: float) -> float:
        """Seconds of computing so far."""
        return self._books.computed_s - max(0.0, self._busy_until_s - now_s)

    def used_j(self, now_s: float) -> float:
        """Joules: idle_w * seconds on + (busy_w - idle_w) * seconds of computing + radio_w * seconds of transfer."""
        board, on_s = self.board, self._books.on_s
        if self._since_s is not None:
            on_s += now_s - self._since_s
        busy_j = (board.busy_w - board.idle_w) * self.busy_s(now_s)
        return board.idle_w * on_s + busy_j + self.link.radio_w * self._books.air_s

    def left_j(self, now_s: float) -> float | None:
        """Joules left in the battery, or None without a battery."""
        if not self._capacity_j:
            return None
        return max(0.0, self._books.stored_j - (self.used_j(now_s) - self._settled_j))

    def left_share(self, now_s: float) -> float | None:
        """Charge of the battery as a share of its capacity, or None without a battery."""
        left_j = self.left_j(now_s)
        return None if left_j is None else left_j / self._capacity_j

    def empty_at_s(self, now_s: float) -> float | None:
        """Time at which the battery will be empty under the present load, or None without battery or load."""
        left_j, draw_w = self.left_j(now_s), self.board.idle_w
        if now_s < self._busy_until_s:
            draw_w = self.board.busy_w
        if left_j is None or self._since_s is None or not draw_w:
            return None
        return now_s + left_j / draw_w

    def full_at_s(self, now_s: float) -> float | None:
        """Time at which the battery of a switched-off board will be full, or None if nothing charges it."""
        if not self._capacity_j or not self._charge_w:
            return None
        return now_s + (self._capacity_j - self._books.stored_j) / self._charge_w

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain values, for a checkpoint.

        The totals exclude a running computation, because a resumed run repeats it.
        """
        self._settle(now_s)
        on_s = self._books.on_s + (now_s - self._since_s if self._since_s is not None else 0.0)
        counted = self._before if self._unfinished else self._books
        whole = {"flops": counted.flops, "steps": counted.steps, "computed_s": counted.computed_s}
        return {**asdict(self._books), **whole, "on_s": on_s}

    def restore(self, plain: dict[str, Any], now_s: float) -> None:
        """Restore what to_json returned, switched off; now_s: as given to to_json."""
        self._note()
        self._books = _Books(**plain)
        self._rested_s = self._off_s = now_s
        self._settled_j = self.used_j(now_s)

    def _abandon(self, now_s: float) -> None:
        self._books.computed_s = self.busy_s(now_s)
        self._busy_until_s = min(self._busy_until_s, now_s)

    def _settle(self, now_s: float) -> None:
        """Subtract the joules used since the last call from the battery."""
        used_j = self.used_j(now_s)
        self._books.stored_j = max(0.0, self._books.stored_j - (used_j - self._settled_j))
        self._settled_j = used_j


class FleetTotals:
    """Columns with the figures of all boards, from which the sum over them follows with the bits of a loop."""

    def __init__(self, boards: Sequence[Hardware]) -> None:
        """boards: in the order in which they are added up."""
        self._boards, self._flops, self._total_flops = boards, [0] * len(boards), 0
        self._columns = np.zeros((len(boards), 5))  # computed, busy until, on before, on since, on the air: s
        self._watts = np.array([(b.board.idle_w, b.board.busy_w - b.board.idle_w, b.link.radio_w) for b in boards])
        self._changed = list(range(len(boards)))
        for place, board in enumerate(boards):
            board.watch(self._changed, place)

    def total(self, now_s: float) -> DeviceCost:
        """Return the sums of seconds of computing, joules and FLOPs over all boards so far."""
        for place in self._changed:
            board = self._boards[place]
            self._columns[place], flops = board.figures()
            self._total_flops += flops - self._flops[place]
            self._flops[place] = flops
            board.watch(self._changed, place)
        self._changed.clear()
        computed_s, busy_until_s, on_s, since_s, air_s = self._columns.T
        busy_s = computed_s - np.maximum(0.0, busy_until_s - now_s)
        all_on_s = np.where(np.isnan(since_s), on_s, on_s + (now_s - since_s))
        idle_w, more_w, radio_w = self._watts.T
        used_j = idle_w * all_on_s + more_w * busy_s + radio_w * air_s
        return DeviceCost(sum(busy_s.tolist()), sum(used_j.tolist()), self._total_flops)  # as a loop adds them up
