"""Which versions of edge-sdk work together: one major version, and one minor version apart at most for sure.

Within a major version all changes of the protocol are additions (docs/reference/protocol.md, "Evolution"), so that a
device that is further behind takes part, too; but nobody tests that.
"""

from __future__ import annotations

import re

from coordinator.serving.devices.admission import RefusalReason
from edge_sdk.protocol.messages import Hello
from edge_sdk.version import __version__

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(\..*)?")


def version_refusal(hello: Hello, ours: str = __version__) -> RefusalReason | None:
    """The refusal of a device with another major version; None: it has the same, or does not say which it has."""
    found, own = _parsed(hello.sdk), _parsed(ours)
    if found is None or own is None or found[0] == own[0]:
        return None
    older = "device" if found[0] < own[0] else "coordinator"
    return RefusalReason(
        "version",
        f"{hello.device} has edge-sdk {hello.sdk}, this coordinator {ours}: another major version",
        f"upgrade the {older}'s edge-sdk",
    )


def version_remark(hello: Hello, ours: str = __version__) -> str:
    """A line about a device that is more than one minor version apart; empty: it is not."""
    found, own = _parsed(hello.sdk), _parsed(ours)
    if found is None or own is None or abs(found[1] - own[1]) <= 1:
        return ""
    older = "device" if found[1] < own[1] else "coordinator"
    return (
        f"{hello.device} has edge-sdk {hello.sdk}, this coordinator {ours}: more than one minor version apart is not "
        f"tested; upgrade the {older}"
    )


def _parsed(version: str) -> tuple[int, int] | None:
    """Major and minor version; None for a text of another form, as other implementations may send."""
    found = _VERSION.fullmatch(version)
    return (int(found[1]), int(found[2])) if found else None
