"""The methods once more, straight from the papers: plain torch, one loop, no messages, no requests.

They share with the real code only what is no part of a method: the weights that a run begins with, and the data.  Their
batches are drawn in tests/draws.py, which does not call the code under test.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import draws
import numpy as np
import torch
from fleets import Run
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from edge_sim.clock.virtual_device import VirtualDevice


@dataclass
class Twin:
    """One device: a linear model, its optimiser, its samples."""

    net: nn.Module
    optimiser: torch.optim.Optimizer
    x: torch.Tensor
    y: torch.Tensor
    public: torch.Tensor
    number: int
    run: Run
    target_of: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, device: VirtualDevice) -> Twin:
        """A copy of a device that has not begun."""
        rows = device.participant.context.bench.model.head_rows()
        net = nn.Linear(rows.shape[1] - 1, rows.shape[0])
        with torch.no_grad():
            net.weight.copy_(torch.from_numpy(rows[:, :-1]))
            net.bias.copy_(torch.from_numpy(rows[:, -1]))
        train = run.fleet.federation.spec.train
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        return cls(
            net=net,
            optimiser=kinds[train.optimiser](net.parameters(), lr=train.learning_rate),
            x=flat(device.device.data.train.x),
            y=torch.from_numpy(device.device.data.train.y),
            public=flat(device.device.public.samples),
            number=device.device.kit.number,
            run=run,
        )

    def private_batches(self, round_: int) -> torch.Tensor:
        """Indices (steps, b)."""
        spec = self.run.fleet.federation.spec
        found = draws.private_batches(
            seed=spec.seed,
            number=self.number,
            round_=round_,
            samples=len(self.x),
            size=spec.train.batch_size,
            steps=spec.train.local_steps,
        )
        return torch.from_numpy(found)

    def step(self, loss: torch.Tensor) -> None:
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    @property
    def rows(self) -> np.ndarray:
        """Weights with the bias as last column."""
        return torch.cat([self.net.weight, self.net.bias[:, None]], dim=1).detach().numpy()


def flat(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float32).reshape(len(x), -1))


def kl(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(softmax(teacher / T) || softmax(student / T)), mean over the batch."""
    p = softmax(teacher.detach() / temperature, dim=1)
    return kl_div(log_softmax(student / temperature, dim=1), p, reduction="batchmean")


def mean_of_others(logits: list[torch.Tensor], n: int) -> torch.Tensor:
    return torch.stack([f for i, f in enumerate(logits) if i != n]).mean(dim=0).detach()


def public_batch(run: Run, round_: int, iteration: int, size: int) -> torch.Tensor:
    spec = run.fleet.federation.spec
    assert spec.public is not None
    found = draws.public_batch(seed=spec.seed, round_=round_, exchange=iteration, size=size, count=spec.public.count)
    return torch.from_numpy(found)


def fedmd(run: Run, twins: list[Twin]) -> None:
    """Train, score a public batch, learn from the mean of the others on it; or in the original form, of all."""
    spec = run.fleet.federation.spec
    temperature, batch_size = spec.params["temperature"], spec.params["public_batch"]
    original = spec.params["form"] == "digest"
    size = spec.params["align"] if original else batch_size
    for t in range(spec.rounds):
        for twin in twins:
            for batch in twin.private_batches(t):
                twin.step(cross_entropy(twin.net(twin.x[batch]), twin.y[batch]))
        chosen = public_batch(run, t, 0, size)
        scores = [twin.net(twin.public[chosen]).detach() for twin in twins]
        for n, twin in enumerate(twins):
            everybody = torch.stack(scores).mean(dim=0)
            to_all = original or spec.params["target"] == "all"
            target = everybody if to_all else mean_of_others(scores, n)
            if original:
                for start in range(0, size, batch_size):
                    part = slice(start, start + batch_size)
                    gap = twin.net(twin.public[chosen[part]]) - target[part]
                    twin.step(gap.abs().mean() if spec.params["error"] == "absolute" else gap.square().mean())
            for _ in range(0 if original else max(1, spec.params["digest_steps"])):
                twin.step(kl(target, twin.net(twin.public[chosen]), temperature))


class Discriminator:
    """h with its own optimiser: ascends the mean of log softmax(h(softmax(f / E_D)))_n."""

    def __init__(self, layers: list[torch.Tensor], params: dict) -> None:
        modules: list[nn.Module] = []
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            modules += [linear, nn.ReLU()]
        self.net = nn.Sequential(*modules[:-1])
        self.temperature = params["discriminator_temperature"]
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self._optimiser = kinds[params["discriminator_optimiser"]](
            self.net.parameters(), lr=params["discriminator_rate"]
        )

    def u(self, f: torch.Tensor, n: int) -> torch.Tensor:
        """U_n for each sample."""
        return log_softmax(self.net(softmax(f / self.temperature, dim=1)), dim=1)[:, n]

    def learn(self, logits: list[torch.Tensor]) -> None:
        self._optimiser.zero_grad()
        loss = -torch.stack([self.u(f, n).mean() for n, f in enumerate(logits)]).mean()
        loss.backward()
        self._optimiser.step()

    def gradient(self, f: torch.Tensor, n: int, clip: float) -> torch.Tensor:
        """The gradient of U_n at each sample's logits, no longer than `clip`."""
        at = f.clone().requires_grad_()
        (slopes,) = torch.autograd.grad(self.u(at, n).sum(), at)
        if clip:
            slopes = slopes * (clip / slopes.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        return slopes


def fedal(run: Run, twins: list[Twin], discriminator: Discriminator) -> None:
    """Algorithm 1, with whole models as snapshots."""
    spec = run.fleet.federation.spec
    params = spec.params
    temperature = params["temperature"]
    for t in range(spec.rounds):
        for twin in twins:
            begun = deepcopy(twin.net)
            for batch in twin.private_batches(t):
                x = twin.x[batch]
                loss = cross_entropy(twin.net(x), twin.y[batch])
                if t > 0:
                    loss = loss + params["less_forgetting"] * kl(begun(x), twin.net(x), temperature)
                twin.step(loss)
        trained = [deepcopy(twin.net) for twin in twins]
        for i in range(params["tau"]):
            chosen = public_batch(run, t, i, params["public_batch"])
            logits = [twin.net(twin.public[chosen]).detach() for twin in twins]
            discriminator.learn(logits)
            for n, twin in enumerate(twins):
                x = twin.public[chosen]
                f = twin.net(x)
                adversarial = discriminator.gradient(logits[n], n, params["gradient_clip"])
                loss = kl(mean_of_others(logits, n), f, temperature)
                loss = loss + params["adversarial"] * (adversarial * f).sum(dim=1).mean()
                loss = loss + params["less_forgetting"] * kl(trained[n](x), f, temperature)
                twin.step(loss)
