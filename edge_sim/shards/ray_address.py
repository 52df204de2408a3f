"""The address of the Ray that a run computes on, and the variables that Ray reads when it is imported."""

from __future__ import annotations

import os
import socket

from edge_sdk.errors import UsageError

LOCAL = "local"
"""Stands for a Ray of the run's own, on this machine."""
REACH_S = 5.0
"""Longest time that an address may take to answer; Ray itself tries for minutes."""


def find_ray_address(cluster: str) -> str:
    """Return the address that run.cluster stands for.  Raises UsageError where nobody listens there.

    Call it before `import ray`: a Ray that stays on this machine is bound to its loopback by a variable that is read
    then, for else its ports were open to the network.  A process that has had one can have no other Ray.
    """
    address = os.environ.get("RAY_ADDRESS", cluster) if cluster == "auto" else cluster
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
    if address == LOCAL:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # whatever the system: no cluster, loopback
    else:
        _reach(address)
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # for one that listens and is no Ray; else many minutes
    return address


def _reach(address: str) -> None:
    """Raise UsageError unless a process listens at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # the address is `auto`
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"run.cluster: nothing answers at {address} ({error}); start Ray there (ray start --head), or "
            f'write "{LOCAL}" for a Ray of the run\'s own'
        ) from None
