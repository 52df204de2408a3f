"""FedAL by hand: two devices, two classes, one public sample, a linear discriminator z = A p + b.

Every number was worked out apart from this code (E_D = 2, eta_d = 0.1, plain SGD, f_1 = (2, 0), f_2 = (0, 1)).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from method_specs import spec_of

from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedmd import leave_one_out
from edge_sdk.objectives import Distill, LessForgetting, LogitGradient, Seen, Term, logit_gradient, softmax
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.bag import mean_in_order

torch = pytest.importorskip("torch")
discriminator = pytest.importorskip("edge_sdk.methods.parts.torch_fedal")

pytestmark = pytest.mark.torch

F = np.array([[[2.0, 0.0]], [[0.0, 1.0]]], np.float32)  # (n, b, k)
A = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32)
B = np.zeros(2, np.float32)
SNAPSHOTS = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32)
SLOTS = np.array([0, 1])
HOW = discriminator.DiscriminatorTraining(temperature=2.0, rate=0.1, optimiser="sgd", device="cpu")

A_AFTER = [[1.003213, -1.008004], [-1.003213, 1.008004]]
B_AFTER = [-0.004792, 0.004792]
ADVERSARIAL = [[0.113081, -0.113081], [-0.177670, 0.177670]]
OTHERS = [[0.0, 1.0], [2.0, 0.0]]


def u(layers: tuple[np.ndarray, ...], f: np.ndarray) -> np.ndarray:  # (n,)
    """U_n of each device alone, by a step of length 0."""
    state, still = discriminator.DiscriminatorState(layers), replace(HOW, rate=0.0)
    alone = [discriminator.iterate(state, f[n : n + 1], SLOTS[n : n + 1], still) for n in range(len(f))]
    return np.array([each.mean_u for each in alone])


def near(expected: object) -> object:
    return pytest.approx(np.array(expected), abs=1.5e-6)


@pytest.fixture(scope="module")
def outcome():
    return discriminator.iterate(discriminator.DiscriminatorState((A, B)), F, SLOTS, HOW)


def test_probabilities() -> None:
    assert softmax(F, 2.0)[:, 0] == near([[0.731059, 0.268941], [0.377541, 0.622459]])


def test_discriminator_logits() -> None:
    assert softmax(F, 2.0)[:, 0] @ A.T == near([[0.462117, -0.462117], [-0.244919, 0.244919]])


def test_u_before() -> None:
    assert u((A, B), F) == near([-0.334209, -0.477926])
    assert u((A, B), F).mean() == near(-0.406068)


def test_slopes_of_the_mean() -> None:
    moved = discriminator.iterate(discriminator.DiscriminatorState((A, B)), F, SLOTS, replace(HOW, rate=1.0)).state
    assert moved.weights[0] - A == near([[0.032126, -0.080043], [-0.032126, 0.080043]])
    assert moved.weights[1] - B == near([-0.047918, 0.047918])


def test_weights_after_the_step(outcome) -> None:
    assert outcome.state.weights[0] == near(A_AFTER)
    assert outcome.state.weights[1] == near(B_AFTER)
    assert outcome.state.steps == 1
    assert outcome.state.moments == ()


def test_u_after_the_step_rose_in_the_mean(outcome) -> None:
    assert u(outcome.state.weights, F) == near([-0.336829, -0.471455])
    assert outcome.mean_u == near(-0.404142)
    assert outcome.mean_u > u((A, B), F).mean()


def test_adversarial_gradients(outcome) -> None:
    assert outcome.gradients[:, 0] == near(ADVERSARIAL)


def test_means() -> None:
    mean = mean_in_order(F)
    assert mean == near([[1.0, 0.5]])
    assert [leave_one_out(mean, own, 2)[0] for own in F] == near(OTHERS)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (OTHERS, [[0.874675, -0.874675], [-0.789525, 0.789525]]),
        ([[1.0, 0.5], [1.0, 0.5]], [[0.521157, -0.521157], [-0.531188, 0.531188]]),
    ],
    ids=["leave-one-out", "all"],
)
def test_gradients_at_the_clients(outcome, targets: list[list[float]], expected: list[list[float]]) -> None:
    def gradient(n: int) -> np.ndarray:
        terms: tuple[Term, ...] = (
            Distill(logits=np.array([[targets[n]]], np.float32)),
            LogitGradient(gradient=outcome.gradients[None, n]),
            LessForgetting(logits=SNAPSHOTS[None, n]),
        )
        return logit_gradient(terms, Seen(F[n], None, 0))[0]

    assert [gradient(0), gradient(1)] == near(expected)


def test_u_falls_when_the_clients_descend_it(outcome) -> None:
    moved = u(outcome.state.weights, F - 0.5 * outcome.gradients)
    assert moved == near([-0.349993, -0.504198])
    assert (moved < u(outcome.state.weights, F)).all()


def test_the_coordinator_half_gives_the_same_numbers() -> None:
    """Through init, add, finish and personal, as the server calls them; only the hidden layers are taken out."""
    linear = {"discriminator_layers": "", "discriminator_optimiser": "sgd", "discriminator_rate": 0.1}
    spec = spec_of("fedal", classes=2, public_batch=1, max_devices=2, discriminator_temperature=2.0, **linear)
    method = method_of(spec)
    state = replace(method.begin(spec), discriminator=(A.reshape(-1), B))
    bag = method.zero()
    for number in (1, 0):
        logits = PublicLogits(values=F[number], batch=bytes(8))
        bag = method.add(bag, Contribution(number=number, samples=1, knowledge={"logits": logits}))
    after = method.finish(spec, state, ExchangeId(0, 0), bag)
    down = [method.personal(after, ExchangeId(0, 1), number) for number in (0, 1)]
    assert after.discriminator[0] == near(np.reshape(A_AFTER, -1))
    assert after.mean_u == near(-0.404142)
    assert [roles["mean"].values[0] for roles in down] == near(OTHERS)
    assert [roles["adversarial"].values[0] for roles in down] == near(ADVERSARIAL)
    assert {roles["mean"].contributors for roles in down} == {1}
