"""Judges a broker by the observations of a self-test: connection, latency, sizes, wildcards and retained frames."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn

NAGLE_S = 0.03
"""A larger latency beyond that of the network suggests a side without TCP_NODELAY, which adds about 40 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerObservation:
    """The observations of a self-test.

    Without a connection only `reason` is set.  Without an echo nothing after `echo_s` is tested.
    """

    reason: str = ""
    """Why there is no connection, or empty if there is one."""
    connect_s: float = 0.0
    """The time of a TCP connection: one round trip."""
    version: str = ""
    """The MQTT version that the broker speaks."""
    limit_bytes: int | None = None
    """The largest packet that the broker accepts, or None if it states no limit."""
    echo_s: float | None = None
    """Median time for 1 KiB from one client to another and back, or None if it does not arrive."""
    large: bool = False
    """Whether a frame of the largest size of a control frame arrived."""
    wildcards: bool = False
    """Whether subscriptions with `+` received the frames that they cover."""
    strays: bool = False
    """Whether they received frames that they do not cover."""
    retained: bool = False
    """Whether a later subscriber received a retained frame."""
    cleared: bool = False
    """Whether an empty retained frame deleted it."""


_RIGHTS = (
    "this is normal with the login of a device, which may not read what it writes; to test the broker, use the login "
    "of the coordinator (docs/reference/protocol.md, Topics)"
)


def judge_link(observed: BrokerObservation) -> Finding:
    """Judge whether the broker can be reached."""
    if observed.reason:
        return fail(
            observed.reason,
            "repair what is named here; in doubt check the address, the port (1883, or 8883 with mqtts://), the login "
            "and the firewall",
        )
    return ok(f"connected in {1e3 * observed.connect_s:.2f} ms, speaks MQTT {observed.version}")


def judge_latency(observed: BrokerObservation) -> Finding:
    """Judge the round trip through the broker, compared with that of the network alone."""
    if observed.echo_s is None:
        return warn("frames do not arrive, so the remaining tests were skipped", _RIGHTS)
    shown = f"{1e3 * observed.echo_s:.2f} ms there and back"
    if observed.echo_s - 2 * observed.connect_s > NAGLE_S:
        return warn(
            f"{shown}, of which the network takes {1e3 * observed.connect_s:.2f}",
            "write `set_tcp_nodelay true` in mosquitto.conf, so that small packets are sent at once; or the broker is "
            "busy",
        )
    return ok(shown)


def judge_size(observed: BrokerObservation) -> Finding:
    """Judge the largest frame."""
    stated = (
        "states no limit" if observed.limit_bytes is None else f"takes packets of up to {observed.limit_bytes} bytes"
    )
    if not observed.large:
        return warn(
            f"{stated}, and {CONTROL_LIMITS.frame_bytes} bytes did not arrive",
            "raise max_packet_size (mosquitto) or the plan's limit; below it, methods with small knowledge still work",
        )
    return ok(f"{stated}; {CONTROL_LIMITS.frame_bytes} bytes arrived")


def judge_wildcards(observed: BrokerObservation) -> Finding:
    """Judge subscriptions with `+`, which the coordinator and the devices use."""
    if not observed.wildcards:
        return fail("a subscription with + received nothing", "allow wildcards for these logins, or use another broker")
    if observed.strays:
        return fail(
            "a subscription with + received frames for others",
            "use another broker: this one does not match topics as MQTT demands",
        )
    return ok("subscriptions with + receive what they should, and nothing else")


def judge_retained(observed: BrokerObservation) -> Finding:
    """Judge retained frames, which announce the coordinator to devices that connect later."""
    if not observed.retained:
        return warn(
            "a retained frame was not kept",
            "allow retained messages (retain_available true); without them devices may notice a new coordinator only "
            "after a minute",
        )
    if not observed.cleared:
        return warn(
            "an empty retained frame does not delete the old one",
            "delete retained status messages by hand after a federation",
        )
    return ok("kept for later subscribers, and deleted by an empty one")
