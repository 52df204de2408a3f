"""Checks whether training has diverged: loss, weights and knowledge must be finite and within bounds.

A device does not send the result of a diverged exchange, and undoes it: one NaN in a mean would reach every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import Diverged
from edge_sdk.models.base import FitReport, Model, weights_are_finite
from edge_sdk.protocol.knowledge import MAX_MAGNITUDE, Payload


def check_loss(report: FitReport, step: int) -> None:
    """Raise Diverged if the loss of a training step, numbered from 0, is NaN or infinite."""
    if not math.isfinite(report.loss):
        raise Diverged(f"the loss was {report.loss:g} in step {step + 1}")


def check_weights_finite(model: Model) -> None:
    """Raise Diverged if trained weights hold NaN or Inf: all of them, or the last layer if only that is readable."""
    held = model.spec.capabilities
    if weights_are_finite(model):
        return
    if "weights" in held:
        _check("weights", model.weights(), math.inf)
    elif "head-weights" in held or "head-rows" in held:
        _check("last layer", model.head_rows(), math.inf)


def check_knowledge(knowledge: Mapping[str, Payload]) -> None:
    """Raise Diverged if an upload holds NaN, Inf, or a number beyond MAX_MAGNITUDE."""
    for role, payload in knowledge.items():
        for each in fields(payload) if isinstance(payload, Payload) else ():
            value = getattr(payload, each.name)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                _check(role, value, MAX_MAGNITUDE)


def _check(name: str, values: NDArray[np.floating], most: float) -> None:
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())  # NaN where any value is
    if not (math.isfinite(low) and math.isfinite(high) and max(-low, high) <= most):
        raise Diverged(f"the {name} hold numbers from {low:g} to {high:g}")
