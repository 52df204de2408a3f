"""Nets as people have them: wrapped, lazy, with probabilities or several outputs; what is trained is what they mean."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import fleets
import numpy as np
import pytest
from model_suite import BATCH, CLASSES, SHAPE, batches, samples

from edge_sdk.errors import ModelError
from edge_sdk.objectives import CrossEntropy, Optim, softmax
from edge_sim.config import settings
from edge_sim.engines.base import ExactEngine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn

from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.engines.stack.torch_stack import DenseStacking, VmapStacking

SLOW = Optim(kind="sgd", learning_rate=0.1)


class Pair(NamedTuple):
    """What a net gives."""

    features: Any
    logits: Any


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES))


class Then(nn.Module):
    """A net of which something is made at the end; layers have the names of `plain`."""

    def __init__(self, last: Callable[[Tensor], Any]) -> None:
        super().__init__()
        for name, layer in plain().named_children():
            self.add_module(name, layer)
        self.last = last

    def forward(self, x: Tensor) -> Any:
        for layer in self.children():
            x = layer(x)
        return self.last(x)


def wrap(net: nn.Module, *, shaped: bool = True, **options: Any) -> TorchModel:
    return TorchModel(net, CLASSES, input_shape=SHAPE if shaped else None, name="mine", **options)


def trained(model: TorchModel) -> np.ndarray:
    model.fit(batches(5), (CrossEntropy(),), SLOW)
    return model.weights()


PROBABILITIES = {
    "Softmax": lambda: nn.Sequential(*plain(), nn.Softmax(dim=1)),
    "Sigmoid": lambda: nn.Sequential(*plain(), nn.Sigmoid()),
    "a function": lambda: Then(lambda out: torch.softmax(out, dim=1)),
    "a function, squeezed": lambda: Then(lambda out: torch.softmax(out[:, None], dim=2).squeeze(1)),
    "by their sums": lambda: Then(lambda out: out.log_softmax(dim=1).exp()),
    "in a dict": lambda: Then(lambda out: {"logits": out.softmax(dim=1)}),
    "sigmoid, then a factor": lambda: Then(lambda out: out.sigmoid() * 1.0),
    "Hardsigmoid": lambda: nn.Sequential(*plain(), nn.Hardsigmoid()),
    "softmax, then a factor": lambda: Then(lambda out: out.softmax(dim=1) * 0.999),
    "an entry of a dict, by its range": lambda: Then(lambda out: {"logits": out.sigmoid() * 1.0}),
}

LOGITS = {
    "zeros": lambda: Then(lambda out: out * 0),
    "constants": lambda: Then(lambda out: out * 0 + torch.linspace(0, 1, CLASSES)),
    "near 0": lambda: Then(lambda out: out * 1e-2 + 0.5),
    "ReLU": lambda: nn.Sequential(*plain(), nn.ReLU()),
    "tanh": lambda: nn.Sequential(*plain(), nn.Tanh()),
    "LayerNorm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, CLASSES)),
}


@pytest.mark.parametrize("make", LOGITS.values(), ids=LOGITS)
def test_logits_are_not_taken_for_probabilities(make: Callable[[], nn.Module]) -> None:
    assert wrap(make()).spec.note == ""
    assert wrap(make(), shaped=False).logits(samples()[0]).shape == (len(samples()[0]), CLASSES)


def test_one_probability_for_two_classes_is_told_as_a_shape() -> None:
    one = Then(lambda out: out.sigmoid().mean(dim=1))
    with pytest.raises(ModelError, match=r"answers 1 samples with shape \(1,\), expected \(1, 4\)"):
        wrap(one)


TYPES = {
    r"it gives torch.float64, expected torch.float32: let forward\(\) end with \.float\(\)": lambda out: out.double(),
    r"it gives torch.bfloat16, expected .* end with \.float\(\)": lambda out: out.bfloat16(),
    r"it gives torch.int64, expected torch.float32: .* return the logits": lambda out: out.long(),
}


@pytest.mark.parametrize(("message", "last"), TYPES.items())
def test_outputs_of_another_type_are_refused(message: str, last: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match=f"^model 'mine': {message}"):
        wrap(Then(last))
    with pytest.raises(ModelError, match=f"^model 'mine': {message}"):
        wrap(Then(last), shaped=False).logits(samples()[0])


@pytest.mark.parametrize("make", PROBABILITIES.values(), ids=PROBABILITIES)
class TestProbabilities:
    def test_are_refused_with_the_remedy(self, make: Callable[[], nn.Module]) -> None:
        remedy = re.escape(f'make edge_sdk.TorchModel(net, {CLASSES}, outputs="probabilities") of it')
        with pytest.raises(
            ModelError, match=f"^model 'mine': it gives probabilities .*: leave that layer out, or {remedy}"
        ):
            wrap(make())
        with pytest.raises(ModelError, match=remedy):
            wrap(make(), shaped=False).logits(samples()[0])

    @pytest.mark.parametrize("shaped", [True, False])
    def test_are_taken_where_they_are_declared(self, make: Callable[[], nn.Module], *, shaped: bool) -> None:
        given = make().eval()(torch.tensor(samples()[0]))
        given = given["logits"] if isinstance(given, dict) else given
        model = wrap(make(), shaped=shaped, outputs="probabilities")
        expected = (given / given.sum(dim=1, keepdim=True)).detach().numpy()
        np.testing.assert_allclose(softmax(model.logits(samples()[0])), expected, atol=1e-6)
        np.testing.assert_allclose(softmax(model.serving_copy().logits(samples()[0])), expected, atol=1e-6)


@pytest.mark.traced
def test_of_a_softmax_the_gradient_is_that_of_the_net_without_it() -> None:
    declared = wrap(nn.Sequential(*plain(), nn.Softmax(dim=1)), outputs="probabilities")
    np.testing.assert_allclose(trained(declared), trained(wrap(plain())), atol=1e-6)
    assert declared.spec.note == "logits: the logarithms of its probabilities"


def test_log_probabilities_are_logits() -> None:
    model = wrap(nn.Sequential(*plain(), nn.LogSoftmax(dim=1)))
    np.testing.assert_allclose(
        softmax(model.logits(samples()[0])), softmax(wrap(plain()).logits(samples()[0])), atol=1e-6
    )
    np.testing.assert_allclose(trained(model), trained(wrap(plain())), atol=1e-6)
    assert model.spec.note == "logits: log-probabilities"
    with pytest.raises(ModelError, match="log-probabilities, which are logits: leave outputs"):
        wrap(nn.Sequential(*plain(), nn.LogSoftmax(dim=1)), outputs="probabilities")


def test_what_is_cut_off_at_a_bound_is_still_log_probabilities() -> None:
    model = wrap(Then(lambda out: out.log_softmax(dim=1).clamp(min=-1.0)))
    assert model.spec.note == "logits: log-probabilities"


def test_logits_that_are_declared_to_be_probabilities_are_refused() -> None:
    with pytest.raises(ModelError, match="but its rows are below 0 or do not sum to 1"):
        wrap(plain(), outputs="probabilities")
    with pytest.raises(ModelError, match="outputs 'odds': expected logits or probabilities"):
        wrap(plain(), outputs="odds")


class Compiled(nn.Module):
    """As torch.compile wraps a net: the compiler itself takes seconds to load."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._orig_mod = net

    def forward(self, x: Tensor) -> Any:
        return self._orig_mod(x)


