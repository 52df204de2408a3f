"""Methods that average weights: the exact sum, who may join, and whole runs against naive twins."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import fleets
import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_specs import spec_of

import edge_sim
from coordinator.record import remarks
from coordinator.report.summary import summary
from coordinator.serving.devices import admission
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedavg import FedAvg
from edge_sdk.methods.feddf_al import FedDFAL
from edge_sdk.methods.fedgkd import FedGKD
from edge_sdk.methods.fedper import FedPer
from edge_sdk.methods.fedprox import FedProx
from edge_sdk.methods.qffl import QFFL, stepped
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import Optim, Proximal
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.quantised import Quantised
from edge_sdk.protocol.knowledge import Scalars, Weights
from edge_sdk.protocol.messages import Assign, Hello, TrainSpec, Upload, Welcome
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.weighted_sum import MOST_COUNT, WeightedSum
from edge_sdk.transport.base import Incoming
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

LAYOUT = bytes(range(16))
WEIGHTS = fleets.CLASSES * (fleets.WIDTH + 1)
RATE = 0.1


def weights_of(*values: float, count: int = 1) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=LAYOUT, count=count)


def summed(*ups: Weights) -> WeightedSum:
    total = WeightedSum()
    for number, up in enumerate(ups):
        total = total.add(number, up)
    return total


# -- the sum --------------------------------------------------------------------------------------------------------


def test_the_worked_number() -> None:
    """methods.md F.5: (1, 3) of 12 samples and (5, -1) of 8; uniform where every count is 1."""
    mean = summed(weights_of(1, 3, count=12), weights_of(5, -1, count=8)).mean()
    np.testing.assert_allclose(mean.values, [2.6, 1.4], rtol=1e-7)
    assert mean.layout == LAYOUT
    assert mean.values.dtype == np.float32
    assert summed(weights_of(1, 3), weights_of(5, -1)).mean().values.tolist() == [3, 1]


@hypothesis.settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_mean_is_the_literal_one_and_no_order_or_split_changes_a_bit(seed: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 1], (devices, 40)) * 10 ** rng.uniform(-12, 6, (devices, 40))
    counts = rng.integers(1, 10**6, devices)
    ups = [
        Weights(values=v.astype(np.float32), layout=LAYOUT, count=int(n)) for v, n in zip(values, counts, strict=True)
    ]
    mean = summed(*ups).mean().values
    exact = sum(n * up.values.astype(np.longdouble) for n, up in zip(counts, ups, strict=True)) / counts.sum()
    np.testing.assert_allclose(mean, exact.astype(np.float64), rtol=1e-7, atol=1e-11)
    order, cut = rng.permutation(devices), int(rng.integers(0, devices + 1))
    parts = [WeightedSum(), WeightedSum()]
    for place, i in enumerate(order):
        parts[place < cut] = parts[place < cut].add(int(i), ups[i])
    np.testing.assert_array_equal(parts[0].merge(parts[1]).mean().values, mean)
    np.testing.assert_array_equal(parts[1].merge(parts[0]).mean().values, mean)


@hypothesis.settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(-3, 6))
def test_the_sum_is_that_of_products_rounded_to_the_grid(seed: int, devices: int, most: int) -> None:
    """Against whole numbers of any length; halves of a unit, which are rounded to even, among them."""
    rng = np.random.default_rng(seed)
    values = (rng.choice([-1, 1], (devices, 3)) * 10 ** rng.uniform(-12, most, (devices, 3))).astype(np.float32)
    values[:, 0] = rng.integers(-(2**20), 2**20, devices) * 2.0**-37
    ups = [weights_of(*row, count=int(rng.integers(1, 2000))) for row in values]
    units = [sum(round(Fraction(up.count * float(up.values[i])) * 2**36) for up in ups) for i in range(3)]
    coarse, fine = summed(*ups).parts()
    assert coarse.tolist() == [each >> 36 for each in units]
    assert (fine * 2.0**36).tolist() == [each % 2**36 for each in units]


def test_what_would_not_add_up_exactly_is_refused() -> None:
    half = WeightedSum().add(0, weights_of(1.0, count=2**31 - 1))
    with pytest.raises(RunFailed, match="add up exactly"):
        reduce(WeightedSum.merge, [half] * (MOST_COUNT // 2**31 + 2))
    with pytest.raises(ValueError, match="no weights"):
        WeightedSum().mean()


# -- the first round ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "expected"), [("first", [5, -1]), ("equal", [3, 1])])
def test_round_0_takes_the_first_device_or_the_mean_and_later_rounds_the_mean(
    start: str, expected: list[float]
) -> None:
    spec = spec_of("fedavg", start=start)
    ups = {4: weights_of(1, 3), 2: weights_of(5, -1)}
    total = FedAvg().zero()
    for number, up in ups.items():
        contribution = Contribution(number=number, samples=9, knowledge={"weights": up})
        total = FedAvg().add(total, contribution)
    state = method_of(spec).finish(spec, method_of(spec).begin(spec), ExchangeId(0, 0), total)
    assert state.weights.values.tolist() == expected
    later = method_of(spec).finish(spec, state, ExchangeId(1, 0), total)
    assert later.weights.values.tolist() == [3, 1]


# -- the worked numbers of the others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "expected"), [(1, [0.977778, 0.822222]), (0.5, [0.952381, 0.809524]), (0, [0.9, 0.8])], ids=str
)
def test_the_step_of_qffl(q: float, expected: list[float]) -> None:
    """methods.md F.10: w = (1, 1), eta = .1, w' = (.8, 1) with F = .5 and (1, .6) with F = 2."""
    rows = [np.array([0.8, 1], np.float32), np.array([1, 0.6], np.float32)]
    np.testing.assert_allclose(stepped(np.ones(2, np.float32), rows, [0.5, 2], q, 0.1), expected, atol=1e-6)


