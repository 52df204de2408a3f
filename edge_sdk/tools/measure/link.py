"""A link's profile, measured by echoes through a broker on the other side of it."""

from __future__ import annotations

import dataclasses
import statistics
import time

from edge_sdk.boards.profiles import LINK_GROUPS, Link, load_link
from edge_sdk.errors import TransportError
from edge_sdk.tools.doctor.selftest import OpenSelftestLink, SelftestTimeouts, echo_times_s, open_mqtt

SMALL_BYTES, LARGE_BYTES = 64, 65_536
_ECHOES = 9


def measure_link(
    name: str,
    url: str,
    tester: str,
    *,
    like: str = "ethernet",
    patience: SelftestTimeouts = SelftestTimeouts(),  # noqa: B008  # frozen
    open_link: OpenSelftestLink = open_mqtt,
) -> Link:
    """The profile of the link to a broker, both ways alike; loss and power are those of another profile.

    An echo crosses the link to the broker and back, twice.  With t the median time of an echo of so many bytes:
    latency = t(small) / 4, rate = 4 * (large - small) / (t(large) - t(small)).
    Raises UsageError for a URL that names no broker, TransportError where echoes do not come back.
    """
    times_s: dict[int, float] = {}
    for size_bytes in (SMALL_BYTES, LARGE_BYTES):
        found = echo_times_s(url, tester, size_bytes=size_bytes, count=_ECHOES, patience=patience, open_link=open_link)
        if not found:
            raise TransportError(f"{url}: echoes of {size_bytes} bytes do not come back; edge-sdk doctor says more")
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
