"""The bare sequential PyTorch loop: what a careful script without any framework does, in one process and one thread.

    python bare.py METHOD FLEET DEVICES [FILE.npz]      METHOD: fedavg, fedproto, fedssa

Nothing is encoded, nobody can fail, devices and server share objects.  Each device has a module and an optimiser of
its own, but for fedavg, where one module serves all.  EDGE_DEVICE: cuda:N for a GPU.  Prints a Timing as JSON.
"""

from __future__ import annotations

import sys
import time

STARTED_S = time.time()

import numpy as np  # the clock above sees the imports
import torch
import torch.nn.functional as nnf
from nets import FEATURES, FLEETS, NETS
from task import DEVICE, RATE, ROUNDS, now_s, tables, tell
from torch import Tensor, nn

from edge_sdk.methods.contract.job import Job
from edge_sim.config import settings
from edge_sim.engines.torch_threads import use_exact_arithmetic
from edge_sim.fleet.fleet import build_fleet


class Device:
    """One device's module, optimiser and samples."""

    def __init__(self, net: nn.Sequential, x: Tensor, y: Tensor, job: Job) -> None:
        self.net, self.x, self.y, self.job = net, x, y, job
        self.body, self.head = net[:-1], net[-1]
        self.optimiser = torch.optim.SGD(net.parameters(), lr=RATE)

    def batches(self, round_: int) -> Tensor:
        """The mini-batches of a round: (steps, b)."""
        job = Job(**{name: getattr(self.job, name) for name in self.job.__slots__} | {"round": round_})
        return torch.from_numpy(job.private_batches(job.local_steps).indices).to(DEVICE)

    def train(self, round_: int, prototypes: tuple[Tensor, Tensor] | None = None) -> None:
        """One local epoch; prototypes: rows (k, d) and which of them there are (k,)."""
        for index in self.batches(round_):
            x, y = self.x[index], self.y[index]
            features = self.body(x)
            loss = nnf.cross_entropy(self.head(features), y)
            if prototypes is not None:
                rows, known = prototypes
                loss = loss + ((features - rows[y]) * known[y, None]).square().mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()

    @torch.no_grad()
    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Mean features of each class (k, d) and samples (k,), in one pass."""
        counts = torch.bincount(self.y, minlength=classes)
        features = self.body(self.x)
        sums = torch.zeros(classes, features.shape[1], device=DEVICE).index_add_(0, self.y, features)
        return sums / counts.clamp(min=1)[:, None], counts


def fedproto(devices: list[Device], classes: int, width: int, round_: int, state: dict[str, Tensor]) -> None:
    """Train towards the prototypes, average the new ones over the holders of each class."""
    known = state.get("known")
    given = None if known is None else (state["rows"], known)
    total, holders = torch.zeros(classes, width, device=DEVICE), torch.zeros(classes, device=DEVICE)
    for device in devices:
        device.train(round_, given)
        means, counts = device.class_sums(classes)
        held = (counts > 0).float()
        total += means * held[:, None]
        holders += held
    state["rows"], state["known"] = total / holders.clamp(min=1)[:, None], (holders > 0).float()


def fedssa(devices: list[Device], classes: int, width: int, round_: int, state: dict[str, Tensor]) -> None:
    """Take over the rows of one's classes, train, average the rows over their holders."""
    total, holders = torch.zeros(classes, width + 1, device=DEVICE), torch.zeros(classes, device=DEVICE)
    for device in devices:
        held = torch.unique(device.y)
        with torch.no_grad():
            if state:
                device.head.weight[held] = (state["rows"][held, :-1] + device.head.weight[held]) / 2
                device.head.bias[held] = (state["rows"][held, -1] + device.head.bias[held]) / 2
        device.train(round_)
        with torch.no_grad():
            total[held] += torch.cat([device.head.weight[held], device.head.bias[held, None]], dim=1)
        holders[held] += 1
    state["rows"] = total / holders.clamp(min=1)[:, None]


def fedavg(devices: list[Device], _classes: int, _width: int, round_: int, state: dict[str, Tensor]) -> None:
    """Load the mean, train, average by samples; one module serves all."""
    net = devices[0].net
    parameters = list(net.parameters())
    start = state.get("weights")
    if start is None:
        start = nn.utils.parameters_to_vector(parameters).detach().clone()
    total, samples = torch.zeros_like(start), 0
    for device in devices:
        with torch.no_grad():
            nn.utils.vector_to_parameters(start.clone(), parameters)  # else parameters are views of it
        device.train(round_)
        total += nn.utils.parameters_to_vector(parameters).detach() * len(device.y)
        samples += len(device.y)
    state["weights"] = total / samples


ROUND = {"fedproto": fedproto, "fedssa": fedssa, "fedavg": fedavg}


def main() -> None:
    """Build everything, run the rounds, tell the time."""
    method, fleet_name, count, *npz = sys.argv[1:]
    torch.set_num_threads(1)
    use_exact_arithmetic()
    config = settings.parse(tables(method, fleet_name, int(count), npz="".join(npz)), settings.Path("bench"))
    fleet = build_fleet(config)
    classes, names = fleet.dataset.classes, FLEETS[fleet_name]
    devices: list[Device] = []
    for number, device in enumerate(fleet.devices):
        x = device.kit.preprocess(device.data.train.x)
        job = Job(
            spec=fleet.federation.spec,
            number=number,
            round=0,
            exchange=0,
            closing=False,
            samples=len(x),
            learns=True,
        )
        shared = method == "fedavg" and devices
        net = devices[0].net if shared else NETS[names[number % len(names)]](classes, x.shape[1:]).to(DEVICE)
        own = torch.from_numpy(x).to(DEVICE), torch.from_numpy(np.int64(device.data.train.y)).to(DEVICE)
        devices.append(Device(net, *own, job))
    state: dict[str, Tensor] = {}
    ends_s = []
    for round_ in range(ROUNDS):
        ROUND[method](devices, classes, FEATURES[fleet_name], round_, state)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        ends_s.append(now_s())
    tell(ends_s, int(count), STARTED_S)


if __name__ == "__main__":
    main()
