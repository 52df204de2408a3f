"""progress.json: the progress of a run as a small file in its directory, for `edge-sdk report` and for scripts.

The ledger of a running coordinator is locked, so others read this file, which is replaced at once: when a device joins
or a round is done, at most once a second, and in between where something else has changed, such as the refused frames.
summary.json takes its place when the run is over.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.ledger import LEDGER
from coordinator.record import remarks, saved_record
from coordinator.record.observer import RunObserver
from coordinator.record.periods import Periods
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_bytes, human_seconds, of_rounds, percent, printable
from coordinator.results.figures.kinds import by_kind, kind_lines
from coordinator.results.figures.result import spread
from coordinator.results.figures.uplift import uplift
from coordinator.results.report import text_files
from edge_sdk.at_rest.foreign import UNREADABLE, check_fields, open_foreign
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.messages import FOREVER, FederationSpec

NAME, LOCK = "progress.json", "lock"
"""The file with the progress of a run, and the one that the process of a simulation holds: an empty SQLite file."""
PROGRESS_VERSION = 1
EVERY_S = 1.0
"""The least seconds between two writes."""
BETWEEN_S = 5.0
"""The least seconds between two writes while no device joins and no round ends."""
_LOCKED_S = 0.2
"""Seconds to wait for a locked ledger."""
MOST_HOURS, MOST_DAYS, MOST_MONTHS, DAYS_SHOWN = 48, 400, 121, 14
"""The most hours, days and months that are listed, and the days that are shown on the terminal."""
MOST_DEVICES = 256
"""The most devices that are listed one by one, so that the file stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The run that a progress file is about."""

    federation: str
    method: str
    seed: int
    rounds: int
    expected: int
    """The devices that the run was made for."""
    part: str = ""
    """`alone` while the devices train on their own data for the comparison; empty for the run itself."""
    class_names: tuple[str, ...] = ()


def snapshot(about: About, record: RunRecord, *, done: int, devices: int) -> dict[str, Any]:
    """The progress after `done` rounds, with `devices` joined.

    progress.json, version 1, without `resumed_at` (rounds that were done when this process took over), `elapsed_s`
    (since then, or since all had joined) and `updated_s` (seconds since 1970).  An unknown figure is absent.
    """
    measured, found = record.newest_accuracies()
    accuracies = list(found.values())
    listed, newest = sorted(record.bytes_down)[:MOST_DEVICES], record.newest_of_each()
    return {
        "version": PROGRESS_VERSION,
        "federation": about.federation,
        "method": about.method,
        "seed": about.seed,
        "part": about.part,
        "round": done,
        "rounds": about.rounds,
        "devices": max(devices, len(record.bytes_down)),
        "expected": about.expected,
        "accuracy": {"round": measured, "devices": len(accuracies), **spread(accuracies)} if accuracies else {},
        "bytes": {"up_total": record.bytes_up.total(), "down_total": record.bytes_down.total()},
        "updates": dict(record.updates),
        "refused_devices": [record.refused_devices[name] for name in sorted(record.refused_devices)],
        "refused_frames": {sender: dict(kinds) for sender, kinds in sorted(record.refused_frames.items())},
        "per_device": [_device(record, name, newest.get(name)) for name in listed],
        **({"uplift": lifted.text} if (lifted := uplift(record.control)) else {}),
        **(_service(record, about.class_names) if about.rounds == FOREVER else {}),
    }


def _service(record: RunRecord, names: Sequence[str]) -> dict[str, Any]:
    """For rounds without an end: how many attempts were skipped, and the newest hours and days."""
    found: dict[str, Any] = {"skipped": record.skips, "last_skip": record.last_skip, "kinds": by_kind(record, names)}
    for name, kind, most in (("hours", "hour", MOST_HOURS), ("days", "day", MOST_DAYS)):
        periods = record.periods.newest(kind, most)
        found[name] = [{"period": str(key), **periods[key].to_json()} for key in periods]
    found["months"] = month_rows(record.periods)
    return found


def month_rows(periods: Periods) -> list[dict[str, Any]]:
    """The newest months, as plain values."""
    return [{"period": name, **month.to_json()} for name, month in periods.months().items()][-MOST_MONTHS:]


def _device(record: RunRecord, name: str, accuracy: float | None) -> dict[str, Any]:
    return {
        "id": name,
        **({} if accuracy is None else {"accuracy": accuracy}),
        "rounds_done": record.rounds_done[name],
        "bytes_up": record.bytes_up[name],
        "bytes_down": record.bytes_down[name],
    }


class ProgressFile(RunObserver):
    """An observer that keeps progress.json up to date.

    A disk that refuses it ends no run: `say` is called once, and the file is not written again.
    """

    def __init__(
        self,
        folder: Path,
        about: About,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._about, self._say, self._clock = folder / NAME, about, say, clock
        self._record, self._done = RunRecord(), 0
        self._resumed_at: int | None = None
        self._opened = False
        self._devices = 0
        self._begun_s = clock()
        self._next_s = self._between_s = -1.0
        self._written: dict[str, Any] = {}
        self._broken = False

    def joined(self, device: str, count: int, expected: int) -> None:  # noqa: ARG002  # of RunObserver
        """Write how many devices have joined."""
        self._devices = count
        if count == expected:
            self._begun_s = self._clock()
        self._write(now=count == expected)

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:  # noqa: ARG002  # of RunObserver
        """Count the time of rounds from the first that opens: a resumed run first ends one that it did not begin."""
        if not self._opened and not at.exchange:
            self._opened, self._begun_s, self._resumed_at = True, self._clock(), at.round

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Write how far the run is."""
        self._record, self._done = record, result.round
        if self._resumed_at is None:
            self._resumed_at = result.round - 1
        self._write(now=result.round == of)

    def waited(self, record: RunRecord) -> None:
        """Write what has changed since the last time, if that was a while ago."""
        if self._clock() < self._between_s:
            return
        self._record, self._done = record, record.done
        if self._resumed_at is None:
            self._resumed_at = self._done
        self._between_s = self._clock() + BETWEEN_S
        if self._snapshot() != self._written:
            self._write(now=True)

    def _snapshot(self) -> dict[str, Any]:
        return snapshot(self._about, self._record, done=self._done, devices=self._devices)

    def _write(self, *, now: bool) -> None:
        """Write the file, but not within a second of the last time; `now`: write anyway."""
        clock_s = self._clock()
        if self._broken or (clock_s < self._next_s and not now):
            return
        self._next_s, self._between_s = clock_s + EVERY_S, clock_s + BETWEEN_S
        self._written = whole = self._snapshot()
        times = {
            "resumed_at": self._resumed_at or 0,
            "elapsed_s": clock_s - self._begun_s,
            "updated_s": time.time(),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text_files.replace_file(self._path, json.dumps({**whole, **times}) + "\n")
        except OSError as error:
            self._broken = True
            self._say(
                f"{self._path}: cannot be written ({error.strerror}): the run continues, unseen by `edge-sdk report`"
            )


# -- reading ------------------------------------------------------------------------------------------------------


_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("federation", "method", "part", "uplift"), str),
    **dict.fromkeys(("seed", "round", "rounds", "devices", "expected", "resumed_at"), int),
    **dict.fromkeys(("elapsed_s", "updated_s"), float),
    **dict.fromkeys(("accuracy", "bytes", "updates"), Mapping[str, float]),
    "refused_devices": tuple[Mapping[str, str], ...],
    "refused_frames": Mapping[str, Mapping[str, int]],
    "per_device": tuple[Mapping[str, str | float], ...],
    "skipped": int,
    "last_skip": Mapping[str, str | float],
    "kinds": Mapping[str, Mapping[str, Any]],
    **dict.fromkeys(("hours", "days", "months"), tuple[Mapping[str, str | float | None], ...]),
}
"""The types of its values."""
_SOMETIMES = (
    *("part", "uplift", "resumed_at", "elapsed_s", "updated_s", "refused_frames"),
    *("skipped", "last_skip", "hours", "days", "months", "kinds"),
)
"""Values that not every file has."""


