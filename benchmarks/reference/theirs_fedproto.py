"""FedProto as HtFLlib trains it, in plain autograd, with one switch for each thing in which ours differs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.reference.ours import DEVICES, RATE, ROUNDS, Reference, weighted
from benchmarks.reference.theirs import Device, Twin

PULL = 10.0
"""lambda, as there."""
Prototypes = Mapping[int, Tensor]
"""Class -> (d,)."""


@dataclass(frozen=True, kw_only=True)
class PrototypeTwin(Twin):
    """A run of FedProto as there; a switch that is set takes our part of it."""

    after_training: bool = False
    """Prototypes are of the trained net; there of each mini-batch while the net is trained on it."""
    by_samples: bool = False
    """The mean over devices weighs by samples; there all holders of a class count alike."""
    theirs: str = "FedProto"

    def measured(self, reference: Reference) -> dict[str, Any]:
        """Run it, and return its figures."""
        begun_s = time.process_time()
        devices = [Device(number, reference.of(number), 1000 * self.seed) for number in range(DEVICES)]
        shared: Prototypes = {}
        for _ in range(ROUNDS):
            shared = self._mean([self._trained(each, shared) for each in devices])
        tested = {str(each.number): len(each.test_y) for each in devices}
        found = weighted({str(each.number): _nearest(each, shared) for each in devices}, tested)
        by_head = weighted({str(each.number): each.accuracy() for each in devices}, tested)
        figures = {"prototype": found, "head": by_head}
        return {"ours": found, "figures": figures, "settings": self.digest, "cpu_s": time.process_time() - begun_s}

    def _trained(self, device: Device, shared: Prototypes) -> dict[int, tuple[Tensor, int]]:
        """Train a device for an epoch, and return its class means and their samples."""
        seen, values = [], list(device.own.parameters())
        for x, y in device.batches():
            features = device.own[:-1](x)
            loss = nn.functional.cross_entropy(device.own[-1](features), y)
            if shared:
                pulled = [shared.get(int(label), row) for label, row in zip(y, features.detach(), strict=True)]
                loss = loss + PULL * nn.functional.mse_loss(features, torch.stack(pulled))
            seen.append((features.detach(), y))
            slopes = torch.autograd.grad(loss, values)
            with torch.no_grad():
                for value, slope in zip(values, slopes, strict=True):
                    value.sub_(slope, alpha=RATE)
        if self.after_training:
            with torch.no_grad():
                seen = [(device.own[:-1](x), y) for x, y in device.batches()]
        rows, labels = (torch.cat(each) for each in zip(*seen, strict=True))
        return {int(c): (rows[labels == c].mean(dim=0), int((labels == c).sum())) for c in labels.unique()}

    def _mean(self, sent: list[dict[int, tuple[Tensor, int]]]) -> Prototypes:
        found = {}
        for c in sorted({c for each in sent for c in each}):
            held = [each[c] for each in sent if c in each]
            weights = torch.tensor([float(n) if self.by_samples else 1.0 for _, n in held])
            found[c] = (torch.stack([row for row, _ in held]) * (weights / weights.sum())[:, None]).sum(dim=0)
        return found


def _nearest(device: Device, shared: Prototypes) -> float:
    """The share of right answers by the nearest prototype."""
    with torch.no_grad():
        far = torch.cdist(device.own[:-1](device.test_x), torch.stack([*shared.values()]))  # (n, classes)
    return float((torch.tensor([*shared])[far.argmin(dim=1)] == device.test_y).float().mean())


PROTOTYPE_TWINS = (
    PrototypeTwin(seed=0),
    PrototypeTwin(seed=0, after_training=True),
    PrototypeTwin(seed=0, by_samples=True),
    PrototypeTwin(seed=0, after_training=True, by_samples=True),
)
"""As there, and with one thing of ours each, and both."""
