"""Topic names and the broker's access rules.

    fl/v1/{fed}/up/{shard}/{device}/{kind}   device -> coordinator   hello, upd, bye, get, want
    fl/v1/{fed}/dn/{device}/{kind}           coordinator -> device   join, task, rcpt, pub, want
    fl/v1/{fed}/st/{device}                  a device's retained birth and will
    fl/v1/{fed}/coord                        the coordinator's retained birth and will
    fl/v1/{fed}/ctl                          operator -> coordinator

Round, exchange and sender stand in the message; the topic only routes, and says who a frame claims to be from.
"""

from __future__ import annotations

import functools
import re
import zlib

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol.schema import ID

ROOT = "fl/v1"
SHARDS = 16


def _is_id(name: str) -> bool:
    return len(name) <= ID.most and re.fullmatch(ID.pattern, name) is not None


@functools.lru_cache(maxsize=2**16)
def _level(name: str) -> str:
    """An id as one level of a topic.  One with `+`, `#` or `/` in it would be heard, or listen, where it must not."""
    if not _is_id(name):
        raise LocalProtocolError(f"{name!r} is no id: expected at most {ID.most} characters of {ID.pattern}")
    return name


def up(federation: str, device: str, kind: str) -> str:
    """Where a device publishes; the shard lets several ingest workers share the load."""
    return f"{ROOT}/{_level(federation)}/up/{shard(device)}/{_level(device)}/{_level(kind)}"


def shard(device: str) -> int:
    """Which share of the ingest a device belongs to; fixed by its id."""
    return zlib.crc32(device.encode()) % SHARDS


def down(federation: str, device: str, kind: str) -> str:
    """Where the coordinator publishes to one device."""
    return f"{ROOT}/{_level(federation)}/dn/{_level(device)}/{_level(kind)}"


def device_status(federation: str, device: str) -> str:
    """A device's retained state."""
    return f"{ROOT}/{_level(federation)}/st/{_level(device)}"


def coordinator_status(federation: str) -> str:
    """The coordinator's retained state."""
    return f"{ROOT}/{_level(federation)}/coord"


def control(federation: str) -> str:
    """Where an operator speaks to the coordinator."""
    return f"{ROOT}/{_level(federation)}/ctl"


def device_subscriptions(federation: str, device: str) -> tuple[str, ...]:
    """What a device listens to."""
    return (f"{ROOT}/{_level(federation)}/dn/{_level(device)}/+", coordinator_status(federation))


def coordinator_subscriptions(federation: str) -> tuple[str, ...]:
    """What the coordinator listens to."""
    return (f"{ROOT}/{_level(federation)}/up/+/+/+", f"{ROOT}/{_level(federation)}/st/+", control(federation))


def sender(topic: str) -> str | None:
    """The device that a topic belongs to; None where it belongs to none."""
    root, levels = topic.split("/")[:2], topic.split("/")[2:]
    match levels if "/".join(root) == ROOT else []:
        case [_, "up", _, device, _] | [_, "st", device] if _is_id(device):
            return device
        case _:
            return None


def answering(topic: str) -> str | None:
    """Where to tell the sender of a topic which chunks are missing; None where it cannot be told."""
    match topic.split("/"):
        case [*root, federation, "up", _, device, _] if "/".join(root) == ROOT:
            return down(federation, device, "want")
        case [*root, federation, "dn", device, _] if "/".join(root) == ROOT:
            return up(federation, device, "want")
        case _:
            return None


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription covers a topic, by MQTT's rules.

    `+` stands for one level, a closing `#` for any number of them, none included; neither reaches a topic whose first
    level begins with `$`.
    """
    wanted, found = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(level in ("+", here) for level, here in zip(wanted, found, strict=True))


ACCESS_RULES = (
    ("coordinator", "readwrite", f"{ROOT}/#"),
    ("device", "write", f"{ROOT}/+/up/+/%u/#"),
    ("device", "read", f"{ROOT}/+/dn/%u/#"),
    ("device", "read", f"{ROOT}/+/coord"),
    ("device", "readwrite", f"{ROOT}/+/st/%u"),
    ("operator", "write", f"{ROOT}/+/ctl"),
)
"""Who may do what; `%u` is the user name of a device, which is its id."""