def test_qffl_of_no_loss_is_finite_and_of_no_rate_an_error() -> None:
    rows = [np.array([0.8, 1], np.float32)] * 2
    assert np.isfinite(stepped(np.ones(2, np.float32), rows, [0.0, 0.0], 0.1, 0.1)).all()
    with pytest.raises(RunFailed, match=r"train\.learning_rate"):
        stepped(np.ones(2, np.float32), rows, [0.0, 0.0], 1, 0.0)


def test_the_loss_of_qffl_is_exact_where_weights_travel_in_int8(pictures: Path) -> None:
    tables = fleets.tables(pictures, "qffl", devices=3, rounds=2)
    tables["encoding"] = {"weights": "int8-tensor"}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    sent = run.tap()
    run.finished()
    losses = [each.knowledge["loss"] for each in sent if isinstance(each, Upload) and not each.closing]
    assert len(losses) == 6
    assert all(isinstance(each, Scalars) and each.values.dtype == np.float32 for each in losses)
    quantised = [each.knowledge["weights"].values for each in sent if isinstance(each, Upload) and not each.closing]
    assert all(isinstance(each, Quantised) and len(each.codes) == WEIGHTS for each in quantised)  # no loss among them


def test_qffl_wants_plain_sgd() -> None:
    assert QFFL().warnings(spec_of("qffl")) == ()
    adam = replace(spec_of("qffl"), train=TrainSpec(optimiser="adam"))
    (warning,) = QFFL().warnings(adam)
    assert warning.startswith("W15")


def test_the_teacher_of_fedgkd_is_the_mean_of_the_last_means() -> None:
    """methods.md F.9: (1, 1) and (3, -1) give (2, 0); an older one is forgotten, and one mean is its own teacher."""
    spec, state = spec_of("fedgkd", buffer=2), FedGKD().begin(spec_of("fedgkd"))
    for round_, up in enumerate((weights_of(9, 9), weights_of(1, 1), weights_of(3, -1))):
        total = FedGKD().add(FedGKD().zero(), Contribution(number=0, samples=9, knowledge={"weights": up}))
        state = method_of(spec).finish(spec, state, ExchangeId(round_, 0), total)
        down = method_of(spec).common(state, ExchangeId(round_ + 1, 0))
        assert ("teacher" in down) == (round_ > 0)
    assert down["teacher"].values.tolist() == [2, 0]
    assert down["weights"].values.tolist() == [3, -1]
    assert "teacher" not in method_of(spec).common(state, ExchangeId(spec.rounds, 0))


