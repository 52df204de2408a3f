"""pfl's simulation of a large fleet of which few take part in a round, as benchmarks/simulation/large_fleet.py has it.

    python pfl_cohorts.py SAMPLES.npz DEVICES PARTICIPANTS ROUNDS       (the file that large_fleet.py writes)

FedAvg with SGD on the same net: each device takes five steps of four samples.  Prints a JSON object: seconds of
computing until the first round begins, of each round and of all, peak memory in MiB, the load, and the accuracy.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl_side import Net, Rounds, run
from side import Log
from torch import nn

STEPS, BATCH, RATE, SCALE = 5, 4, 0.05, 1 / 255


def main() -> None:
    """All rounds."""
    devices, participants, rounds = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  # pfl draws from the global generator
    with np.load(sys.argv[1]) as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    order = np.random.default_rng(0).permutation(len(y))
    each = len(y) // devices

    def samples_of(device: int) -> Dataset:
        rows = order[device * each : device * each + STEPS * BATCH]
        return Dataset([torch.from_numpy(x[rows].astype(np.float32) * SCALE), torch.from_numpy(y[rows])])

    users = FederatedDataset(samples_of, get_user_sampler("random", list(range(devices))))
    model, log = Net(nn.Sequential(nn.Flatten(), nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 10))), Log(("pfl",))
    begun_s = time.process_time()
    run(model, users, Rounds(log), rounds=rounds, participants=participants, batch=BATCH, rate=RATE)
    with torch.no_grad():
        found = model(torch.from_numpy(x_test.astype(np.float32) * SCALE)).argmax(1).numpy()
    each_s = [after - before for before, after in pairwise([begun_s, *log.cpu_s])]
    figures = {
        "begun_s": begun_s,
        "round_s": statistics.median(each_s),
        "rounds_s": each_s,
        "computing_s": time.process_time(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": os.getloadavg()[0],
        "accuracy": float((found == y_test).mean()),
    }
    sys.stdout.write("\n" + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
