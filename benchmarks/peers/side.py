"""What every side shares: the task as it was written, the nets, the rounds, and how a run is told.

This file and the *_side.py files run in a peer's own environment: torch, numpy and the peer, nothing of this project,
but for edge_side.py.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

ROUNDS, BATCH, RATE, SEED, CLASSES = 10, 32, 0.05, 0, 10
Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """The samples of all devices, and the test."""

    devices: list[Samples]
    test: Samples

    @classmethod
    def read(cls, path: str) -> Task:
        """Read the task from the file that task.py writes."""
        with np.load(path) as file:
            x, y, starts = torch.from_numpy(file["x"]), torch.from_numpy(file["y"]), file["starts"]
            test = torch.from_numpy(file["x_test"]), torch.from_numpy(file["y_test"])
        return cls([(x[a:b], y[a:b]) for a, b in pairwise(starts)], test)


def net(name: str) -> nn.Sequential:
    """The same start on every side: about 85,000 parameters for (n, 1, 8, 8)."""
    torch.manual_seed(SEED)
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, CLASSES),
        )
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def batches(samples: Samples) -> list[Samples]:
    """One epoch, in the order of the file, as pfl and FedML give it: so every side computes the same numbers."""
    return list(zip(samples[0].split(BATCH), samples[1].split(BATCH), strict=True))


def train(model: nn.Module, samples: Samples) -> None:
    """One local epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches(samples):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


@dataclass
class Log:
    """The times at which rounds ended."""

    packages: tuple[str, ...]
    ends_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    lost: int = 0
    """Device-rounds whose result did not arrive."""

    def round_done(self) -> None:
        """Note the time, and what this process has computed."""
        self.ends_s.append(time.monotonic())
        self.cpu_s.append(time.process_time())

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that this side uses."""
        return {name: importlib.metadata.version(name) for name in ("torch", "numpy", *self.packages)}

    def tell(self, model: nn.Module, test: Samples) -> None:
        """Print all of it as one line of JSON, the last one of stdout."""
        with torch.no_grad():
            logits = model(test[0])
        told = {
            "ends_s": self.ends_s,
            "cpu_s": self.cpu_s,
            "lost": self.lost,
            "accuracy": float((logits.argmax(1) == test[1]).float().mean()),
            "loss": float(nn.functional.cross_entropy(logits, test[1])),
            "versions": self.versions(),
        }
        sys.stdout.write("\n" + json.dumps(told) + "\n")
        sys.stdout.flush()
