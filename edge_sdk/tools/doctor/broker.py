"""What a broker must do for us, judged from what a self-test saw of it (selftest.py)."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.codec import CONTROL_LIMITS
from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn

NAGLE_S = 0.03
"""More than this beyond the network's own time is the mark of a side without TCP_NODELAY, which costs about 40 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerObservation:
    """What a self-test saw; without a link nothing else, without an echo neither size nor wildcards nor retained."""

    reason: str = ""
    """Why there is no link; empty where there is one."""
    connect_s: float = 0.0
    """How long a TCP connection takes: once there and back."""
    version: str = ""
    limit_bytes: int | None = None
    """The largest frame, where the broker states one."""
    echo_s: float | None = None
    """Median time for 1 KiB from one client to another and back; None: it does not come through."""
    large: bool = False
    """Whether a frame as large as a control frame may be came through."""
    wildcards: bool = False
    """Whether `+` at our places in a topic heard what it should."""
    strays: bool = False
    """Whether it heard what was for somebody else."""
    retained: bool = False
    """Whether a retained frame waited for one who subscribed later."""
    cleared: bool = False
    """Whether an empty one took it away."""


_RIGHTS = (
    "right for a device's login, which may not read what it writes; to test the broker, use the coordinator's login "
    "(docs/reference/protocol.md, Topics)"
)


def judge_link(seen: BrokerObservation) -> Finding:
    """Reachable, and in which version."""
    if seen.reason:
        return fail(
            seen.reason,
            "mend what is said here; in doubt look at the address, the port (1883, or 8883 with mqtts://), the login "
            "and the firewall",
        )
    return ok(f"connected in {1e3 * seen.connect_s:.2f} ms, speaks MQTT {seen.version}")


def judge_latency(seen: BrokerObservation) -> Finding:
    """There and back through the broker, compared with the network's own time."""
    if seen.echo_s is None:
        return warn("frames do not come through, and so nothing else was tried", _RIGHTS)
    shown = f"{1e3 * seen.echo_s:.2f} ms there and back"
    if seen.echo_s - 2 * seen.connect_s > NAGLE_S:
        return warn(
            f"{shown}, of which the network takes {1e3 * seen.connect_s:.2f}",
            "`set_tcp_nodelay true` in mosquitto.conf, so that it holds no small packet back; or the broker is busy",
        )
    return ok(shown)


def judge_size(seen: BrokerObservation) -> Finding:
    """The largest frame."""
    stated = "states no limit" if seen.limit_bytes is None else f"takes packets of up to {seen.limit_bytes} bytes"
    if not seen.large:
        return warn(
            f"{stated}, and {CONTROL_LIMITS.frame_bytes} bytes did not come through",
            "raise max_packet_size (mosquitto) or the plan's limit; below it, methods with small knowledge still work",
        )
    return ok(f"{stated}; {CONTROL_LIMITS.frame_bytes} bytes came through")


def judge_wildcards(seen: BrokerObservation) -> Finding:
    """Subscriptions with `+`, on which the coordinator hears everybody and a device all that is for it."""
    if not seen.wildcards:
        return fail("a subscription with + heard nothing", "allow wildcards for these logins, or use another broker")
    if seen.strays:
        return fail(
            "a subscription with + heard what was for others", "use another broker: this one does not match topics"
        )
    return ok("+ hears what it should, and nothing else")


def judge_retained(seen: BrokerObservation) -> Finding:
    """Retained frames, by which those who come later learn that the coordinator is there."""
    if not seen.retained:
        return warn(
            "a retained frame was not kept",
            "allow them (retain_available true); without, devices notice a new coordinator up to a minute later",
        )
    if not seen.cleared:
        return warn(
            "an empty retained frame does not take the old one away", "clear old status by hand after a federation"
        )
    return ok("kept for those who come later, and cleared")