def with_a_compiled_layer() -> nn.Module:
    net = plain()
    net[1] = Compiled(net[1])
    return net


@pytest.mark.traced
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.compile(plain()), marks=pytest.mark.long),
        lambda: Compiled(plain()),
        lambda: nn.DataParallel(plain()),
        lambda: torch.optim.swa_utils.AveragedModel(plain()),
        lambda: Compiled(nn.DataParallel(plain())),
        with_a_compiled_layer,
    ],
    ids=["compiled", "as compiled", "parallel", "averaged", "compiled and parallel", "a layer compiled"],
)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own
def test_a_wrapped_net_is_the_plain_one(make: Callable[[], nn.Module]) -> None:
    model, other = TorchModel(make(), CLASSES, input_shape=SHAPE), TorchModel(plain(), CLASSES, input_shape=SHAPE)
    assert (model.spec.name, model.spec.layout) == (other.spec.name, other.spec.layout)
    assert model.spec.capabilities == other.spec.capabilities
    assert model.state_bytes() == other.state_bytes()
    np.testing.assert_array_equal(trained(model), trained(other))
    assert not model.untraced


@pytest.mark.traced
class TestLazyLayers:
    @staticmethod
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(CLASSES))

    def test_find_their_sizes_and_train(self) -> None:
        model = wrap(self.make())
        before = model.weights()
        assert np.abs(trained(model) - before).max() > 1e-3
        assert (model.spec.parameters, model.spec.feature_dim) == (36 * 8 + 8 + 16 + 8 * CLASSES + CLASSES, 8)

    def test_need_the_shape_of_a_sample(self) -> None:
        with pytest.raises(ModelError, match=r"lazy layers: pass input_shape=\(c, h, w\)"):
            wrap(self.make(), shaped=False)


WITH_SEVERAL = {
    "dict": (lambda out: {"loss": out.sum(), "logits": out, "other": out + 1}, "output 'logits' of a dict"),
    "only one of this width": (lambda out: {"a": out[:, :1], "b": out}, "output 'b' of a dict"),
    "tuple": (lambda out: (out, out + 1), "output 0 of a tuple"),
    "features first": (lambda out: (out[:, :2], out), "output 1 of a tuple"),
    "named": (lambda out: Pair(out + 1, out), "output 1 of a Pair"),
}


