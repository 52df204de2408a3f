"""Measures the profile of this machine, and writes profiles as TOML.

Figures that cannot be measured come from the most similar profile; the profile records which were measured.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_sdk import toml
from edge_sdk.boards.profiles import (
    BOARD_GROUPS,
    LINK_GROUPS,
    Board,
    Link,
    board_here,
    load_link,
    read_board,
)
from edge_sdk.errors import TransportError, UsageError
from edge_sdk.protocol.toml_table import to_table
from edge_sdk.tools.measure import machine
from edge_sdk.tools.measure.fit import Speed, Timed, fit, numpy_loads, timed, typical_factor
from edge_sdk.tools.selftest import OpenSelftestLink, SelftestTimeouts, echo_times_s, open_mqtt

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,35}")
BUDGET_S = 0.4
"""Seconds for each step that is timed."""
_QUIET = 0.3
"""Share of the cores that other programs may use during the measurement without a warning."""


def measure_board(
    name: str, state: Path, *, budget_s: float = BUDGET_S, say: Callable[[str], None] = lambda _line: None
) -> Board:
    """Measure the profile of this machine.

    state: a folder on the disk on which devices keep their state.  budget_s: seconds for each step that is timed.
    say: receives lines about the measured times and the fit.  Raises UsageError for an illegal name, and StoreError if
    `state` cannot be written.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name}: use a-z, 0-9 and -, at most 36 of them")
    like = board_here(say)
    busy = machine.busy_share()
    if busy > _QUIET:
        say(f"other programs use {busy:.0%} of this machine: the figures will be too low; stop them and measure again")
    samples = _timed(budget_s)
    speed = fit(samples)
    for line in fit_report(speed, samples):
        say(line)
    hz = machine.cpu_hz()
    fields: dict[str, Any] = {
        "name": name,
        "title": f"measured: {platform.machine()}, {machine.cores()} cores",
        "arch": platform.machine(),
        "ram_bytes": machine.ram_bytes(),
        "cpu_hz": hz or like.cpu_hz,
        "cores": machine.cores(),
        **{key: float(f"{value:.3g}") for key, value in dataclasses.asdict(speed).items()},
        "disk_bytes_per_s": float(f"{machine.disk_bytes_per_s(state):.3g}"),
        "runtimes": ("numpy", *(each for each in ("onnx", "torch") if _has(each))),
        "source_url": f"urn:edge-sdk:boards-measure:{time.strftime('%Y-%m-%d')}",
        "note": f"Power, heat and link are those of {like.name}: put your own figures in their place.",
        "device_tree_model": "",
    }
    measured = {"memory", "speed", "storage", *({"cpu"} if hz else ())}
    verified = {group: "measured" if group in measured else "estimate" for group in BOARD_GROUPS}
    return read_board(to_table(dataclasses.replace(like, **fields, verified=verified)), f"{name}.toml")


def fit_report(speed: Speed, samples: Sequence[Timed]) -> list[str]:
    """Return lines with each measured time, the time that the fitted figures predict, and the typical error."""
    lines = [
        f"{each.what}: {1e3 * each.took_s:.2f} ms, fitted {1e3 * speed.predicted_s(each):.2f} ms" for each in samples
    ]
    return [*lines, f"typical error of the fit: a factor of {typical_factor(speed, samples):.2f}"]


def profile_toml(profile: Board | Link) -> str:
    """Return a profile as TOML that restores it; fields at their default are left out.  Raises MissingExtra."""
    return toml.dumps(to_table(profile))


def _timed(budget_s: float) -> list[Timed]:
    if not _has("torch"):
        return list(timed(numpy_loads(), budget_s))
    from edge_sdk.tools.measure.torch_loads import torch_loads

    return list(timed(torch_loads(), budget_s))


def _has(runtime: str) -> bool:
    return importlib.util.find_spec({"onnx": "onnxruntime"}.get(runtime, runtime)) is not None


# -- Measures the profile of a link, by echoes through a broker on the other side of the link -------------------------

SMALL_BYTES, LARGE_BYTES = 64, 65_536
_ECHOES = 9


def measure_link(
    name: str,
    url: str,
    tester: str,
    *,
    like: str = "ethernet",
    timeouts: SelftestTimeouts = SelftestTimeouts(),  # noqa: B008  # frozen
    open_link: OpenSelftestLink = open_mqtt,
) -> Link:
    """Return the profile of the link to a broker; packets and power are those of the profile `like`.

    An echo passes the link four times: to the broker and back, twice.  With t(n) the median time of an echo of n bytes:
    latency = t(small) / 4, rate = 4 * (large - small) / (t(large) - t(small)), the same in both directions.
    tester: an unused federation id.  Raises UsageError for an invalid broker URL, and TransportError if echoes do not
    come back.
    """
    times_s: dict[int, float] = {}
    for size_bytes in (SMALL_BYTES, LARGE_BYTES):
        found = echo_times_s(url, tester, size_bytes=size_bytes, count=_ECHOES, timeouts=timeouts, open_link=open_link)
        if not found:
            raise TransportError(
                f"{url}: echoes of {size_bytes} bytes do not come back; run edge-sdk doctor --broker to see why"
            )
        times_s[size_bytes] = statistics.median(found)
    longer_s = max(times_s[LARGE_BYTES] - times_s[SMALL_BYTES], 1e-6)
    rate = float(f"{4 * (LARGE_BYTES - SMALL_BYTES) / longer_s:.3g}")
    return dataclasses.replace(
        load_link(like),
        name=name,
        title=f"measured to {url.partition('://')[2]}",
        latency_s=float(f"{times_s[SMALL_BYTES] / 4:.3g}"),
        up_bytes_per_s=rate,
        down_bytes_per_s=rate,
        loss=0.0,
        source_url=f"urn:edge-sdk:boards-measure:{time.strftime('%Y-%m-%d')}",
        note=f"Packets and power are those of {like}; losses are in the rate.",
        verified={group: "measured" if group in ("rate", "latency") else "estimate" for group in LINK_GROUPS},
    )
