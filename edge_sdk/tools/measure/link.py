"""Measures the profile of a link, by echoes through a broker on the other side of the link."""

from __future__ import annotations

import dataclasses
import statistics
import time

from edge_sdk.boards.profiles import LINK_GROUPS, Link, load_link
from edge_sdk.errors import TransportError
from edge_sdk.tools.selftest import OpenSelftestLink, SelftestTimeouts, echo_times_s, open_mqtt

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
    tester: a federation id that nobody else uses.  Raises UsageError for a URL that is not one of a broker, and
    TransportError if echoes do not come back.
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
