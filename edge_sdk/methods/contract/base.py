"""A method: one class in three parts, its description, the part on a device, the part on the coordinator."""

from __future__ import annotations

from typing import TypeVar

from edge_sdk.methods.contract.coordinator_part import CoordinatorPart, Down, Nets, Registered, torch_part
from edge_sdk.methods.contract.description import CAPABILITIES, Caching, Description, NoState
from edge_sdk.methods.contract.device_part import DevicePart, OnDevice, Stage, Step, Up, as_sent, check_batch
from edge_sdk.protocol.knowledge import Slot
from edge_sdk.protocol.wires import Exchange

__all__ = [
    "CAPABILITIES",
    "Caching",
    "CoordinatorPart",
    "Description",
    "DevicePart",
    "Down",
    "Exchange",
    "Method",
    "Nets",
    "NoState",
    "OnDevice",
    "Registered",
    "Slot",
    "Stage",
    "Step",
    "Up",
    "as_sent",
    "check_batch",
    "torch_part",
]

P = TypeVar("P")


class Method(DevicePart[P], CoordinatorPart[P]):
    """A method with given parameters.

    A method's file derives a class from `Method[Params]` and writes three parts, in this order:

    - `Description`: class attributes, and the warnings that follow from the parameters.
    - `DevicePart`: the stages that the paper describes: `receive`, `measure`, `train`, `share`, `personalise`.
    - `CoordinatorPart`: `begin`, `down`, `down_to` and `reduce`.
    """
