"""FedKF's device once more, straight from the paper: two nets, a generator, one loop.

It shares with the real code the generator's architecture and its first weights, and the draws of noise and seeds.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softmax

from edge_sdk.methods.fedkf import Params
from edge_sdk.methods.parts.fedkf_term import Plan, drawn_noise, first_weights, noise_draws
from edge_sdk.methods.parts.torch_fedkf import Generator
from edge_sim.clock.virtual_device import VirtualDevice


class Twin:
    """One device with an mlp, whose features are what its last layer is given."""

    def __init__(self, device: VirtualDevice, seed: int, params: Params, rate: float, *, noise_vectors: int) -> None:
        """A copy of a device that has not begun."""
        self.noise_vectors = noise_vectors
        model: Any = device.participant.context.bench.model
        *layers, last = deepcopy(model.net)
        self.net = nn.Sequential(*layers, *last)
        kit, data = device.device.kit, device.device.data.train
        self.number, self.seed, self.params, self.rate = kit.number, seed, params, rate
        self.x, self.y = torch.from_numpy(model.spec.preprocess(data.x)), torch.from_numpy(data.y.astype(np.int64))
        self.generator: nn.Module | None = None

    def round(self, round_: int, shared: np.ndarray | None, batches: np.ndarray) -> np.ndarray:
        """ClientUpdate: the weights (p,) that the device returns; batches (steps, b)."""
        teacher = None
        if shared is not None:
            torch.nn.utils.vector_to_parameters(torch.tensor(shared, dtype=torch.float32), self.net.parameters())
            teacher = deepcopy(self.net).requires_grad_(requires_grad=False)
            if not self.params.warm:
                self.generator = None
        for step, batch in enumerate(batches):
            draw = int(np.random.default_rng([self.seed, round_, 0, self.number, step]).integers(2**31))
            loss = cross_entropy(self.net(self.x[batch]), self.y[batch])
            if teacher is not None and self.params.gamma:
                loss = loss + self.params.gamma * self.knowledge(teacher, draw, self.noise_vectors)
            parameters = list(self.net.parameters())
            with torch.no_grad():
                for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.sub_(self.rate * slope)
        return torch.nn.utils.parameters_to_vector(self.net.parameters()).detach().double().numpy()

    def knowledge(self, teacher: nn.Sequential, draw: int, count: int) -> torch.Tensor:
        """c4 to c6: KL of what the teacher and the net say of samples that are made up."""
        if self.generator is None:
            shape = tuple(self.x.shape[1:])
            plan = Plan(self.params.generator, self.params.noise_dim, shape)
            self.generator = Generator(plan)
            drawn = {name: torch.from_numpy(each) for name, each in first_weights(plan, draw).items()}
            self.generator.load_state_dict(drawn)
            self.adam = Adam(list(self.generator.parameters()), self.params.generator_rate)
        noise = torch.from_numpy(drawn_noise(noise_draws(draw), count, self.params.noise_dim))
        low, high = (edge(self.x, dim=(0, 2, 3))[:, None, None] for edge in (torch.amin, torch.amax))

        def make() -> torch.Tensor:
            return low + (high - low) * self.generator(noise)

        features = teacher[:-1](make())
        loss = self.generator_loss(teacher[-1](features), features)
        if self.params.adversarial:
            fakes = make()
            loss = loss - self.params.gamma * divergence(teacher(fakes), self.net(fakes))
        self.adam.step(loss)
        fakes = make().detach()
        return divergence(teacher(fakes).detach(), self.net(fakes))

    def generator_loss(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Equations 1 to 4."""
        predicted = softmax(logits, dim=1)
        surest = predicted.max(dim=1).values
        shares = predicted.mean(dim=0)
        balance = sum(share * share.log() for share in shares)
        height = sum(row.abs().sum() for row in features) / len(features)
        if not self.params.raw_loss:
            balance, height = 1 + balance / np.log(len(shares)), height / features.shape[1]
        return balance - self.params.certain * surest.log().mean() - self.params.active * height


class Adam:
    """Kingma and Ba 2015, Algorithm 1; torch's own takes seconds to load."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate, self.steps = parameters, rate, 0
        self.first = [torch.zeros_like(each) for each in parameters]
        self.second = [torch.zeros_like(each) for each in parameters]

    def step(self, loss: torch.Tensor) -> None:
        """Down the loss."""
        self.steps += 1
        with torch.no_grad():
            for i, slope in enumerate(torch.autograd.grad(loss, self.parameters)):
                self.first[i] = 0.9 * self.first[i] + 0.1 * slope
                self.second[i] = 0.999 * self.second[i] + 0.001 * slope**2
                mean = self.first[i] / (1 - 0.9**self.steps)
                spread = (self.second[i] / (1 - 0.999**self.steps)).sqrt()
                self.parameters[i] -= self.rate * mean / (spread + 1e-8)


def divergence(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """The mean over rows of sum_c p_c (log p_c - log q_c)."""
    p, q = softmax(teacher, dim=1), softmax(student, dim=1)
    return (p * (p.log() - q.log())).sum(dim=1).mean()
