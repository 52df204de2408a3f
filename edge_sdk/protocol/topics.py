"""Topic names and the broker's access rules.

    fl/v1/{fed}/up/{shard}/{device}/{kind}   device -> coordinator   hello, upd, bye
    fl/v1/{fed}/dn/{device}/{kind}           coordinator -> device   join, task, rcpt
    fl/v1/{fed}/st/{device}                  a device's retained birth and will
    fl/v1/{fed}/coord                        the coordinator's retained birth and will
    fl/v1/{fed}/ctl                          operator -> coordinator

Round, exchange and sender stand in the message; the topic only routes, and says who a frame claims to be from.
"""

from __future__ import annotations

import zlib

ROOT = "fl/v1"
SHARDS = 16


def up(federation: str, device: str, kind: str) -> str:
    """Where a device publishes; the shard lets several ingest workers share the load."""
    return f"{ROOT}/{federation}/up/{zlib.crc32(device.encode()) % SHARDS}/{device}/{kind}"


def down(federation: str, device: str, kind: str) -> str:
    """Where the coordinator publishes to one device."""
    return f"{ROOT}/{federation}/dn/{device}/{kind}"


def device_status(federation: str, device: str) -> str:
    """A device's retained state."""
    return f"{ROOT}/{federation}/st/{device}"


def coordinator_status(federation: str) -> str:
    """The coordinator's retained state."""
    return f"{ROOT}/{federation}/coord"


def control(federation: str) -> str:
    """Where an operator speaks to the coordinator."""
    return f"{ROOT}/{federation}/ctl"


def device_subscriptions(federation: str, device: str) -> tuple[str, ...]:
    """What a device listens to."""
    return (f"{ROOT}/{federation}/dn/{device}/+", coordinator_status(federation))


def coordinator_subscriptions(federation: str) -> tuple[str, ...]:
    """What the coordinator listens to."""
    return (f"{ROOT}/{federation}/up/+/+/+", f"{ROOT}/{federation}/st/+", control(federation))


def sender(topic: str) -> str | None:
    """The device that a topic belongs to; None where it belongs to none."""
    levels = topic.split("/")
    if len(levels) == 7 and levels[3] == "up":
        return levels[5]
    if len(levels) == 5 and levels[3] == "st":
        return levels[4]
    return None


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription with `+` and a closing `#` covers a topic."""
    wanted, found = pattern.split("/"), topic.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i >= len(found) or level not in ("+", found[i]):
            return False
    return len(wanted) == len(found)


ACCESS_RULES = (
    ("coordinator", "readwrite", f"{ROOT}/#"),
    ("device", "write", f"{ROOT}/+/up/+/%u/#"),
    ("device", "read", f"{ROOT}/+/dn/%u/#"),
    ("device", "read", f"{ROOT}/+/coord"),
    ("device", "readwrite", f"{ROOT}/+/st/%u"),
)
"""Who may do what; `%u` is the user name of a device, which is its id."""