def is_running(folder: Path) -> bool:
    """Whether this run directory holds a run that is not over, or was resumed after its summary was written."""
    progress, summary = folder / NAME, folder / "summary.json"
    if not summary.exists():
        return progress.exists() or (folder / LEDGER).exists()
    return progress.exists() and progress.stat().st_mtime_ns > summary.stat().st_mtime_ns


def is_interrupted(folder: Path) -> bool:
    """Whether the run in this directory is a simulation without a process: nobody holds its lock."""
    path = folder / LOCK
    if not path.exists() or not (folder / NAME).exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0.0)) as lock:
            lock.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:  # locked, or not to be read here
        return False
    return True


def read_running(folder: Path, *, whole: bool = True) -> dict[str, Any]:
    """The contents of progress.json, or the same from the ledger, with the `source`: progress, ledger or locked.

    From the ledger there is no `elapsed_s`.

    whole: whether a value that is missing is a fault.  Raises UsageError where neither can be read.
    """
    path = folder / NAME
    if not path.exists():
        return _from_ledger(folder / LEDGER)
    with text_files.reading(path, "the next round replaces it"):
        found = text_files.read_json(path)
    if not isinstance(found, dict) or found.get("version") != PROGRESS_VERSION:
        raise UsageError(f"{path}: is of another version; use the edge-sdk that runs it")
    with text_files.reading(path, "the next round replaces it"):
        check_fields({**{name: found[name] for name in _FIELDS if whole and name not in _SOMETIMES}, **found}, _FIELDS)
    return {"updated_s": path.stat().st_mtime, **found, "source": "progress"}


