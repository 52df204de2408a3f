"""The figures of `benchmarks.reliability.hour`: read from the logs of all processes, and written as a page."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.reliability.hour_place import DEVICES
from coordinator.results.figures.outcome import versions

LONGEST_WORDS = 160


def figures(folder: Path) -> dict[str, Any]:
    """Return what came of an hour, as plain values, from the folder that it left: its logs and seen.json."""
    known = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    place, steps = folder / "hour", known.pop("steps")
    events = [event for run in ("lost", "run") for event in _lines(place / run / "log.jsonl")]
    events = sorted({json.dumps(event): event for event in events}.values(), key=lambda event: float(event["time_s"]))
    seen = {device: list(_lines(place / f"state-{device}" / "seen.jsonl")) for device in DEVICES}
    progress = json.loads((place / "run" / "progress.json").read_text(encoding="utf-8"))
    closed = [event for event in events if event["event"] == "round"]
    gaps_s = [later[0] - earlier[0] for earlier, later in pairwise(known["closed"])]
    return {
        **{name: known[name] for name in ("minutes", "every_s", "shut", "load", "date")},
        "steps": [{**step, **_recovered(step, known["closed"], seen)} for step in steps],
        "rounds": len(closed),
        "again": len(closed) - len({event["round"] for event in closed}),
        "skipped": progress["skipped"],
        "said": [event["message"] for event in events if event["event"] == "note"],
        "refused": [event["message"] for event in events if event["event"] == "turned-away"],
        **_uploads(closed, events, steps, seen, late=int(progress["updates"].get("stale", 0))),
        "gaps_s": [round(gap_s, 1) for gap_s in gaps_s],
        "devices": {device: _device(lines) for device, lines in seen.items()},
        "memory": _memory(known["memory"]),
    }


def _uploads(
    closed: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    late: int,
) -> dict[str, int]:
    """Return how many uploads were made, and what became of them.

    An upload for a round that was not closed counts no more where the round begins again: in a new generation, which
    the coordinator says, and after the restore of a backup.
    """
    begun_s = [event["time_s"] for event in events if str(event.get("message", "")).startswith("a new generation")]
    begun_s += [step["done_s"] for step in steps if "restore" in step["name"]]
    made = [
        (line["time_s"], device, line["round"] + 1)
        for device, lines in seen.items()
        for line in lines
        if line["kind"] == "round" and not line["withheld"]
    ]
    found, before_s = {"made": len(made), "counted": 0, "begun_again": 0, "unexplained": 0}, 0.0
    for event in closed:
        from_s = max([before_s, *(at_s for at_s in begun_s if at_s < event["time_s"])])
        within = {device for at_s, device, n in made if n == event["round"] and from_s < at_s <= event["time_s"] + 1}
        earlier = {device for at_s, device, n in made if n == event["round"] and before_s < at_s <= from_s}
        found["counted"] += event["contributors"]
        found["begun_again"] += len(earlier)
        found["unexplained"] += max(0, len(within) - event["contributors"])
        before_s = event["time_s"]
    return {**found, "late": late, "lost": max(0, found["unexplained"] - late)}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a process was killed while it wrote
                yield json.loads(line)


def _recovered(
    step: Mapping[str, Any], closed: Sequence[tuple[float, int]], seen: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the seconds from the begin and the end of a step to the next round that closed, and the device's next."""
    found: dict[str, Any] = {}
    after = [at_s for at_s, _ in closed if at_s > step["done_s"]]
    if after:
        found["next_s"] = round(after[0] - step["done_s"], 1)
    own = [line["time_s"] for line in seen.get(step["device"], ()) if line["kind"] == "round"]
    later = [at_s for at_s in own if at_s > step["done_s"]]
    if later:
        found["device_s"] = round(later[0] - step["done_s"], 1)
    return found


