"""The share of each loss term in the gradient, against autograd; the model is left as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from edge_sdk.device.training.evaluation import term_names, term_shares
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_training import torch_traced
from edge_sdk.objectives import CrossEntropy, Distill, Optim

pytestmark = pytest.mark.torch

CLASSES, SIDE, SIZE = 3, 4, 6
RNG = np.random.default_rng(0)
TARGETS = RNG.normal(size=(1, SIZE, CLASSES)).astype(np.float32)
BATCHES = Batches(
    inputs=RNG.normal(size=(SIZE, 1, SIDE, SIDE)).astype(np.float32),
    labels=RNG.integers(0, CLASSES, SIZE),
    indices=np.arange(SIZE)[None],
    seed=3,
)
OBJECTIVE = (CrossEntropy(), Distill(logits=TARGETS, temperature=2.0, weight=0.3))


def torch_model(*layers: nn.Module) -> TorchModel:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5), *layers, nn.ReLU(), nn.Linear(5, CLASSES))
    return TorchModel(net, CLASSES, input_shape=(1, SIDE, SIDE))


def test_it_is_the_share_of_autograds_norms():
    model = torch_model()
    logits = model.net(torch.from_numpy(BATCHES.inputs))
    given = torch.log_softmax(torch.from_numpy(TARGETS[0]) / 2, -1)
    losses = (
        nn.functional.cross_entropy(logits, torch.from_numpy(BATCHES.labels)),
        0.3 * nn.functional.kl_div(torch.log_softmax(logits / 2, -1), given, reduction="batchmean", log_target=True),
    )
    norms = []
    for loss in losses:
        slopes = torch.autograd.grad(loss, list(model.net.parameters()), retain_graph=True)
        norms.append(torch.cat([slope.flatten() for slope in slopes]).norm().item())
    found = term_shares(model, BATCHES, OBJECTIVE)
    assert list(found) == ["cross-entropy", "distill"]
    assert found["distill"] == pytest.approx(norms[1] / sum(norms), rel=1e-3)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("runtime", ["torch", "dropout", "norm", "numpy"])
def test_the_model_stays_as_it_was(runtime):
    layers = {"dropout": (nn.Dropout(),), "norm": (nn.BatchNorm1d(5),)}.get(runtime, ())
    model = NumpyModel(CLASSES, (1, SIDE, SIDE), seed=0) if runtime == "numpy" else torch_model(*layers)
    model.fit(BATCHES, (CrossEntropy(),), Optim())  # from now on there are moments
    before = model.state_bytes()
    assert len(term_shares(model, BATCHES, OBJECTIVE)) == 2
    assert model.state_bytes() == before


class StepsAlone:
    """A model that takes steps, and has no quicker way to say how far each would go."""

    def __init__(self, model: TorchModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        if name == "step_norms":
            raise AttributeError(name)
        return getattr(self._model, name)


@pytest.mark.parametrize("layers", [(), (nn.Dropout(),), (nn.BatchNorm1d(5),)])
@pytest.mark.parametrize("part", ["all", "head"])
@pytest.mark.parametrize("traced", ["off", "always"])
def test_one_pass_gives_the_bits_of_steps(layers, part, traced, monkeypatch):
    monkeypatch.setenv("EDGE_SDK_TRACED", traced)
    model = torch_model(*layers)
    term_shares(model, BATCHES, OBJECTIVE, part)  # a trace is checked at its first use
    quick = term_shares(model, BATCHES, OBJECTIVE, part)
    assert quick == term_shares(StepsAlone(model), BATCHES, OBJECTIVE, part)
    assert len(quick) == 2


def test_two_sizes_of_mini_batches_tell_all_others(monkeypatch):
    recorded, real = [], torch_traced.recorded
    monkeypatch.setattr(torch_traced, "recorded", lambda *given: recorded.append(1) or real(*given))
    found = {}
    for traced in ("off", "always"):
        monkeypatch.setenv("EDGE_SDK_TRACED", traced)
        torch.manual_seed(2)
        model = torch_model(nn.Tanh(), nn.Linear(5, 5))  # a net that no other test has recorded
        for size in (3, 5, 6, 4, 3, 5, 6, 4):
            batches = replace(BATCHES, indices=BATCHES.indices[:, :size])
            objective = (CrossEntropy(), Distill(logits=TARGETS[:, :size], temperature=2.0, weight=0.3))
            assert found.setdefault(size, shares := term_shares(model, batches, objective)) == shares
    assert len(recorded) == 4  # each of two sizes twice, to see whether they are the same


def test_one_term_has_no_share():
    assert term_shares(torch_model(), BATCHES, (CrossEntropy(),)) == {}


def test_terms_of_one_name_are_numbered():
    assert list(term_names((CrossEntropy(), CrossEntropy(weight=2.0), CrossEntropy()))) == [
        "cross-entropy",
        "cross-entropy.2",
        "cross-entropy.3",
    ]


def test_a_part_counts_its_own_weights_alone():
    model = torch_model()
    head = term_shares(model, BATCHES, OBJECTIVE, part="head")
    assert head.keys() == {"cross-entropy", "distill"}
    assert head != term_shares(model, BATCHES, OBJECTIVE)
