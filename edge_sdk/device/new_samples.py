"""Whether a device has as many new samples as its federation asks for before it takes part in another round."""

from __future__ import annotations

import math

from edge_sdk.device.context import DeviceContext
from edge_sdk.policy.conditions import Objection
from edge_sdk.protocol.messages import FEW_NEW_SAMPLES, Assign

COUNT_EVERY_S = 1.0
"""Seconds between two counts while a device waits for samples."""


class NewSamples:
    """Declines the rounds of a device that learned from most of its samples already."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self.objection: Objection | None = None
        """Why the device declines, as of the last count."""
        self._count_at_s = math.inf
        """When to count again; infinite while the device does not wait for samples."""

    def allow(self, assign: Assign, now_s: float) -> bool:
        """Whether the device may begin this exchange: it continues a round, closes the run, or has new samples."""
        if assign.closing or assign.round <= self._context.session.exchange_id.round:
            return True
        self._count(now_s)
        return self.objection is None

    def look(self, now_s: float) -> bool:
        """Count again if that is due; returns whether the device no longer waits for samples."""
        if now_s < self._count_at_s:
            return False
        self._count(now_s)
        return self.objection is None

    def _count(self, now_s: float) -> None:
        context, joined = self._context, self._context.membership
        wanted = joined.spec.min_new_samples if joined is not None else 0
        found = context.data.new_samples if wanted else 0
        self.objection, self._count_at_s = None, math.inf
        if found >= wanted:
            return
        self._count_at_s = now_s + COUNT_EVERY_S
        text = f"fewer than the {wanted} new samples that federation.min_new_samples asks for"
        if context.bench.budget is None:  # a budget keeps numbers of samples on the device
            text = f"{found} of the {wanted} new samples that federation.min_new_samples asks for"
        if context.data.changes and context.bench.capacity < wanted:
            text += f", and its SampleStore holds at most {context.bench.capacity}: raise max_samples or max_bytes"
        if not context.data.changes:
            text += ", and its data do not change: give its Agent a SampleStore"
        self.objection = Objection(FEW_NEW_SAMPLES, text)
