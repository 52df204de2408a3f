"""Topic names and the broker's access rules.

    fl/v1/{fed}/up/{shard}/{device}/{kind}   device -> coordinator   hello, upd, bye, get, want, log, lab
    fl/v1/{fed}/dn/{device}/{kind}           coordinator -> device   join, task, rcpt, pub, offer, want, log, lab
    fl/v1/{fed}/st/{device}                  a device's retained birth and will
    fl/v1/{fed}/coord                        the coordinator's retained birth and will
    fl/v1/{fed}/ctl                          operator -> coordinator
    fl/v1/{fed}/ans/{operator}               coordinator -> operator

The message holds round, exchange and sender.  The topic only routes the frame, and names its claimed sender.
"""

from __future__ import annotations

import functools
import re
import zlib
from typing import NamedTuple

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol.frames.schema import ID

ROOT = "fl/v1"
SHARDS = 16
UP_KINDS = frozenset({"hello", "upd", "bye", "get", "want", "log", "lab"})
"""The last level of the topics on which devices publish."""
STATUS, CONTROL = "status", "control"
"""The kinds without a topic level: a device's status, and the commands of operators."""
LONGEST = 256
"""The maximum length of a legal topic in characters."""


_fits = re.compile(ID.pattern).fullmatch


def is_id(name: str) -> bool:
    """Whether a name is a legal id, and so safe as one level of a topic."""
    return len(name) <= ID.most and _fits(name) is not None


def _level(name: str) -> str:
    """Return an id for use as one level of a topic.

    Raises LocalProtocolError for other characters: with `+`, `#` or `/` in it, a name could publish or subscribe to
    topics of others.
    """
    if not is_id(name):
        raise LocalProtocolError(f"{name!r} is not an id: expected at most {ID.most} characters of {ID.pattern}")
    return name


def up(federation: str, device: str, kind: str) -> str:
    """Return the topic on which a device publishes; shards let several coordinator workers split the load."""
    return f"{ROOT}/{_level(federation)}/up/{shard(device)}/{_level(device)}/{_level(kind)}"


def shard(device: str) -> int:
    """Return the shard of a device, 0 to SHARDS - 1, which follows from its id."""
    return zlib.crc32(device.encode()) % SHARDS


def down(federation: str, device: str, kind: str) -> str:
    """Return the topic on which the coordinator publishes to one device."""
    return f"{ROOT}/{_level(federation)}/dn/{_level(device)}/{_level(kind)}"


def device_status(federation: str, device: str) -> str:
    """Return the topic of a device's retained status."""
    return f"{ROOT}/{_level(federation)}/st/{_level(device)}"


@functools.lru_cache(maxsize=64)
def coordinator_status(federation: str) -> str:
    """Return the topic of the coordinator's retained status; the devices of a simulation share one text."""
    return f"{ROOT}/{_level(federation)}/coord"


def is_coordinator_status(topic: str) -> bool:
    """Whether a topic is that of a coordinator's retained status."""
    return matches(f"{ROOT}/+/coord", topic)


def control(federation: str) -> str:
    """Return the topic on which an operator publishes to the coordinator."""
    return f"{ROOT}/{_level(federation)}/ctl"


def control_answer(federation: str, operator: str) -> str:
    """Return the topic on which the coordinator answers an operator."""
    return f"{ROOT}/{_level(federation)}/ans/{_level(operator)}"


def operator_subscriptions(federation: str, operator: str) -> tuple[str, ...]:
    """Return the topics that an operator's program subscribes to."""
    return (control_answer(federation, operator), coordinator_status(federation))


def device_subscriptions(federation: str, device: str) -> tuple[str, ...]:
    """Return the topics that a device subscribes to."""
    return (f"{ROOT}/{_level(federation)}/dn/{_level(device)}/+", coordinator_status(federation))


def lab_subscriptions(lab: str) -> tuple[str, ...]:
    """Return the topics that the desk of a lab subscribes to; a lab is named like a federation."""
    return (f"{ROOT}/{_level(lab)}/up/+/+/lab", coordinator_status(lab))


def coordinator_subscriptions(federation: str) -> tuple[str, ...]:
    """Return the topics that the coordinator subscribes to."""
    return (f"{ROOT}/{_level(federation)}/up/+/+/+", f"{ROOT}/{_level(federation)}/st/+", control(federation))


class Origin(NamedTuple):
    """What a topic to the coordinator names."""

    federation: str
    device: str
    """The device that publishes on it, or empty if it names none, as an operator's."""
    kind: str
    """One of UP_KINDS, STATUS or CONTROL, or empty for any topic that this module does not list."""


def origin(topic: str) -> Origin:
    """Parse a topic to the coordinator.

    A wrong shard and an unknown kind are not listed: each device has one topic of each kind, and cannot invent more.
    Their device is named all the same: a broker's access rules allow a device any topic with its name in this place.
    """
    root, levels = topic.split("/")[:2], topic.split("/")[2:]
    match levels if "/".join(root) == ROOT else []:
        case [federation, "up", part, device, kind] if is_id(device):
            listed = is_id(federation) and kind in UP_KINDS and part == str(shard(device))
            return Origin(federation, device, kind if listed else "")
        case [federation, "st", device] if is_id(device):
            return Origin(federation, device, STATUS if is_id(federation) else "")
        case [federation, "ctl"] if is_id(federation):
            return Origin(federation, "", CONTROL)
        case _:
            return Origin("", "", "")


def device_topics(federation: str, device: str) -> tuple[str, ...]:
    """Return all topics on which a device may publish in a federation."""
    return (*(up(federation, device, kind) for kind in sorted(UP_KINDS)), device_status(federation, device))


def receiver(topic: str) -> str | None:
    """Return the only device that receives messages on a topic, or None for other topics."""
    match topic.split("/"):
        case [*root, _, "dn", device, _] if "/".join(root) == ROOT:
            return device
        case _:
            return None


def chunk_request_topic(topic: str) -> str | None:
    """Return the topic on which to request missing chunks of a frame from its sender, if there is one.

    topic: the topic of the chunks.
    """
    match topic.split("/"):
        case [*root, federation, "up", _, device, _] if "/".join(root) == ROOT:
            return down(federation, device, "want")
        case [*root, federation, "dn", device, _] if "/".join(root) == ROOT:
            return up(federation, device, "want")
        case _:
            return None


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription covers a topic, by MQTT's rules.

    `+` stands for one level, and `#` at the end for any number of levels, or none.  Neither covers a topic that begins
    with `$`.
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
    *(("device", "write", f"{ROOT}/+/up/+/%u/{kind}") for kind in sorted(UP_KINDS)),
    ("device", "read", f"{ROOT}/+/dn/%u/#"),
    ("device", "read", f"{ROOT}/+/coord"),
    ("device", "readwrite", f"{ROOT}/+/st/%u"),
    ("operator", "write", f"{ROOT}/+/ctl"),
    ("operator", "read", f"{ROOT}/+/ans/#"),
    ("operator", "read", f"{ROOT}/+/coord"),
)
"""The access rules of a broker: role, permission, topics.  `%u` is the user name of a device, which is its id."""
