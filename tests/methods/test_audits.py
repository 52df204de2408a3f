"""Four methods against their papers' definitions in plain autograd or linear algebra, in double precision.

FedKD's cut by energy, FedAlign's term, CReFF's step on the coordinator, q-FFL's step.  Whole runs of them are held
against twins in their own tests; here nothing of the code under test is used for what is expected.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from edge_sdk.methods.fedkd import compressed
from edge_sdk.methods.qffl import stepped
from edge_sdk.protocol.low_rank import as_matrix, expanded, factorised

torch = pytest.importorskip("torch")

from edge_sdk.methods.parts import torch_creff
from edge_sdk.methods.parts.torch_fedalign import flow, largest_singular_value

pytestmark = pytest.mark.torch


# -- FedKD: equation 8 of the paper: the least K with sum_1^K s^2 / sum s^2 above the threshold ----------------------


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (64, 9), (16, 144)])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.98])
def test_fedkd_keeps_the_fewest_directions_with_that_energy(shape: tuple[int, int], share: float) -> None:
    rng = np.random.default_rng(3)
    decay = 0.8 ** np.arange(min(shape))
    left, right = (np.linalg.qr(rng.normal(size=(n, len(decay))))[0] for n in shape)
    matrix = torch.tensor((left * decay) @ right.T)
    rank, numbers = factorised(matrix.numpy(), share)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    energy = torch.cumsum(s**2, 0) / (s**2).sum()
    fewest = next(n for n in range(1, len(s) + 1) if energy[n - 1] > share)
    if fewest * (sum(shape) + 1) >= shape[0] * shape[1]:
        assert rank == 0  # factors would be longer than the matrix
        return
    assert rank == fewest
    a, b = shape
    parts = np.split(numbers.astype(np.float64), [a * rank, a * rank + rank])
    ours = (parts[0].reshape(a, rank) * parts[1]) @ parts[2].reshape(rank, b)
    best = (u[:, :fewest] * s[:fewest]) @ v[:fewest]
    np.testing.assert_allclose(ours, best.numpy(), atol=1e-6)
    lost = np.linalg.norm(matrix.numpy() - ours) ** 2 / float((s**2).sum())
    assert lost == pytest.approx(1 - float(energy[fewest - 1]), abs=1e-6)


def test_fedkd_cuts_a_whole_net_array_by_array() -> None:
    """A convolution as (out, in k k), a linear layer as it is, a bias whole."""
    rng = np.random.default_rng(0)
    shapes = [(16, 8, 3, 3), (16,), (20, 24)]
    arrays = [torch.tensor(np.outer(rng.normal(size=s[0]), rng.normal(size=int(np.prod(s[1:]))))) for s in shapes]
    flat = np.concatenate([each.numpy().ravel() for each in arrays])
    update = compressed(flat, [as_matrix(shape) for shape in shapes], 0.9, bytes(16))
    assert update.ranks.tolist() == [1, 0, 1]
    np.testing.assert_allclose(expanded(update), flat, atol=1e-5)  # of rank 1 nothing is lost


# -- FedAlign: equations 3 to 6: the spectral norm of F_in F_out^T / (h w), and its slope ----------------------------


def test_fedaligns_constant_and_slope_are_those_of_the_spectral_norm() -> None:
    rng = np.random.default_rng(1)
    before = torch.tensor(np.abs(rng.normal(size=(4, 3, 8, 8))))
    after = torch.tensor(np.abs(rng.normal(size=(4, 5, 4, 4))), requires_grad=True)
    pooled = before.reshape(4, 3, 4, 2, 4, 2).mean(dim=(3, 5))  # to the size of the output's maps
    matrix = torch.einsum("bcxy,bdxy->bcd", pooled, after) / 16
    norms = torch.linalg.matrix_norm(matrix, ord=2)
    ours = largest_singular_value(flow(before, after))
    np.testing.assert_allclose(ours.detach(), norms.detach(), rtol=1e-6)
    slopes = [torch.autograd.grad((each**2).sum(), [after])[0] for each in (ours, norms)]
    np.testing.assert_allclose(*slopes, rtol=0, atol=1e-4 * float(slopes[1].abs().max()))


# -- CReFF: features whose gradients match, and a layer trained on them ---------------------------------------------


def test_creffs_features_descend_on_the_cosines_of_their_gradients() -> None:
    rng = np.random.default_rng(2)
    k, d, count, steps, rate = 5, 6, 7, 8, 0.1
    layer, features = rng.normal(size=(k, d + 1)), rng.normal(size=(k, count, d))
    classes, wanted = np.array([1, 3, 4]), rng.normal(size=(3, k, d + 1))
    ours = torch_creff.matched(features, layer, classes, wanted, steps=steps, rate=rate)
    x = torch.tensor(features, requires_grad=True)
    sgd = torch.optim.SGD([x], lr=rate)
    for _ in range(steps):
        loss = torch.zeros((), dtype=torch.float64)
        for label, told in zip(classes, torch.tensor(wanted), strict=True):
            weight, bias = (torch.tensor(part, requires_grad=True) for part in (layer[:, :-1], layer[:, -1]))
            ce = torch.nn.functional.cross_entropy(x[label] @ weight.T + bias, torch.full((count,), int(label)))
            own = torch.autograd.grad(ce, [weight, bias], create_graph=True)
            cosine = torch.nn.functional.cosine_similarity
            loss = loss + (1 - cosine(own[0], told[:, :-1], dim=1)).sum() + 1 - cosine(own[1], told[:, -1], dim=0)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    np.testing.assert_allclose(ours, x.detach().numpy(), atol=1e-4)
    assert np.abs(ours - features)[classes].max() > 0.05
    np.testing.assert_array_equal(ours[[0, 2]], features[[0, 2]])


def test_creffs_layer_is_trained_by_plain_sgd() -> None:
    rng = np.random.default_rng(4)
    layer, features = rng.normal(size=(4, 6)), rng.normal(size=(4, 9, 5))
    ours = torch_creff.retrained(layer.copy(), features, epochs=5, rate=0.3, batch=8, rng=np.random.default_rng(7))
    net = torch.nn.Linear(5, 4).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(layer[:, :-1]))
        net.bias.copy_(torch.tensor(layer[:, -1]))
    sgd = torch.optim.SGD(net.parameters(), lr=0.3)
    x, y, draws = torch.tensor(features.reshape(-1, 5)), torch.arange(4).repeat_interleave(9), np.random.default_rng(7)
    for _ in range(5):
        order = draws.permutation(36)
        for begin, end in pairwise([*range(0, 36, 8), 36]):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(x[order[begin:end]]), y[order[begin:end]]).backward()
            sgd.step()
    expected = np.concatenate([net.weight.detach().numpy(), net.bias.detach().numpy()[:, None]], axis=1)
    np.testing.assert_allclose(ours, expected, atol=1e-12)


# -- q-FFL: the gradient of sum F^(q+1) / (q+1), divided by the bound of its Lipschitz constant ----------------------


@pytest.mark.parametrize("q", [0.0, 1e-4, 0.5, 1.0, 5.0])
def test_a_step_of_qffl_is_down_the_gradient_of_its_objective(q: float) -> None:
    """Where each device takes one step of the whole gradient, of a net that is not linear."""
    rng = np.random.default_rng(5)
    rate = 0.1
    begun = rng.normal(size=(4 * 3 + 3 * 2,)) / 2
    data = [(torch.tensor(rng.normal(size=(n, 4))), torch.tensor(rng.integers(2, size=n))) for n in (5, 8, 11)]

    def loss_of(w: object, x: object, y: object) -> object:
        hidden = torch.tanh(x @ w[:12].reshape(4, 3))
        return torch.nn.functional.cross_entropy(hidden @ w[12:].reshape(3, 2), y)

    w = torch.tensor(begun, requires_grad=True)
    losses = [loss_of(w, *each) for each in data]
    slopes = [torch.autograd.grad(loss, [w], retain_graph=True)[0] for loss in losses]
    (whole,) = torch.autograd.grad(sum(loss ** (q + 1) for loss in losses) / (q + 1), [w])
    bounds = [
        q * loss ** (q - 1) * slope.norm() ** 2 + loss**q / rate for loss, slope in zip(losses, slopes, strict=True)
    ]
    expected = begun - (whole / sum(bounds)).detach().numpy()
    rows = [begun - rate * slope.numpy() for slope in slopes]
    found = stepped(begun, rows, [loss.item() for loss in losses], q, rate)
    np.testing.assert_allclose(found, expected, atol=1e-6)