@pytest.mark.traced
@pytest.mark.parametrize(("last", "said"), WITH_SEVERAL.values(), ids=WITH_SEVERAL)
@pytest.mark.parametrize("shaped", [True, False])
def test_of_several_outputs_the_logits_are_taken(last: Callable[[Tensor], Any], said: str, *, shaped: bool) -> None:
    model, other = wrap(Then(last), shaped=shaped), wrap(plain())
    np.testing.assert_array_equal(model.logits(samples()[0]), other.logits(samples()[0]))
    assert model.spec.layout == other.spec.layout
    assert not shaped or model.spec.note == f"logits: {said}"
    for each in (model, wrap(deepcopy(model.net), shaped=shaped)):
        np.testing.assert_array_equal(trained(each), trained(wrap(plain())))


def test_outputs_of_which_none_is_plainly_the_logits_are_refused() -> None:
    for last, count in ((lambda out: {"a": out, "b": out}, 2), (lambda out: {"a": out[:, :2]}, 0), (lambda _: "no", 0)):
        with pytest.raises(ModelError, match=f"{count} outputs could be the logits of {CLASSES} classes: let forward"):
            wrap(Then(last))


def test_outputs_that_are_several_in_training_alone_are_told_in_one_line() -> None:
    class Auxiliary(Then):
        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            return (out, out) if self.training else out

    with pytest.raises(
        ModelError,
        match="'mine' gives a tuple in training, else a tensor: let it always give the logits alone",
    ):
        wrap(Auxiliary(lambda out: out)).fit(replace(batches(1), stochastic=True), (CrossEntropy(),), SLOW)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(BATCH, *SHAPE))])
def test_torchscript_is_refused(make: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(ModelError, match=r"TorchScript cannot be looked into: give the nn\.Module that it was made of"):
        wrap(make(plain()))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^model 'function': found function: give a torch\.nn\.Module$"):
        TorchModel(plain, CLASSES)


# -- in a simulation: a net from MODULE:FACTORY, in every engine ----------------------------------------------------

SOURCE = """
import torch
from torch import nn

def plain(classes, input_shape, seed):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, classes))

def parallel(classes, input_shape, seed):
    return nn.DataParallel(plain(classes, input_shape, seed))

class Named(nn.Sequential):
    def forward(self, x):
        return {"logits": super().forward(x)}

def normed(classes, input_shape, seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

def named(classes, input_shape, seed):
    return Named(*plain(classes, input_shape, seed))
"""


@pytest.fixture
def given_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given_nets.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "given_nets", raising=False)


def test_batch_norm_that_wants_two_numbers_is_told_before_joining() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    places = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, CLASSES))
    assert [wrap(net).spec.least_batch for net in (flat, places, plain())] == [2, 1, 1]


@pytest.mark.usefixtures("given_nets")
def test_mini_batches_of_one_sample_are_refused_to_batch_norm(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg", devices=2)
    tables["fleet"] = [{"count": 2, "model": "given_nets:normed"}]
    tables["train"] |= {"batch_size": 1}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    for device in run.devices:
        assert "BatchNorm, which cannot train on mini-batches of 1; use GroupNorm" in str(device.participant.refusal)


def weights_of(pictures: Path, family: str, engine: Any) -> list[np.ndarray]:
    tables = fleets.tables(pictures, "fedavg", devices=3, rounds=2)
    tables["fleet"] = [{"count": 3, "model": f"given_nets:{family}"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")), engine=engine).finished()
    return [device.participant.context.bench.model.weights() for device in run.devices]


@pytest.mark.traced
@pytest.mark.parametrize("family", ["parallel", "named"])
@pytest.mark.usefixtures("given_nets")
def test_nets_of_a_factory_train_as_the_plain_ones_alone_and_in_stacks(pictures: Path, family: str) -> None:
    expected = weights_of(pictures, "plain", ExactEngine())
    np.testing.assert_array_equal(weights_of(pictures, family, ExactEngine()), expected)
    for stacking in (DenseStacking, VmapStacking):
        stacked = weights_of(pictures, family, CohortEngine(stacking=stacking()))
        np.testing.assert_allclose(stacked, expected, atol=1e-5)


class ByMode(nn.Module):
    """A net that gives one thing in training and another one in inference."""

    def __init__(self, training: Callable[[Tensor], Any], inference: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.ends = plain(), {True: training, False: inference}

    def forward(self, x: Tensor) -> Any:
        return self.ends[self.training](self.net(x))


def as_it_is(z: Tensor) -> Tensor:
    return z


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
@pytest.mark.parametrize("last", [lambda z: z.softmax(1), lambda z: z.sigmoid() * 1.0], ids=["softmax", "sigmoid"])
def test_probabilities_in_one_mode_alone_are_refused(last: Any, outputs: Any) -> None:
    for ends, words in (((last, as_it_is), "probabilities in training and logits"), ((as_it_is, last), "logits in")):
        with pytest.raises(ModelError, match=f"it gives {words}.*let forward.. return the logits in both"):
            TorchModel(ByMode(*ends), CLASSES, input_shape=SHAPE, outputs=outputs)


def test_log_probabilities_in_one_mode_alone_are_logits_in_both() -> None:
    TorchModel(ByMode(lambda z: z.log_softmax(1), as_it_is), CLASSES, input_shape=SHAPE)