def _from_ledger(path: Path) -> dict[str, Any]:
    """The progress at the ledger's last checkpoint.  A running coordinator keeps its ledger locked."""
    with text_files.reading(path, "restore a copy"):
        open_foreign(path).close()  # SQLite would wait for a pipe
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_LOCKED_S)) as ledger:
            spec = ledger.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
            checkpoint = ledger.execute("SELECT round, record FROM checkpoint").fetchone()
            known = ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'history'").fetchone()
            history = dict(ledger.execute("SELECT round, entry FROM history")) if known else {}
            devices = ledger.execute("SELECT COUNT(*) FROM devices").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return {"version": PROGRESS_VERSION, "source": "locked"}
        raise UsageError(f"{path}: cannot be read ({error})") from None
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path}: is not a ledger, or is damaged ({error})") from None
    return _checkpoint_progress(path, spec, checkpoint, history, devices) | {
        "source": "ledger",
        "updated_s": path.stat().st_mtime,
    }


def _checkpoint_progress(
    path: Path,
    spec_row: tuple[bytes] | None,
    checkpoint: tuple[int, str] | None,
    history: Mapping[int, str],
    devices: int,
) -> dict[str, Any]:
    if spec_row is None:
        return {"version": PROGRESS_VERSION}
    try:
        spec = storage.deserialise(FederationSpec, spec_row[0])
        done, record = 0, RunRecord()
        if checkpoint is not None:
            noted = {number: json.loads(entry) for number, entry in history.items()}
            done, record = checkpoint[0], saved_record.from_json(json.loads(checkpoint[1]), noted)
    except (RemoteProtocolError, *UNREADABLE) as error:
        raise UsageError(
            f"{path}: is of another version ({type(error).__name__}); use the edge-sdk that runs it"
        ) from None
    about = About(federation=spec.federation, method=spec.method, seed=spec.seed, rounds=spec.rounds, expected=devices)
    return snapshot(about, record, done=done, devices=devices)


