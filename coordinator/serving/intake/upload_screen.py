"""Limits the influence of one device: caps its counts, bounds its values, and holds outliers out of the aggregate.

The cap is fixed when a round opens, and is part of the record.  A slot keeps the cap with which it was filled, so that
a value taken out of a running sum is bit for bit the value that was put in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from coordinator.ledger import Slots
from coordinator.record import remarks
from coordinator.record.run_record import RunRecord
from coordinator.serving.devices.device_registry import DeviceRegistry
from edge_sdk.methods.contract.base import Registered
from edge_sdk.protocol.frames.records import getter
from edge_sdk.protocol.knowledge import LogitGradients, Payload, PublicLogits, Weights
from edge_sdk.protocol.messages import Upload
from edge_sdk.reductions.influence import CountCap, RobustTable, beyond, capped, count_cap

SizeOf: TypeAlias = Callable[[Mapping[str, Payload]], float | None]
"""Returns the size of an upload as its method measures it, or None for the norm of its numbers."""


class UploadScreen:
    """Decides how much of each upload counts."""

    def __init__(self, table: RobustTable, registry: DeviceRegistry, record: RunRecord, size_of: SizeOf) -> None:
        """size_of: the method's measure of an upload."""
        self._table, self._registry, self._record, self._size_of = table, registry, record, size_of
        self._norms: dict[str, float] = {}
        """The sizes of the updates of the open exchange, by device."""
        self._out: dict[str, str] = {}
        """Devices whose upload of the open exchange does not count, with the fault of its values, or empty without a
        fault."""
        self._logits: set[str] = set()
        """Devices that sent only logits in the open exchange.  A trained model's logits are honestly far larger than
        those of a new model, so an outlier is reported (W17) but not held out."""
        self._most: dict[str, int] = {}
        """The caps that cut an upload of the open round, by device."""
        self._fixed: Registered | None = None
        """The devices for which the cap was fixed last; the registry makes a new object where one of them changes."""
        self._counted: tuple[Registered, tuple[int, int] | None, Registered] | None = None
        """The devices and the cap that `registered` was computed for last, and the result."""

    # -- counts -----------------------------------------------------------------------------------------------------

    def fix_cap(self) -> None:
        """Fix the cap of the round that opens, and record the devices that claim more."""
        known = self._registry.registered
        if known is self._fixed and self._record.count_cap is not None:
            return  # nobody has joined or changed since
        self._fixed = known
        claimed = {device: self._registry.samples[device] for device in self._registry.numbers}
        cap = count_cap(self._table, claimed.values())
        self._record.count_cap = cap
        for device, samples in claimed.items():
            weighs = cap.of(samples)
            if samples and weighs is not None:
                self._record.capped[device] = (samples, weighs)

    def most(self, device: str) -> int | None:
        """Maximum weight of a device in this round in samples, or None if uncapped."""
        return CountCap(*self._record.count_cap or ()).of(self._registry.samples[device])

    def samples(self, device: str, told: int) -> int:
        """The number of samples that an upload counts with, given the number it states."""
        most = self.most(device)
        return min(told, self._registry.samples[device] or 1, told if most is None else most)

    @property
    def registered(self) -> Registered:
        """The devices that have joined, with the samples that they count with."""
        known, cap = self._registry.registered, self._record.count_cap
        if self._counted is None or self._counted[0] is not known or self._counted[1] != cap:
            samples = self._registry.samples
            total = sum(self.samples(device, samples[device]) for device in self._registry.numbers)
            self._counted = known, cap, replace(known, samples=total)
        return self._counted[2]

    def counted(self, device: str, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The knowledge of an upload with its counts cut to the cap."""
        most = self.most(device)
        if most is None:
            self._most.pop(device, None)
            return knowledge
        self._most[device] = most
        return capped(knowledge, most)

    def in_slot(self, device: str, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The knowledge in a device's slot, with the cap of the round in which it came."""
        most = self._record.slot_caps.get(device)
        return knowledge if most is None else capped(knowledge, most)

    def slots_changed(self, slots: Slots) -> None:
        """Keep the caps with which slots are filled when a round ends."""
        caps = self._record.slot_caps
        for device in (*slots.filled, *slots.dropped):
            caps.pop(device, None)
        caps.update({device: self._most[device] for device in slots.filled if device in self._most})

    # -- values -----------------------------------------------------------------------------------------------------

    def counts(self, upload: Upload, sent: Mapping[str, Payload]) -> bool:
        """Whether an upload counts, judged alone; sent: the payloads that every device was sent in the exchange."""
        device, wrong = upload.device, beyond(upload.knowledge, self._table)
        size = self._size_of(upload.knowledge)
        self._norms[device] = update_norm(upload.knowledge, sent) if size is None else size
        if all(isinstance(payload, (PublicLogits, LogitGradients)) for payload in upload.knowledge.values()):
            self._logits.add(device)
        if not wrong and upload.round >= self._record.held_out.get(device, 0):
            return True
        self._out[device] = wrong
        return False

    def outliers(self) -> dict[str, float]:
        """Devices whose update is far larger than the others', with the ratio to the median (W17).

        Updates that are left out already do not enter the median.
        """
        return outliers(self._norms, self._out)

    def left_out(self, device: str) -> bool:
        """Whether the device's upload of this exchange does not count."""
        return device in self._out

    def why_none(self) -> str:
        """Return why no upload of this exchange counts, with an example."""
        device, wrong = max(self._out.items(), key=lambda each: (bool(each[1]), each[0]))
        return f"none of the {len(self._out)} uploads counts; for example {device}: {wrong or 'it is held out'}"

    def to_leave_out(self, found: Mapping[str, float]) -> list[str]:
        """The outliers among these that must be left out and are not yet."""
        if not self._table.hold_out_rounds:
            return []
        return [device for device in found if device not in self._out and device not in self._logits]

    def leave_out(self, devices: Collection[str]) -> None:
        """Note that the uploads of these outliers are out of the aggregate."""
        self._out.update(dict.fromkeys(devices, ""))

    def close(self, round_: int, found: Mapping[str, float]) -> list[str]:
        """Close the exchange and hold out the devices at fault; returns lines to log.  found: its outliers."""
        record, notes = self._record, []
        known = {device for device, until in record.held_out.items() if round_ < until}
        for device, times in found.items():
            record.outlier(device, times)
            if device not in known:
                notes.append(remarks.far_larger(round_, device, times))
        for device, wrong in sorted(self._out.items()):
            record.left_out[device] += 1
            if device in found or wrong:
                record.why_left_out[device] = wrong or remarks.times_the_median(found[device])
                record.held_out[device] = until = round_ + 1 + self._table.hold_out_rounds
                if device not in known:  # log it only once, not in every round
                    notes.append(remarks.held_out(round_, device, record.why_left_out[device], until))
        self._out = {}
        self._logits.clear()
        self._norms = {}
        return notes


# -- The sizes of the updates of an exchange, to name those far larger than the others (warning W17) ------------------
# A size is the norm of the update, unless the method has another measure (`Method.size_of`).
# The settings decide whether a named device is also held out (UploadScreen).

OUTLIER = 10.0
"""An update is an outlier if its norm exceeds this many times the median."""
LEAST_UPDATES = 3
"""Minimum number of updates to call one an outlier."""


def update_norm(knowledge: Mapping[str, Payload], sent: Mapping[str, Payload]) -> float:
    """The Euclidean norm of all numbers of an upload; weights count as the change from the weights sent."""
    total = 0.0
    for role, payload in knowledge.items():
        before = sent.get(role)
        for value in getter(type(payload))(payload):
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                continue
            if isinstance(payload, Weights) and isinstance(before, Weights) and before.values.shape == value.shape:
                change = value - before.values  # (p,)
                total += float(np.vdot(change, change))
            else:
                total += float(np.vdot(value, value))
    return math.sqrt(total)


def outliers(norms: Mapping[str, float], left_out: Collection[str] = ()) -> dict[str, float]:
    """The devices whose norm is more than OUTLIER times the median, with the ratio to the median.

    left_out: devices that do not count, and are excluded from the median.
    """
    rest = [norm for device, norm in norms.items() if device not in left_out]
    median = statistics.median(rest) if rest and len(norms) >= LEAST_UPDATES else 0.0
    return {device: norm / median for device, norm in sorted(norms.items()) if norm > OUTLIER * median > 0}