def test_the_pull_of_ditto() -> None:
    """lambda = 2, eta = .1, v = 1, w^t = 0, no gradient of the loss: v moves to .8."""
    model = NumpyModel(2, (1, 1, 1), seed=0)
    model.set_weights(np.ones(4, np.float32))
    work = Batches(inputs=np.zeros((1, 1, 1, 1), np.float32), labels=np.array([0]), indices=np.array([[0]]))
    near = Proximal(anchor=np.zeros(4, np.float32), weight=2.0)
    model.fit(work, (near,), Optim(kind="sgd", learning_rate=0.1))
    np.testing.assert_allclose(model.weights(), 0.8, rtol=1e-6)


def test_fedmd_lf_is_fedal_without_its_discriminator(pictures: Path) -> None:
    models = []
    for method, params in (("fedmd_lf", {}), ("fedal", {"adversarial": 0.0})):
        tables = fleets.tables(pictures, method, devices=3)
        tables["method"] = {"public_batch": 8, "tau": 3, **params}
        models.append(fleets.Run(settings.parse(tables, Path("test.toml"))).finished().model_bytes)
    assert models[0] == models[1]


# -- who may join ---------------------------------------------------------------------------------------------------


def test_a_model_of_another_layout_is_refused_when_it_joins(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg", devices=4, quorum=3)
    tables["fleet"] = [{"count": 3, "model": "softmax"}, {"count": 1, "model": "softmax", "size": [2, 2]}]
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert run.result.completed
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-03", "layout")
    assert re.search("20 weights .* 68 ", refused["message"])
    assert "device-00, which came first" in refused["message"]
    assert "model of device-00" in refused["remedy"]
    assert run.begun["device-03"] == 0  # before any training


def test_weights_stay_on_a_device_whose_owner_did_not_let_them_go(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg", devices=4, quorum=3)
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    run.devices[2].agent.shares_weights = False
    sent = run.tap()
    run.finished()
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-02", "capability")
    assert "needs weights" in refused["message"]
    assert "App(share_weights=True)" in refused["remedy"]
    hello = next(m for m in sent if isinstance(m, Hello) and m.device == "device-02")
    assert "weights" not in hello.capabilities
    assert (hello.weight_count, hello.layout) == (0, None)


def test_a_device_refuses_a_welcome_that_asks_for_weights_it_did_not_offer(pictures: Path) -> None:
    agent = fleets.Run(fleets.built(pictures, "local")).devices[0].agent
    agent.shares_weights = False
    welcome = Welcome(
        federation="tiny", device="device-00", number=0, epoch=1, run=bytes(8), spec=spec_of("fedavg", classes=4)
    )
    agent.handle(Incoming("", codec.encode(welcome)), 0.0)
    assert agent.refused_frames == {"knowledge": 1}
    assert agent.store.welcome() is None


def test_batch_norm_is_warned_of_with_its_remedy_where_weights_are_shared() -> None:
    hellos = {
        device: Hello(federation="tiny", device=device, classes=3, batch_norm=norm)
        for device, norm in (("a", True), ("b", False), ("c", True))
    }
    (warning,) = remarks.batch_norm(FedAvg(), hellos)
    assert warning.startswith("W13: the models of a, c ")
    assert "use GroupNorm" in warning
    assert remarks.batch_norm(FedAvg(), {"b": hellos["b"]}) == ()


@pytest.mark.torch
def test_a_net_says_whether_it_has_batch_norm() -> None:
    torch = pytest.importorskip("torch")
    from edge_sdk.models.torch_nets.torch_model import TorchModel  # needs torch

    for norm, found in ((torch.nn.BatchNorm2d(2), True), (torch.nn.GroupNorm(1, 2), False)):
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), norm, torch.nn.Flatten(), torch.nn.Linear(32, 3))
        model = TorchModel(net, 3, input_shape=(1, 6, 6))
        assert model.spec.batch_norm is found


