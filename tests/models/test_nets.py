"""The torch families: one step of training each, their sizes, their heads, and no BatchNorm anywhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from edge_sdk.data import Preprocess
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sim.models import families

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.models import torch_families

CLASSES = 10
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
LARGE = ("resnet18", "resnet34")
COLOUR = (3, 32, 32)
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
without_torchvision = pytest.mark.skipif(
    not HAS_TORCHVISION, reason="needs torchvision: pip install 'edge-sdk[vision]'"
)


def names(*, large: bool = True) -> list[object]:
    """Torch families; those of torchvision are skipped where that is not installed."""
    found = [(n, f) for n, f in families.FAMILIES.items() if f.runtime == "torch" and "picture" in f.takes]
    return [
        pytest.param(name, marks=without_torchvision if family.extra == "vision" else ())
        for name, family in found
        if large or name not in LARGE
    ]


def model(name: str, shape: tuple[int, int, int], feature_dim: int = 0) -> TorchModel:
    return torch_families.torch_model(name, CLASSES, shape, Preprocess(), 0, feature_dim=feature_dim)


def trains(net: TorchModel, shape: tuple[int, int, int]) -> None:
    """Two steps on one batch: the loss is that of guessing at first, then falls, and every layer takes part."""
    rng = np.random.default_rng(1)
    batches = Batches(
        inputs=rng.random((4, *shape), np.float32),
        labels=np.array([3, 1, 4, 1]),
        indices=np.arange(4)[None],
        stochastic=False,
    )
    before = [parameter.detach().clone() for parameter in net.trained]
    first = net.fit(batches, (CrossEntropy(),), Optim(learning_rate=1e-4))
    second = net.fit(batches, (CrossEntropy(),), Optim(learning_rate=1e-4))
    assert 0.8 < first.loss < 5  # ln 10 is 2.3
    assert second.loss < first.loss
    assert all((old != new).any() for old, new in zip(before, net.trained, strict=True))
    assert np.isfinite(net.weights()).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", names(large=False))
def test_a_step_of_training(name: str, shape: tuple[int, int, int]) -> None:
    net = model(name, shape)
    x = np.random.default_rng(0).random((2, *shape), np.float32)
    assert net.logits(x).shape == (2, CLASSES)
    assert net.features(x).shape == (2, net.spec.feature_dim)
    np.testing.assert_allclose(net.head(net.features(x)), net.logits(x), rtol=1e-4, atol=1e-5)
    trains(net, shape)


@pytest.mark.parametrize("name", [pytest.param(name, marks=without_torchvision) for name in LARGE])
def test_a_step_of_training_of_a_large_one(name: str) -> None:
    trains(model(name, (1, 8, 8)), (1, 8, 8))


@pytest.mark.parametrize("name", names())
def test_what_it_is_made_of(name: str) -> None:
    net = model(name, COLOUR)
    layers = list(net.net.modules())
    assert net.spec.parameters == families.FAMILIES[name].parameters
    assert not [layer for layer in layers if "BatchNorm" in type(layer).__name__]
    assert not list(net.net.buffers())  # nothing that is averaged or forgotten beside the weights
    head = [layer for layer in layers if isinstance(layer, torch.nn.Linear)][-1]
    assert (head.in_features, head.out_features) == (net.spec.feature_dim, CLASSES)
    switched = {"width"} if name.startswith(("resnet8", "wresnet")) or name == "resnet" else set()
    assert (
        net.spec.capabilities
        == {"predict", "logit-gradients", "weights", "features", "head-rows", "head-weights", "guidance-gradients"}
        | switched
    )


@pytest.mark.parametrize("name", names(large=False))
def test_features_of_any_width(name: str) -> None:
    own, wide = model(name, (1, 8, 8)), model(name, (1, 8, 8), feature_dim=50)
    d = own.spec.feature_dim
    assert wide.spec.feature_dim == 50
    assert "head-rows" in wide.spec.capabilities
    assert wide.spec.parameters == own.spec.parameters - (d + 1) * CLASSES + (d + 1) * 50 + 51 * CLASSES
    assert model(name, (1, 8, 8), feature_dim=d).spec.parameters == own.spec.parameters


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        # FedSSA, table 4, for CIFAR-10: 10.00, 6.92, 5.04, (3.81 printed, 4.04 counted) and 2.55 MiB of f4
        ("fedssa-cnn-1", COLOUR, 10.00 * 2**18),
        ("fedssa-cnn-2", COLOUR, 6.92 * 2**18),
        ("fedssa-cnn-3", COLOUR, 5.04 * 2**18),
        ("fedssa-cnn-4", COLOUR, 4.04 * 2**18),
        ("fedssa-cnn-5", COLOUR, 2.56 * 2**18),
        # FedNH, listing 1: 4864 + 102464 + 614784 + 73920 + 1920, and a bias for each of ten classes
        ("fednh-cnn", COLOUR, 797_952 + 10),
        # LeNet-5 on MNIST: 156 + 2416 + 48120 + 10164 + 850
        ("lenet5", (1, 28, 28), 61_706),
        # FedKF says 1.23 M for its ResNet-8
        ("resnet8", COLOUR, 1.23e6),
        # Zagoruyko and Komodakis: depth 16, width 1 has 0.17 M
        ("wresnet-16-1", COLOUR, 0.175e6),
        # the usual counts of ResNets whose stem is a 3 x 3 convolution
        pytest.param("resnet18", COLOUR, 11.17e6, marks=without_torchvision),
        pytest.param("resnet34", COLOUR, 21.28e6, marks=without_torchvision),
    ],
)
def test_sizes_of_the_papers(name: str, shape: tuple[int, int, int], parameters: float) -> None:
    assert model(name, shape).spec.parameters == pytest.approx(parameters, rel=4e-3)


@without_torchvision
def test_stems_are_small_for_small_pictures_only() -> None:
    flops = {
        side: model("mobilenet-v3-small", (1, side, side)).spec.flops_per_sample / side**2 for side in (32, 48, 64, 96)
    }
    assert flops[32] == pytest.approx(flops[48], rel=0.2)
    assert flops[64] == pytest.approx(flops[96], rel=0.2)
    assert flops[48] > 2 * flops[64]  # a stem of stride 2 leaves a quarter of the pixels to all that follows


@without_torchvision
def test_torchvision_imports_beside_this_torch() -> None:
    """In a process of its own: an operator that is declared twice would end it."""
    script = (
        "from edge_sim.models.torch_vision import datasets, models; import torchvision; print(models.resnet18.__name__)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "resnet18"), done.stderr


@without_torchvision
@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_only_where_the_compiled_ones_do_not_load(loads: bool, monkeypatch) -> None:
    vision = importlib.import_module("edge_sim.models.torch_vision")
    folder = importlib.util.find_spec("torchvision").submodule_search_locations[0]

    def load(path: str) -> None:
        assert path.startswith(folder)
        if not loads:
            raise OSError("libtorch_cuda.so: cannot open shared object file")

    monkeypatch.setattr(torch.ops, "load_library", load)
    assert vision.operators_load(folder) is loads
    assert vision.operators_load(str(folder) + "/no-such-folder") is False
