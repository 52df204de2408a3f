"""A board of FedAL's test bed: `edge-sdk device --app fedal_pi_app:make` beside the folder that `--export` wrote.

FEDAL_PI names the board's folder, such as device-03.
"""

from __future__ import annotations

import os
from pathlib import Path

import edge_sdk
from edge_sim.fleet.fleet import read_device


def make() -> edge_sdk.App:
    """Return the model and the samples that this board has in the simulation."""
    device = read_device(Path(os.environ["FEDAL_PI"]))
    return edge_sdk.App(model=device.kit.model(None), data=device.data, disclose_classes=True, share_weights=True)