def _device(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the seconds in each state, the reasons of those in which it was off, and the number of its rounds."""
    spent, why = Counter[str](), Counter[str]()
    statuses = [line for line in lines if line["kind"] == "status"]
    for line, following in pairwise(statuses):
        state = line["state"] if line["running"] or line["state"] == "off" else "not running"
        length_s = min(following["time_s"] - line["time_s"], 11.0)  # longer: its process was dead
        spent[state] += length_s  # type: ignore[assignment]  # a sum of seconds
        if state in ("off", "not running", "waiting"):
            why[f"{state}: {line['why'] or line['error'] or 'NO REASON'}"] += length_s  # type: ignore[assignment]
    rounds = {line["round"] for line in lines if line["kind"] == "round"}
    return {
        "rounds": len(rounds),
        "spent_s": {state: round(length) for state, length in spent.items()},
        "off": {reason: round(length, 1) for reason, length in why.items()},
        "last": statuses[-1]["state"] if statuses else "",
    }


def _memory(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return each process's resident MiB in the first, middle and last third of the time: the medians."""
    names = dict.fromkeys(name for row in rows for name in row if name != "time_s")
    third = max(1, len(rows) // 3)
    parts = (rows[:third], rows[third : 2 * third], rows[2 * third :])
    found = {}
    for name in names:
        values = [[row[name] for row in part if name in row] for part in parts]
        if all(values):
            found[name] = [round(statistics.median(part), 1) for part in values]
    return found


def trouble(told: Mapping[str, Any]) -> list[str]:
    """Return a line for each thing that must not be."""
    found = [f"{step['name']}: {step['fault']}" for step in told["steps"] if step["fault"]]
    found += [f"{step['name']}: no round followed" for step in told["steps"] if "next_s" not in step]
    found += [f"{told['lost']} uploads are lost"] * bool(told["lost"])
    for device, each in told["devices"].items():
        found += [f"{device}: {reason}" for reason in each["off"] if "NO REASON" in reason]
        found += [f"{device}: {each['last']} at the end"] * (
            each["last"] not in ("idle", "training", "reporting", "paused")
        )
        found += [f"{device}: no round"] * (not each["rounds"])
    return found


def page(told: Mapping[str, Any]) -> str:
    """Return the page."""
    software = ", ".join(f"{package} {version}" for package, version in versions().items())
    gaps = sorted(told["gaps_s"])
    late = told["made"] - told["counted"] - told["begun_again"] - told["lost"]
    lines = [
        "# An hour of a service",
        "",
        f"Written by `python -m benchmarks.reliability.hour --minutes {told['minutes']:g}`, except *What went wrong*:",
        "ten devices, each a process of an app whose samples arrive one by one, over the mosquitto of a secure lab,",
        f'with TLS; a coordinator with `rounds = "forever"`, `every = "{told["every_s"]:g}s"`, `min_new_samples = 20`,',
        f"`quorum = 6`, a budget of bytes, and a `window` that was shut from {told['shut']} on. The program replaces",
        "systemd, and restarts every process that dies.",
        "",
        f"{told['rounds']} rounds were closed, {told['again']} of them again after the restore; {told['skipped']}",
        f"attempts were skipped. Devices made {told['made']} uploads: {told['counted']} counted,",
        f"{told['begun_again']} were for a round that then began again (new generations, the restore),",
        f"{late} came too late, and {told['lost']} were lost.",
        f"An upload counts as too late only if the coordinator answered it ({told['late']} frames, with repetitions).",
        f"Seconds from round to round: median {statistics.median(gaps):.0f}, the longest {gaps[-1]:.0f}."
        if gaps
        else "",
        "",
        "## What was done to it",
        "",
        "Seconds from the end of the step to the next closed round, of which the pace takes up to",
        f"{told['every_s']:g}, and to the next round of the device that the step concerned.",
        "",
        *_table(["step", "took, s", "next round, s", "the device's, s"], _step_rows(told["steps"])),
        "",
        "## What went wrong",
        "",
        FOUND,
        "## The coordinator's messages",
        "",
        "```text",
        *_short(told["said"]),
        *(f"refused {line}" for line in _short(told["refused"])),
        "```",
        "",
        "## The states in `agent.status()`",
        "",
        "Seconds in each state, twice a second while the process lived.",
        "",
        *_table(["device", "rounds", *_STATES, "why off or waiting"], _device_rows(told["devices"])),
        "",
        "## Memory",
        "",
        "Resident MiB, the median of the first, the second and the last third of the time.",
        "",
        *_table(
            ["process", "first", "second", "last"], [[n, *(f"{v:.1f}" for v in w)] for n, w in told["memory"].items()]
        ),
        "",
        f"{told['date']}, {os.uname().machine}, {os.cpu_count()} cores, load {told['load'][1]:.1f}; {software}.",
    ]
    return "\n".join(lines) + "\n"


FOUND = """\
Found in a trial of six minutes and in this hour, whose processes still had these faults:

- An operator's order to stop the run came together with a Hello. The coordinator announced the end of the run,
  and eight of ten devices waited for a minute. Now it announces a stop (`tests/serving/test_operators.py`).
- After the upgrade, a message said that a budget was spent "before the first round of the day", because the older build
  had not recorded the number of rounds of the day. Now such a day gives no message
  (`tests/federation/test_endless_rounds.py`).
- Before the first start of the coordinator, devices reported access rules as the cause. In a lab they now name the
  coordinator that they wait for.

The following is normal. The window was shut for three minutes from `drain --undo` on, which makes the longest waits.
While the budget was spent, only the open round closed. On a busy machine the app brings few samples, so that
`min_new_samples` skips rounds.
"""
"""Written by hand."""
_STATES = ("connecting", "joining", "idle", "training", "paused", "reporting", "waiting", "off", "not running")


def _step_rows(steps: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            step["name"] + (f" ({step['device']})" if step["device"] else ""),
            f"{step['done_s'] - step['at_s']:.0f}",
            f"{step['next_s']:.0f}" if "next_s" in step else "none",
            f"{step['device_s']:.0f}" if "device_s" in step else "none" if step["device"] else "",
        ]
        for step in steps
    ]


def _device_rows(devices: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            device,
            f"{each['rounds']}",
            *(f"{each['spent_s'].get(state, 0)}" for state in _STATES),
            "; ".join(f"{_cut(reason)} ({length:.0f} s)" for reason, length in each["off"].items()),
        ]
        for device, each in devices.items()
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _short(lines: Iterable[str]) -> list[str]:
    """Return a line of each kind, with how often it came."""
    found: dict[str, list[str]] = {}
    for line in lines:
        kind = next((words for words in (" is skipped", " declined: ") if words in line), re.sub(r"\d+", "", line))
        found.setdefault(kind, []).append(line)
    return [f"{_cut(each[0])}{f'  ({len(each)} times)' if len(each) > 1 else ''}" for each in found.values()]


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_WORDS else line[: LONGEST_WORDS - 3] + "..."
