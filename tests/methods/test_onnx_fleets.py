"""Fleets of three runtimes: torch, ONNX Runtime and numpy train one net, and take part in every method beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytestmark = pytest.mark.torch

from torch import nn

import edge_sim
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.torch_nets.torch_model import TorchModel

CLASSES = 3
HIDDEN = (6,)
RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(CLASSES, 4, 4))
LEFT_OUT = {"fedalign", "dp_prototypes"}
"""The first trains narrower copies of a net of residual blocks, in torch alone.  The second needs more samples than there
are here, and shares no weights."""
COSINE = {"fednh"}
"""Under its head, torch drops the ReLU in front of it: that is another net, with another layout."""
SMALL = {
    "fedhkd": {"min_count": 1},
    "fml": {"proxy": "softmax"},
    "fedkd": {"proxy": "softmax"},
    "fedmrl": {"proxy_features": 6},
    "fedl2g": {"warm_up": 0},
}
"""Parameters without which a method does not run here, or does not train."""


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(count) % CLASSES
    return (MEANS[y] + 0.3 * RNG.normal(size=(count, 4, 4))).astype(np.float32), y


DATA = (*samples(150), *samples(30))


def numpy_net(head: Any = "linear") -> NumpyModel:
    return NumpyModel(CLASSES, (1, 4, 4), seed=0, hidden=HIDDEN, head=head)


def torch_net(_classes: int, shape: Any, _seed: int) -> TorchModel:
    layers = nn.Flatten(), nn.Linear(16, *HIDDEN), nn.ReLU(), nn.Linear(*HIDDEN, CLASSES)
    made = TorchModel(nn.Sequential(*layers), CLASSES, input_shape=shape)
    made.set_weights(numpy_net().weights())
    return made


def onnx_net(_classes: int, _shape: Any, _seed: int) -> OnnxModel:
    return OnnxModel(numpy_net().onnx_bytes(np.zeros(0)), train="all")


def by_numpy(_classes: int, _shape: Any, _seed: int) -> NumpyModel:
    return numpy_net()


def onnx_cosine(_classes: int, _shape: Any, _seed: int) -> OnnxModel:
    return OnnxModel(numpy_net().onnx_bytes(np.zeros(0)), train="all", head="cosine")


def numpy_cosine(_classes: int, _shape: Any, _seed: int) -> NumpyModel:
    return numpy_net("cosine")


def run(method: str, *models: Callable[..., Any], rounds: int = 2) -> Any:
    tables: dict[str, dict[str, Any]] = {
        "federation": {"name": "three", "method": method, "rounds": rounds, "devices": 3},
        "train": {"optimiser": "sgd", "learning_rate": 0.1, "local_steps": 3, "batch_size": 8},
        "data": {"public": 24},
        "partition": {"kind": "iid"},
        "run": {"standalone": False},
    }
    if load_method(method)().same_width:
        tables["federation"]["feature_dim"] = HIDDEN[0]
    if method in SMALL:
        tables["method"] = SMALL[method]
    return edge_sim.run(tables, models=list(models), data=DATA)


@pytest.mark.parametrize("method", [name for name in method_names() if name not in LEFT_OUT])
def test_three_runtimes_take_part_in_a_method(method: str) -> None:
    runtimes: dict[str, Callable[..., Any]] = {"onnx": onnx_net, "numpy": by_numpy, "torch": torch_net}
    if method in COSINE:
        runtimes = {"onnx": onnx_cosine, "numpy": numpy_cosine}
    found = run(method, *runtimes.values())
    assert found.completed
    assert {model.spec.runtime for model in found.trained.values()} == {*runtimes}
    for model in found.trained.values():
        assert np.isfinite(model.weights()).all()


@pytest.mark.parametrize("method", ["fedavg", "fedl2g", "fedkf"])
def test_three_runtimes_learn_what_torch_alone_does(method: str) -> None:
    mixed, alone = run(method, torch_net, onnx_net, by_numpy), run(method, torch_net)
    for device, model in mixed.trained.items():
        np.testing.assert_allclose(model.weights(), alone.trained[device].weights(), atol=2e-6)


def numpy_proxy(_classes: int, _shape: Any, _seed: int) -> NumpyModel:
    return NumpyModel(CLASSES, (1, 4, 4), seed=1, hidden=(5,))


def torch_proxy(_classes: int, shape: Any, _seed: int) -> TorchModel:
    made = TorchModel(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, CLASSES)), CLASSES, input_shape=shape
    )
    made.set_weights(numpy_proxy(CLASSES, None, 0).weights())
    return made


def test_fedkd_matches_features_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a proxy in numpy, narrower than the device's own net: as torch alone does, and not as without matching."""
    found = {}
    for name, own, match in (("ours", onnx_net, True), ("torch", torch_net, True), ("apart", onnx_net, False)):
        proxy = "torch_proxy" if name == "torch" else "numpy_proxy"
        params = {"proxy": f"{__name__}:{proxy}", "match_features": match}
        monkeypatch.setitem(SMALL, "fedkd", params)
        found[name] = run("fedkd", *((own,) if name == "torch" else (own, by_numpy)))
        assert found[name].completed
    for device, model in found["ours"].trained.items():
        np.testing.assert_allclose(model.weights(), found["torch"].trained[device].weights(), atol=2e-6)
        assert np.abs(model.weights() - found["apart"].trained[device].weights()).max() > 1e-3


def test_derivatives_in_a_direction_are_those_of_torch() -> None:
    """What fedl2g asks for, with both heads."""
    x, direction = DATA[0][:9, None], np.random.default_rng(1).normal(size=numpy_net().weights().size)
    nets = torch_net(CLASSES, (1, 4, 4), 0), onnx_net(CLASSES, None, 0), numpy_net()
    for of_what in ("features", "logits"):
        theirs, *ours = (net.directional(x, direction.astype(np.float32), of_what) for net in nets)
        for each in ours:
            np.testing.assert_allclose(each, theirs, atol=2e-6)
    near = numpy_net("cosine")
    along = np.random.default_rng(2).normal(size=near.weights().size).astype(np.float32)
    for of_what in ("features", "logits"):
        found, begin = near.directional(x, along, of_what), near.weights()
        ends = []
        for step in (1e-3, -1e-3):
            near.set_weights(begin + np.float32(step) * along)
            ends.append(near.features(x) if of_what == "features" else near.logits(x))
        near.set_weights(begin)
        np.testing.assert_allclose(found, (ends[0] - ends[1]) / 2e-3, rtol=0.02, atol=0.02)