def test_the_papers_range_stands_in_the_line() -> None:
    with pytest.raises(UsageError, match=r"^method\.mu: .*1000 \(.*paper .*0\.001 to"):
        FedProx.read({"mu": -1.0})


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, method: str, **params: Any) -> fleets.Run:
    tables = fleets.tables(pictures, method, devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"start": "equal", **params}
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def batches(run: fleets.Run, device: Device, round_: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The mini-batches of a round, with a last column of ones."""
    x, y = everything(device)
    return [(x[each], y[each]) for each in fleets.private_batches(run, device, round_)]


def slope(rows: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the cross-entropy of softmax regression: rows (k, d + 1), x (b, d + 1)."""
    return (softmax(x @ rows.T) - np.eye(len(rows))[y]).T @ x / len(x)


@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("fedprox", 2.0)])
def test_a_run_is_its_naive_twin(pictures: Path, method: str, mu: float) -> None:
    run = made(pictures, method, **({"mu": mu} if mu else {}))
    devices = run.fleet.devices
    shared = devices[0].kit.model(None).head_rows().astype(np.float64)
    begun = shared.copy()
    counts = [len(device.data.train) for device in devices]
    for round_ in range(3):
        trained = []
        for device in devices:
            rows = shared.copy()
            for x, y in batches(run, device, round_):
                rows -= RATE * (slope(rows, x, y) + mu * (rows - shared))
            trained.append(rows)
        shared = np.average(trained, axis=0, weights=counts)
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared.ravel(), atol=1e-5)
    for virtual in run.devices:  # the closing Assign brought the last mean
        np.testing.assert_allclose(virtual.agent.bench.model.weights(), shared.ravel(), atol=1e-5)
    assert np.abs(shared - begun).max() > 0.05  # the tolerance means something


def test_qffl_is_its_naive_twin(pictures: Path) -> None:
    run = made(pictures, "qffl", q=0.5)
    devices = run.fleet.devices
    shared = devices[0].kit.model(None).head_rows().astype(np.float64)
    for round_ in range(3):
        before, total, scale, trained = shared.copy(), np.zeros_like(shared), 0.0, []
        for device in devices:
            x, y = everything(device)
            loss = -np.log(softmax(x @ before.T)[np.arange(len(y)), y]).mean()
            rows = before.copy()
            for batch in batches(run, device, round_):
                rows -= RATE * slope(rows, *batch)
            gone = (before - rows) / RATE
            total += loss**0.5 * gone
            scale += 0.5 * loss**-0.5 * (gone**2).sum() + loss**0.5 / RATE
            trained.append(rows)
        shared = np.mean(trained, axis=0) if round_ == 0 else before - total / scale
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared.ravel(), atol=1e-5)


def test_fedgkd_is_its_naive_twin(pictures: Path) -> None:
    run = made(pictures, "fedgkd", gamma=4.0, buffer=2, temperature=2.0)
    devices = run.fleet.devices
    shared = devices[0].kit.model(None).head_rows().astype(np.float64)
    counts, past = [len(device.data.train) for device in devices], []
    for round_ in range(3):
        trained = []
        for device in devices:
            rows = shared.copy()
            for x, y in batches(run, device, round_):
                step = slope(rows, x, y)
                if past:
                    teacher = softmax(x @ np.mean(past, axis=0).T / 2)
                    step += 4 / 2 * 2**2 * (softmax(x @ rows.T / 2) - teacher).T @ x / len(x) / 2
                rows -= RATE * step
            trained.append(rows)
        shared = np.average(trained, axis=0, weights=counts)
        past = [*past, shared][-2:]
    run.finished()
    np.testing.assert_allclose(run.server.method_state.models[-1].values, shared.ravel(), atol=1e-5)


def test_ditto_is_its_naive_twin(pictures: Path) -> None:
    run = made(pictures, "ditto", attraction=2.0)
    devices = run.fleet.devices
    shared = devices[0].kit.model(None).head_rows().astype(np.float64)
    own = [shared.copy() for _ in devices]
    counts = [len(device.data.train) for device in devices]
    for round_ in range(3):
        trained = []
        for device, mine in zip(devices, own, strict=True):
            rows = shared.copy()
            for x, y in batches(run, device, round_):
                rows -= RATE * slope(rows, x, y)
                mine[...] -= RATE * (slope(mine, x, y) + 2 * (mine - shared))
            trained.append(rows)
        shared = np.average(trained, axis=0, weights=counts)
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared.ravel(), atol=1e-5)
    for virtual, mine in zip(run.devices, own, strict=True):
        np.testing.assert_allclose(virtual.agent.bench.model.weights(), mine.ravel(), atol=1e-5)


