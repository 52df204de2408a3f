"""Whether a run ends early, because it has spent its budget or reached its target."""

from __future__ import annotations

import statistics

from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_bytes, percent
from coordinator.rounds import RoundPolicy


def why_stop(policy: RoundPolicy, record: RunRecord) -> str:
    """Why the run ends with the round whose exchanges are all closed, or empty if it continues.

    Bytes are those that all devices have sent and received so far, joining included.  The accuracy is the mean over the
    devices that were evaluated last: of the global model where the method has one, else of their
    own models.
    """
    if policy.stop_at_bytes:
        spent = record.bytes_up.total() + record.bytes_down.total()
        if spent >= policy.stop_at_bytes:
            return f"{human_bytes(spent)} were spent, stop_at_bytes is {human_bytes(policy.stop_at_bytes)}"
    if policy.stop_at_accuracy:
        curves = record.global_accuracy or record.accuracy
        newest = curves.get(max(curves, default=0), {})
        mean = statistics.fmean(newest.values()) if newest else 0.0
        if mean >= policy.stop_at_accuracy:
            whose = "the global model" if record.global_accuracy else "the devices' own models"
            wanted = percent(policy.stop_at_accuracy)
            return f"the mean accuracy of {whose} is {percent(mean)}, stop_at_accuracy is {wanted}"
    return ""
