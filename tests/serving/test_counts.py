"""How much a device weighs: what it declared when it joined is the most, whatever its uploads claim."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import fleets

from edge_sdk.device.link.uplink import Uplink
from edge_sdk.protocol.messages import Upload


def test_no_device_weighs_more_than_it_declared(pictures: Path, monkeypatch) -> None:
    """LG-FedAvg weighs a row by its device's samples: one of three devices claims a million in each upload."""
    honest = fleets.Run(fleets.built(pictures, "lg_fedavg", devices=3)).finished()
    made = Uplink.frame

    def boasting(self: Uplink, upload: Upload) -> bytes:
        if upload.device == "device-01" and not upload.closing:
            upload = dataclasses.replace(upload, samples=1_000_000)
        return made(self, upload)

    monkeypatch.setattr(Uplink, "frame", boasting)
    run = fleets.Run(fleets.built(pictures, "lg_fedavg", devices=3))
    sent = run.tap()
    run.finished()
    claims = [each.samples for each in sent if isinstance(each, Upload) and each.device == "device-01"]
    assert claims[0] == 1_000_000
    assert run.coordinator_bytes == honest.coordinator_bytes
