"""The page of a run in this process: an observer that publishes the coordinator's events at intervals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from coordinator.record.observer import BoardFigures, RunObserver, RunView
from coordinator.record.round_result import OpenExchange, RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.result import spread
from coordinator.results.figures.uplift import uplift
from coordinator.results.page.feed import EVERY_S, IDLE_S, Feed
from coordinator.results.page.values import (
    MOST_MISSED,
    HistoryRows,
    MeasuredRounds,
    PageState,
    PlainRow,
    device_row,
    ledger_values,
    on_page,
)
from coordinator.results.report.progress_file import About, month_rows
from edge_sdk.protocol.operator_messages import DeviceEntry

MOST_AWAITED = 200
"""The most devices that are awaited and listed one by one."""
STATES = {"gathering": "waiting", "collecting": "running", "finishing": "computing", "done": "finished"}
"""The word of the page for the phase of a run, where it is another."""


def _no_boards(_names: Collection[str]) -> Mapping[str, Mapping[str, float]]:
    """Outside a simulation no board can be asked."""
    return {}


class PageObserver(RunObserver):
    """Publishes the state of a run: at most once in EVERY_S while a browser looks, else once in IDLE_S.

    It is called by the run's thread, and asks the coordinator there, so that nothing is read while it changes.
    """

    def __init__(
        self,
        feed: Feed,
        about: About,
        where: str,
        *,
        virtual: bool,
        links: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """virtual: whether the coordinator's clock is that of a simulation.  links: by device, where they are known."""
        self._feed, self._about, self._where, self._clock = feed, about, where, clock
        self._time, self._links = "virtual" if virtual else "wall", links or {}
        self._view: RunView | None = None
        self._history, self._measured = HistoryRows(), MeasuredRounds()
        self._boards: BoardFigures = _no_boards
        self._told_s = -IDLE_S

    def begun(self, view: RunView) -> None:
        """Ask this coordinator from now on."""
        self._view = view
        self._feed.takes_orders = self._time == "wall"

    def simulated(self, boards: BoardFigures) -> None:
        """Ask these boards from now on."""
        self._boards = boards

    def joined(self, device: str, count: int, expected: int) -> None:  # noqa: ARG002  # of RunObserver
        """Publish, if it is time."""
        self._tell()

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Publish, if it is time; the last round in any case."""
        self._tell(now=result.round == of)

    def waited(self, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Carry out what was ordered on the page, and publish, if it is time."""
        for order in self._feed.orders():
            if not order.answer.set_running_or_notify_cancel():  # the page took it back, as when its server stops
                continue
            order.answer.set_result(
                self._view.operate(order.operation, order.device) if self._view else (False, "the run has not begun")
            )
            self._told_s = -IDLE_S  # so that the person who ordered it sees the change
        self._tell()

    def _tell(self, *, now: bool = False) -> None:
        passed_s = self._clock() - self._told_s
        if self._view is None or not (now or passed_s >= (EVERY_S if self._feed.watched else IDLE_S)):
            return
        self._told_s = self._clock()
        self._feed.publish(self.state(self._view))

    def state(self, view: RunView) -> PageState:
        """The page's view of the run now."""
        record, exchange, now_s = view.record, view.exchange(), view.now_s()
        names, sent = view.devices(), (record.bytes_up, record.bytes_down)
        chosen = on_page(names, lambda name: sum(each[name] for each in sent), {*exchange.awaited, *exchange.held})
        listed = [name for name in names if name in chosen]
        boards = self._boards(chosen)
        return PageState(
            head={**self._head(record, exchange, now_s), "unlisted": len(names) - len(listed)},
            round={
                **dataclasses.asdict(exchange),
                "awaited": exchange.awaited[:MOST_AWAITED],
                "awaited_count": len(exchange.awaited),
                "held": exchange.held[:MOST_AWAITED],
            },
            devices={
                each.device: self._device(each, record, now_s, boards.get(each.device, {}))
                for each in view.entries(listed)
            },
            history=self._history.rows(record.rounds, lambda name: getattr(record, name)),
            ledger=ledger_values(
                bytes_up=record.bytes_up.total(),
                bytes_down=record.bytes_down.total(),
                updates=record.updates,
                refused_frames=record.refused_frames,
                refused_devices=record.refused_devices.values(),
                kind_bytes=record.kind_bytes,
                months=month_rows(record.periods),
            ),
            missed=tuple(record.missed[-MOST_MISSED:]),
            measured=self._measured.rounds(record.accuracy),
        )

    def _head(self, record: RunRecord, exchange: OpenExchange, now_s: float) -> dict[str, Any]:
        about = self._about
        measured, found = record.newest_accuracies()
        lifted = uplift(record.control)
        return {
            "state": STATES.get(exchange.phase, exchange.phase),
            "text": exchange.line,
            "uplift": lifted.text if lifted else "",
            **{name: getattr(about, name) for name in ("federation", "method", "seed", "part", "rounds")},
            "where": self._where,
            "clock": self._time,
            "now_s": round(now_s, 3),
            "controls": self._feed.guarded and self._feed.takes_orders,
            "round": record.done,
            "here": exchange.here,
            "expected": exchange.expected,
            "accuracy": spread([*found.values()]).get("mean"),
            "accuracy_round": measured,
            "bytes_up": record.bytes_up.total(),
            "bytes_down": record.bytes_down.total(),
        }

    def _device(self, entry: DeviceEntry, record: RunRecord, now_s: float, simulated: Mapping[str, float]) -> PlainRow:
        name, figures = entry.device, {**simulated, **entry.figures}
        counted = {
            **{key: getattr(entry, key) for key in ("board", "model", "runtime")},
            **figures,
            "link": self._links.get(name),
            "bytes_up": record.bytes_up[name],
            "bytes_down": record.bytes_down[name],
            "waited_s": record.waiting.total_s[name] or None,
        }
        return device_row(
            **counted
            | {key: getattr(entry, key) for key in ("state", "why", "round")}
            | {"id": name, "version": entry.sdk, "global": record.metrics.get(name, {}).get("global_accuracy")},
            seen_s=None if entry.seen_s is None else round(now_s - entry.seen_s, 1),
        )