def running_text(folder: Path, found: Mapping[str, Any], now_s: float | None = None) -> str:
    """The progress as lines for the terminal.  `now_s`: seconds since 1970, from which the age of the news follows."""
    if "round" not in found:
        if found["source"] == "locked":
            return f"{folder}: running, but there is no {NAME}, and the ledger is locked by the coordinator\n"
        return f"{folder}: nothing has happened yet\n"
    now_s = time.time() if now_s is None else now_s
    interrupted = is_interrupted(folder)
    lines = [_headline(folder, found, now_s, interrupted=interrupted), f"  {_figures(found, interrupted=interrupted)}"]
    if found["devices"] > MOST_DEVICES:
        listed = len(found["per_device"])
        lines += [f"  {listed} of {found['devices']:,} devices are in {NAME}"] if listed else []
    else:
        lines += [f"  {device['id']:<24}{_device_words(device)}" for device in found["per_device"]]
    lines += [
        printable(f"  refused: {each['device']}: {each['message']}; {each['remedy']}")
        for each in found["refused_devices"]
    ]
    lines += [f"  {line}" for line in remarks.refused_frames(found.get("refused_frames", {}))]
    lines += [printable(f"  {found['uplift']}")] if found.get("uplift") else []
    lines += [f"  {line}" for line in kind_lines(found.get("kinds", {}))]
    lines += _service_lines(found)
    return "\n".join(lines) + "\n"


def _service_lines(found: Mapping[str, Any]) -> list[str]:
    """The months and days of rounds without an end, and the last attempt that was skipped."""
    months = found.get("months", ())
    lines = [_period_words(month) for month in months] if len(months) > 1 else []
    lines += [_period_words(day) for day in found.get("days", ())[-DAYS_SHOWN:]]
    if last := found.get("last_skip"):
        skips = f"{found['skipped']} attempts were skipped" if found["skipped"] > 1 else "1 attempt was skipped"
        lines.append(printable(f"  {skips}; the last, at round {last['round']}: {last['reason']}"))
    return lines


def _period_words(each: Mapping[str, Any]) -> str:
    accuracy = "not measured" if each["accuracy"] is None else percent(each["accuracy"])
    traffic = human_bytes(each["bytes_up"] + each["bytes_down"])
    rounds = f"{each['rounds']:>5} rounds, {each['skipped']} skipped"
    return f"  {each['period']:<10}  {rounds}, {traffic}, accuracy {accuracy}"


def _headline(folder: Path, found: Mapping[str, Any], now_s: float, *, interrupted: bool) -> str:
    part = f" ({found['part']})" if found.get("part") else ""
    what = f"{found['federation']}{part}, {found['method']}, seed {found['seed']}"
    age = f"{human_seconds(max(0.0, now_s - found['updated_s']))} ago"
    news = f"heard {age}" if found["source"] == "progress" else f"its checkpoint, of {age}"
    news = f"interrupted {age}; --resume continues it" if interrupted else news
    return f"{folder}: {what}: round {of_rounds(found['round'], found['rounds'])}; {news}"


def _figures(found: Mapping[str, Any], *, interrupted: bool) -> str:
    accuracy = found["accuracy"]
    words = [f"{found['devices']} of {found['expected']} devices"]
    if accuracy:
        spread = f"worst {percent(accuracy['min'])}, best {percent(accuracy['max'])}"
        words.append(f"accuracy {percent(accuracy['mean'])} after round {accuracy['round']} ({spread})")
    else:
        words.append("no accuracy was reported yet")
    sent, received = (human_bytes(found["bytes"][way]) for way in ("up_total", "down_total"))
    words.append(f"{sent} sent, {received} received")
    now_done = found["round"] - found.get("resumed_at", 0)
    if now_done and not interrupted and "elapsed_s" in found and found["round"] < found["rounds"] < FOREVER:
        left_s = found["elapsed_s"] / now_done * (found["rounds"] - found["round"])
        words.append(f"about {human_seconds(left_s)} left")
    return "; ".join(words)


def _device_words(device: Mapping[str, Any]) -> str:
    accuracy = percent(device["accuracy"]) if "accuracy" in device else "not measured"
    traffic = f"{human_bytes(device['bytes_up'])} sent, {human_bytes(device['bytes_down'])} received"
    return f"{accuracy:>12}  {device['rounds_done']} rounds, {traffic}"
