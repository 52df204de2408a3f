"""FedKD as HtFLlib trains it, in plain autograd, with one switch for each thing in which ours differs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.reference import nets
from benchmarks.reference.ours import BATCH, DEVICES, RATE, ROUNDS, Reference, weighted
from edge_sdk.data import LocalData

CLIP, FEATURES = 10.0, 64
STOPS = 20
"""The rounds of these runs: half of them tells the switches apart, and has a figure there, too."""
_FEDKD = "FedKD"


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A run of one of their methods in plain autograd; a subclass adds switches, each of which takes our part of it."""

    seed: int
    theirs: str

    @property
    def switches(self) -> tuple[str, ...]:
        """What is ours."""
        return tuple(name for name, value in asdict(self).items() if value is True)

    @property
    def name(self) -> str:
        """The key of its figures."""
        ours = " with our " + ", ".join(self.switches) if self.switches else ""
        return f"{self.theirs} in plain autograd{ours}, seed {self.seed}".replace("_", " ")

    @property
    def digest(self) -> str:
        """What changes with the settings: the switches are in the name, and there is nothing else."""
        return "1"


@dataclass(frozen=True, kw_only=True)
class KdTwin(Twin):
    """A run of FedKD as there; a switch that is set takes our part of it."""

    fixed_doubt: bool = False
    """S, which divides the terms between the models, is a constant; there gradients pass through it."""
    mean_over_samples: bool = False
    """The divergence is a mean over samples; there over samples and classes, a tenth of it."""
    whole_proxies: bool = False
    """Proxies travel whole; there their weights, not their changes, are cut to a share of their energy."""
    theirs: str = _FEDKD

    def measured(self, reference: Reference) -> dict[str, Any]:
        """Run it, and return its figures."""
        begun_s = time.process_time()
        devices = [Device(number, reference.of(number), 1000 * self.seed) for number in range(DEVICES)]
        shared = {name: each.detach() for name, each in devices[0].proxy.named_parameters()}
        for round_ in range(STOPS):
            share = 0.95 + 0.03 * round_ / ROUNDS
            sent = []
            for device in devices:
                device.proxy.load_state_dict(shared)
                self._train(device)
                sent.append({name: each.detach() for name, each in device.proxy.named_parameters()})
            if not self.whole_proxies:
                sent = [_cut(each, share) for each in sent]
            shared = {name: torch.stack([each[name] for each in sent]).mean(dim=0) for name in shared}
            if not self.whole_proxies:
                shared = _cut(shared, share)
        tested = {str(each.number): len(each.test_y) for each in devices}
        found = weighted({str(each.number): each.accuracy() for each in devices}, tested)
        return {"ours": found, "settings": self.digest, "cpu_s": time.process_time() - begun_s}

    def _train(self, device: Device) -> None:
        ce, mse = nn.functional.cross_entropy, nn.functional.mse_loss
        parts = (device.own, device.proxy, device.projection)
        for x, y in device.batches():
            features, of_proxy = device.own[:-1](x), device.proxy[:-1](x)
            f, g = device.own[-1](features), device.proxy[-1](of_proxy)
            own, proxy = ce(f, y), ce(g, y)
            doubt = (own + proxy).detach() if self.fixed_doubt else own + proxy
            between = self._divergence(f, g) + self._divergence(g, f) + 2 * mse(features, device.projection(of_proxy))
            slopes = torch.autograd.grad(
                own + proxy + between / doubt, [each for part in parts for each in part.parameters()]
            )
            at = 0
            with torch.no_grad():
                for part in parts:
                    values = list(part.parameters())
                    mine, at = slopes[at : at + len(values)], at + len(values)
                    length = float(torch.stack([each.square().sum() for each in mine]).sum().sqrt())
                    for value, slope in zip(values, mine, strict=True):
                        value.sub_(slope, alpha=RATE * min(1.0, CLIP / (length + 1e-6)))

    def _divergence(self, f: Tensor, towards: Tensor) -> Tensor:
        found = nn.functional.kl_div(f.log_softmax(1), towards.softmax(1), reduction="batchmean")
        return found if self.mean_over_samples else found / f.shape[1]


class Device:
    """The nets and the samples of one device."""

    def __init__(self, number: int, data: LocalData, seed: int) -> None:
        make = (nets.a, nets.b, nets.c)[number % 3]
        self.number = number
        self.own, self.proxy = make(10, (1, 28, 28), seed), nets.a(10, (1, 28, 28), seed)
        torch.manual_seed(seed)
        self.projection = nn.Linear(FEATURES, FEATURES, bias=False)
        self._x, self._y = _tensors(data.train)
        test = data.test
        assert test is not None  # the partition gives every device one
        self.test_x, self.test_y = _tensors(test)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The mini-batches in the order of the samples, without a shorter last one."""
        for at in range(0, len(self._y) - BATCH + 1, BATCH):
            yield self._x[at : at + BATCH], self._y[at : at + BATCH]

    def accuracy(self) -> float:
        """The own model's share of right answers on the device's test."""
        with torch.no_grad():
            return float((self.own(self.test_x).argmax(1) == self.test_y).float().mean())


def _tensors(samples: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(samples.x)[:, None], torch.from_numpy(np.asarray(samples.y, np.int64))


def _cut(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return weights, each matrix cut to the fewest directions that have more than this share of its energy.

    As there, a kernel is cut along its last two axes, all directions never count as few enough, and a matrix that would
    need them is lost: it becomes 0.
    """
    found = dict(weights)
    for name, each in weights.items():
        if each.dim() > 1 and len(each) > 1:
            u, s, v = torch.linalg.svd(each, full_matrices=False)
            energies = s.reshape(-1, s.shape[-1]).square().sum(dim=0).cumsum(0)  # (r,)
            enough = (energies[:-1] > share * energies[-1]).nonzero()
            kept = int(enough[0]) + 1 if len(enough) else 0
            found[name] = (u[..., :kept] * s[..., None, :kept]) @ v[..., :kept, :]
    return found


TWINS = (
    KdTwin(seed=0),
    KdTwin(seed=0, fixed_doubt=True),
    KdTwin(seed=0, mean_over_samples=True),
    KdTwin(seed=0, whole_proxies=True),
)
"""As there, and with one thing of ours each."""
