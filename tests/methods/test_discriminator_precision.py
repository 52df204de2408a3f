"""Why FedAL's discriminator differs from plain autograd under Adam, in single precision: a ReLU at its edge.

In double precision it is torch's own Adam to 13 digits.  In single precision a sample's input to a ReLU may round to
the other side of 0; from there Adam takes a step of its whole rate where SGD takes one of rate times that sample's share.
Gradients that vanish beside Adam's epsilon are not the cause: a large epsilon changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")
discriminator = pytest.importorskip("edge_sdk.methods.parts.torch_fedal")

pytestmark = pytest.mark.torch

CLASSES, DEVICES, SAMPLES = 10, 10, 32
SLOTS = np.arange(DEVICES)
TEMPERATURE = 2.0
NEAR = 1e-9
"""How far from 0 the input of one ReLU is, for one sample."""


def logits(step: int) -> np.ndarray:  # (n, b, k) f8
    return np.random.default_rng(step).normal(size=(DEVICES, SAMPLES, CLASSES))


def how(rate: float, optimiser: str) -> object:
    return discriminator.DiscriminatorTraining(temperature=TEMPERATURE, rate=rate, optimiser=optimiser, device="cpu")


def double() -> list[np.ndarray]:
    return [w.astype(np.float64) for w in discriminator.initial_discriminator(CLASSES, DEVICES, 1)]


def after(weights: list[np.ndarray], steps: int, rate: float, optimiser: str) -> list[np.ndarray]:
    state = discriminator.DiscriminatorState(tuple(weights))
    for step in range(steps):
        state = discriminator.iterate(state, logits(step), SLOTS, how(rate, optimiser)).state
    return list(state.weights)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_in_double_precision_it_is_torchs_own_optimiser(optimiser: str) -> None:
    ours = after(double(), 100, 1e-3, optimiser)
    theirs = [torch.tensor(w, requires_grad=True) for w in double()]
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    steps = kind(theirs, lr=1e-3)
    for step in range(100):
        steps.zero_grad()
        hidden = torch.softmax(torch.tensor(logits(step)) / TEMPERATURE, dim=-1)
        for i in (0, 2, 4):
            hidden = (hidden.relu() if i else hidden) @ theirs[i].T + theirs[i + 1]
        (-torch.log_softmax(hidden, dim=-1)[range(DEVICES), :, SLOTS].mean()).backward()
        steps.step()
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), rtol=0, atol=1e-13)


@dataclass(frozen=True)
class Edge:
    """Weights in which one unit of the second layer is just on for one sample alone, and just off for it."""

    on: list[np.ndarray]
    off: list[np.ndarray]

    def apart(self, steps: int, rate: float, optimiser: str) -> float:
        """The largest difference that some steps make of it."""
        pair = zip(*(after(each, steps, rate, optimiser) for each in (self.on, self.off)), strict=True)
        return max(float(np.abs(one - other).max()) for one, other in pair)


@pytest.fixture
def edge() -> Edge:
    weights, unit = double(), 7
    inputs = torch.softmax(torch.tensor(logits(0)) / TEMPERATURE, dim=-1).numpy()
    hidden = np.maximum(inputs @ weights[0].T + weights[1], 0) @ weights[2].T + weights[3]
    found = []
    for sign in (1, -1):
        moved = [w.copy() for w in weights]
        moved[3][unit] -= hidden[..., unit].max() - sign * NEAR
        found.append(moved)
    return Edge(*found)


def test_a_relu_at_its_edge_is_a_whole_step_of_adam_and_next_to_nothing_of_sgd(edge: Edge) -> None:
    rate = 1e-3
    assert edge.apart(1, rate, "adam") > rate / 2
    assert edge.apart(1, rate, "sgd") < rate / 1000


def test_a_large_epsilon_of_adam_does_not_mend_it(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess was Adam at vanishing gradients, which an epsilon above them would end."""
    for epsilon in (1e-8, 1e-6):
        monkeypatch.setattr(discriminator, "_ADAM_EPSILON", epsilon)
        assert edge.apart(1, 1e-3, "adam") > 1e-4


def test_without_an_edge_nothing_parts(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "relu", torch.nn.functional.softplus)
    assert edge.apart(10, 1e-3, "adam") < 10 * NEAR
