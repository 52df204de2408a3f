"""The passes alone of a round in which every device evaluates its net: no metric, no record, no round.

    python passes.py FLEET DEVICES

Each net passes the test set in the pieces in which devices evaluate, as one traced call, on one thread.  Prints a
Timing as JSON.
"""

from __future__ import annotations

import os
import sys
import time

STARTED_S = time.time()

import nets  # the clock above sees the imports
import torch
from task import ROUNDS, now_s, tables, tell

from edge_sdk.device.training.workbench import slices
from edge_sdk.models.torch_nets.torch_tracing import answers_of
from edge_sdk.models.torch_training.torch_traced import VARIABLE
from edge_sim.config import settings
from edge_sim.engines.memory import freed_memory_kept
from edge_sim.fleet.fleet import build_fleet


@freed_memory_kept()
def main() -> None:
    """Pass the test set through the net of each device, round after round."""
    fleet_name, count = sys.argv[1:]
    os.environ[VARIABLE] = "always"
    torch.set_num_threads(1)
    fleet = build_fleet(settings.parse(tables("fedproto", fleet_name, int(count)), settings.Path("bench")))
    x = fleet.devices[0].kit.preprocess(fleet.dataset.test.x)  # (t, c, h, w)
    depth, height, width = x.shape[1:]
    families = [getattr(nets, nets.FLEETS[fleet_name][at % len(nets.FLEETS[fleet_name])]) for at in range(int(count))]
    models = [make(fleet.dataset.classes, (depth, height, width), at) for at, make in enumerate(families)]
    parts, ends_s = [x[part] for part in slices(len(x))], []
    for model in models:
        for part in parts:
            model.logits(part)  # the trace of a model is compared with its own pass first
    for _ in range(ROUNDS):
        for model in models:
            for part in parts:
                answers_of([model.tracing], "logits", part)
        ends_s.append(now_s())
    tell(ends_s, int(count), STARTED_S)


if __name__ == "__main__":
    main()