def softmax(logits: np.ndarray) -> np.ndarray:
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def everything(device: Device) -> tuple[np.ndarray, np.ndarray]:
    """All private samples, with a last column of ones."""
    x = device.kit.model(None).spec.preprocess(device.data.train.x).astype(np.float64)
    return np.concatenate([x.reshape(len(x), -1), np.ones((len(x), 1))], axis=1), device.data.train.y


def test_averaging_beats_training_alone(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg", devices=4, rounds=10)
    tables["partition"] = {"kind": "iid"}
    tables["run"]["standalone"] = True
    accuracy = summary(edge_sim.run(tables))["accuracy"]
    assert accuracy["mean"] > accuracy["standalone_mean"]


# -- architectures averaged by themselves ---------------------------------------------------------------------------


@pytest.mark.torch
def test_feddf_al_averages_each_layout_by_itself() -> None:
    pytest.importorskip("torch")
    spec, other = spec_of("feddf_al", start="equal", max_devices=4), bytes(16)
    ups = {
        1: weights_of(1, 3, count=12),
        2: Weights(values=np.array([7], np.float32), layout=other),
        3: weights_of(5, -1, count=8),
    }
    total = FedDFAL().zero()
    for number, up in ups.items():
        total = FedDFAL().add(total, Contribution(number=number, samples=20, knowledge={"weights": up}))
    state = method_of(spec).finish(spec, method_of(spec).begin(spec), ExchangeId(0, 0), total)
    for number, expected in {1: [2.6, 1.4], 2: [7], 3: [2.6, 1.4]}.items():
        (mean,) = FedDFAL().personal(state, ExchangeId(0, 1), number).values()
        np.testing.assert_allclose(mean.values, expected, rtol=1e-7)
    assert FedDFAL().personal(state, ExchangeId(0, 1), 0) == {}


@pytest.mark.torch
def test_feddf_al_takes_several_architectures_and_its_groups_start_each_transfer_alike(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "feddf_al", devices=4)
    tables["method"] = {"public_batch": 8, "tau": 2, "max_devices": 4}
    tables["fleet"] = [{"count": 2, "model": "softmax"}, {"count": 2, "model": "softmax", "size": [2, 2]}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert not run.result.refused_devices
    means = {(m.device, m.round): m.down["weights"] for m in sent if isinstance(m, Assign) and "weights" in m.down}
    for round_ in range(3):
        assert means["device-00", round_] == means["device-01", round_] != means["device-02", round_]
        assert means["device-02", round_] == means["device-03", round_]


# -- the body alone -------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_fedper_averages_bodies_and_keeps_heads(pictures: Path) -> None:
    """No steps: after the first mean all bodies are equal, and every head is the one that its device came with."""
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "fedper", devices=3, rounds=2)
    tables["train"]["local_steps"] = 0
    tables["fleet"] = [{"count": 3, "model": "mlp"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    heads = [device.agent.bench.model.head_rows() for device in run.devices]
    run.finished()
    models = [device.agent.bench.model for device in run.devices]
    for model, head in zip(models, heads, strict=True):
        np.testing.assert_array_equal(model.head_rows(), head)
        body = model.weights()[~model.head_mask()]
        np.testing.assert_array_equal(body, run.server.method_state.weights.values)
        assert model.head_mask().sum() == head.size


def test_the_bodies_of_the_worked_number() -> None:
    mean = summed(weights_of(1, 2, count=12), weights_of(5, -2, count=8)).mean()
    np.testing.assert_allclose(mean.values, [2.6, 0.4], rtol=1e-6)


def test_a_model_that_is_all_head_is_refused_by_fedper(pictures: Path) -> None:
    hello = fleets.Run(fleets.built(pictures, "local")).hello(0)
    turned = admission.refusal(hello, spec_of("fedper", classes=4), FedPer(), ())
    assert turned is not None
    assert (turned.reason, "last layer" in turned.message) == ("body", True)
    assert admission.refusal(hello, spec_of("fedavg", classes=4), FedAvg(), ()) is None
