"""A run that is not over: how far it is, from progress.json, or else from its ledger, which is only read."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from coordinator.record import Record
from coordinator.report.progress_file import NAME, PROGRESS_VERSION, About, snapshot
from coordinator.report.units import human_bytes, human_seconds, percent, printable
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.protocol import storage
from edge_sdk.protocol.messages import FederationSpec

LEDGER = Path("checkpoint") / "ledger.db"
_LOCKED_S = 0.2


def is_running(folder: Path) -> bool:
    """Whether this run directory holds a run that is not over, or goes on again after its summary was written."""
    progress, summary = folder / NAME, folder / "summary.json"
    if not summary.exists():
        return progress.exists() or (folder / LEDGER).exists()
    return progress.exists() and progress.stat().st_mtime_ns > summary.stat().st_mtime_ns


def read_running(folder: Path) -> dict[str, Any]:
    """progress.json, or the same made of the ledger: then without `elapsed_s`, and `source` says `ledger` or `locked`.

    Raises UsageError where neither can be read.
    """
    path = folder / NAME
    if not path.exists():
        return _from_ledger(folder / LEDGER)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: does not read ({type(error).__name__}); the next round replaces it") from None
    if not isinstance(found, dict) or found.get("version") != PROGRESS_VERSION:
        raise UsageError(f"{path}: is of another version; use the edge-sdk that runs it")
    return {**found, "source": "progress"}


def _from_ledger(path: Path) -> dict[str, Any]:
    """What the ledger's last checkpoint says.  A coordinator that runs keeps its ledger locked."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_LOCKED_S)) as ledger:
            spec = ledger.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
            checkpoint = ledger.execute("SELECT round, record FROM checkpoint").fetchone()
            devices = ledger.execute("SELECT COUNT(*) FROM devices").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return {"version": PROGRESS_VERSION, "source": "locked"}
        raise UsageError(f"{path}: cannot be read ({error})") from None
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path}: is no ledger, or damaged ({error})") from None
    return _of_checkpoint(path, spec, checkpoint, devices) | {"source": "ledger", "updated_s": path.stat().st_mtime}


def _of_checkpoint(
    path: Path, spec_row: tuple[bytes] | None, checkpoint: tuple[int, str] | None, devices: int
) -> dict[str, Any]:
    if spec_row is None:
        return {"version": PROGRESS_VERSION}
    try:
        spec = storage.deserialise(FederationSpec, spec_row[0])
        done, record = (
            (0, Record()) if checkpoint is None else (checkpoint[0], Record.from_json(json.loads(checkpoint[1])))
        )
    except (RemoteProtocolError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: is of another version ({type(error).__name__}); use the edge-sdk that runs it"
        ) from None
    about = About(federation=spec.federation, method=spec.method, seed=spec.seed, rounds=spec.rounds, expected=devices)
    return snapshot(about, record, done=done, devices=devices)


def render_running(folder: Path, found: Mapping[str, Any], now_s: float | None = None) -> str:
    """For the terminal.  `now_s`: seconds since 1970, to say how old the news is."""
    if "round" not in found:
        if found["source"] == "locked":
            return f"{folder}: running, but there is no {NAME}, and the ledger is locked by the coordinator\n"
        return f"{folder}: nothing has happened yet\n"
    now_s = time.time() if now_s is None else now_s
    lines = [_headline(folder, found, now_s), f"  {_figures(found)}"]
    lines += [f"  {device['id']:<24}{_device(device)}" for device in found["per_device"]]
    more = found["devices"] - len(found["per_device"])
    lines += [f"  and {more} more"] if more > 0 and found["per_device"] else []
    lines += [
        printable(f"  refused: {each['device']}: {each['message']}; {each['remedy']}")
        for each in found["refused_devices"]
    ]
    lines += [
        f"  refused frames from {printable(sender)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        for sender, kinds in found.get("refused_frames", {}).items()
    ]
    return "\n".join(lines) + "\n"


def _headline(folder: Path, found: Mapping[str, Any], now_s: float) -> str:
    part = f" ({found['part']})" if found.get("part") else ""
    what = f"{found['federation']}{part}, {found['method']}, seed {found['seed']}"
    age = f"{human_seconds(max(0.0, now_s - found['updated_s']))} ago"
    news = f"heard {age}" if found["source"] == "progress" else f"its checkpoint, of {age}"
    return f"{folder}: {what}: round {found['round']} of {found['rounds']}; {news}"


def _figures(found: Mapping[str, Any]) -> str:
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
    if now_done and "elapsed_s" in found and found["round"] < found["rounds"]:
        left_s = found["elapsed_s"] / now_done * (found["rounds"] - found["round"])
        words.append(f"about {human_seconds(left_s)} left")
    return "; ".join(words)


def _device(device: Mapping[str, Any]) -> str:
    accuracy = percent(device["accuracy"]) if "accuracy" in device else "not measured"
    traffic = f"{human_bytes(device['bytes_up'])} sent, {human_bytes(device['bytes_down'])} received"
    return f"{accuracy:>12}  {device['rounds_done']} rounds, {traffic}"
