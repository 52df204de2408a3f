"""The messages between the remote engine and its workers."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from edge_sdk.device.meter import Meter
from edge_sdk.methods.requests import Request
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.engines.untraced import NONE, Untraced
from edge_sim.fleet.fleet import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a worker is given once, before the first request."""

    devices: tuple[Device, ...]
    """The devices that it computes for, with their samples."""
    spec: FederationSpec
    stacked: frozenset[str]
    """Names of the models that it stacks (torch_cohort.py); empty: it computes devices one by one."""
    modules: tuple[str, ...]
    """The module search path of the simulation: factories of models may lie beside a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """One request of one device, on its way to a worker."""

    number: int
    """The device."""
    request: Request
    round: int
    exchange: int
    model: Any
    """What the worker needs to bring its model to the state of the simulation's model; its type is the pool's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """The answer to one request."""

    answer: Any
    """The result, or the exception that the request raised."""
    spent: Meter
    """What the request cost on the device."""
    model: Any
    """What the simulation needs to bring its model to the state of the worker's model; its type is the pool's."""
    untraced: Untraced = NONE
    """The models that the worker has trained without a trace so far."""


def to_pickle(value: object) -> bytes:
    """Encode a value for another process of the same run."""
    return pickle.dumps(value, protocol=5)
