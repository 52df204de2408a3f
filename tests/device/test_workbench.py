"""What a device measures and tells of itself, with models whose answers are known."""

from __future__ import annotations

import fleets
import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.workbench import INFERENCE_BATCH, Workbench
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, ReadHead, WriteHead
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.knowledge import ClassRows

CLASSES, WIDTH = 4, 3


def data(train_y: list[int], test_y: list[int] | None = None, seed: int = 0) -> LocalData:
    """Flat samples of three numbers; a test sample is its label in the first of them."""
    rng = np.random.default_rng(seed)
    train = Samples(rng.normal(size=(len(train_y), WIDTH)).astype(np.float32), np.array(train_y))
    if test_y is None:
        return LocalData(train=train)
    x = np.zeros((len(test_y), WIDTH), np.float32)
    x[:, 0] = test_y
    return LocalData(train=train, test=Samples(x, np.array(test_y)))


def model(favourite: int = 0) -> NumpyModel:
    """Says one class whatever it sees; its features are the samples."""
    made = NumpyModel(CLASSES, (1, 1, WIDTH), seed=0)
    rows = np.zeros((CLASSES, WIDTH + 1), np.float32)
    rows[favourite, -1] = 1
    made.set_head_rows(np.arange(CLASSES), rows)
    return made


def test_class_means_are_those_of_the_private_samples_and_an_absent_class_is_absent() -> None:
    held = data([2, 0, 2, 2, 0] * 200)
    means, pauses = fleets.answer_of(Workbench(model(), held), ClassMeans())
    assert (means.classes.tolist(), means.counts.tolist()) == ([0, 2], [400, 600])
    assert pauses == -(-1000 // INFERENCE_BATCH)
    for label, row in zip(means.classes, means.rows, strict=True):
        np.testing.assert_allclose(row, held.train.x[held.train.y == label].mean(axis=0), atol=1e-6)


def test_the_head_is_read_and_written_by_row() -> None:
    bench = Workbench(model(), data([1]))
    before, _ = fleets.answer_of(bench, ReadHead())
    fleets.answer_of(bench, WriteHead(np.array([3]), np.full((1, WIDTH + 1), 7, np.float32)))
    after, _ = fleets.answer_of(bench, ReadHead())
    assert after[3].tolist() == [7] * (WIDTH + 1)
    np.testing.assert_array_equal(after[:3], before[:3])


def test_local_accuracy_counts_the_classes_that_a_device_holds() -> None:
    """It says 1 to everything and holds 1 and 2: right on 3 of 8, on 3 of 5 of its own."""
    bench = Workbench(model(favourite=1), data([1, 2, 2], [0, 1, 1, 1, 2, 2, 3, 3]))
    assert fleets.answer_of(bench, Evaluate(1))[0] == {
        "accuracy": 3 / 8,
        "local_accuracy": 3 / 5,
        "constant_prediction": 1.0,
    }


def test_the_nearest_prototype_of_its_own_classes_decides() -> None:
    """Prototypes of 1 and 2 at 1.2 and 2.2, and one of 3, a class that is not its own, where the samples of 2 lie."""
    rows = np.array([[1.2, 0, 0], [2.2, 0, 0], [2.0, 0, 0]], np.float32)
    prototypes = ClassRows(classes=np.array([1, 2, 3], np.int32), rows=rows, counts=np.ones(3, np.int32))
    bench = Workbench(model(favourite=1), data([1, 2, 2], [0, 1, 1, 1, 2, 2, 3, 3]))
    assert fleets.answer_of(bench, Evaluate(1, prototypes))[0]["prototype_accuracy"] == 1.0
    only = ClassRows(classes=prototypes.classes[1:2], rows=rows[1:2], counts=np.ones(1, np.int32))
    assert fleets.answer_of(bench, Evaluate(1, only))[0]["prototype_accuracy"] == 2 / 5
    strange = ClassRows(classes=prototypes.classes[2:], rows=rows[2:], counts=np.ones(1, np.int32))
    assert fleets.answer_of(bench, Evaluate(1, strange))[0]["prototype_accuracy"] == 0.0


def test_what_cannot_be_measured_is_absent() -> None:
    assert fleets.answer_of(Workbench(model(), data([1])), Evaluate(1))[0] == {}
    assert fleets.answer_of(Workbench(model(), data([1], [])), Evaluate(1))[0] == {}
    assert fleets.answer_of(Workbench(model(), data([1], [0, 3])), Evaluate(1))[0] == {"accuracy": 0.5}


def test_every_pass_is_metered() -> None:
    bench = Workbench(model(), data([1, 1], [0, 1, 2]))
    per_sample = bench.model.spec.flops_per_sample
    means, _ = fleets.answer_of(bench, ClassMeans())
    assert bench.meter.infer_flops == 2 * per_sample
    fleets.answer_of(bench, Evaluate(1, means))
    assert bench.meter.infer_flops == (2 + 3 + 3) * per_sample
    spec = bench.model.spec
    # passes of 2, 3 and 3 samples: each writes and reads its activations, and reads the weights
    assert bench.meter.infer_bytes == 2 * 8 * spec.activation_bytes_per_sample + 3 * 4 * spec.parameters
    assert bench.meter.infer_calls == 3 * spec.calls_per_pass
    assert bench.meter.train == (0, 0, 0)


@pytest.mark.torch
def test_what_a_net_costs_is_counted_layer_by_layer() -> None:
    torch = pytest.importorskip("torch")
    from edge_sdk.models.torch_nets.torch_model import TorchModel  # only where torch is installed

    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2 * 2 * 2, CLASSES)
    )
    spec = TorchModel(net, CLASSES, input_shape=(1, 4, 4)).spec
    assert spec.flops_per_sample == 2 * (9 * 2 * 4) + 2 * 8 * CLASSES
    assert spec.activation_bytes_per_sample == 4 * (8 + 8 + 8 + CLASSES)
    assert spec.calls_per_pass == 4
    meter = Meter()
    meter.trained(spec, 5, "all")
    assert meter.train == (
        3 * 5 * spec.flops_per_sample,
        3 * (2 * 5 * spec.activation_bytes_per_sample + 4 * (2 * 9 + 2 + 9 * CLASSES)),
        3 * 4,
    )


@pytest.mark.traced
@pytest.mark.torch
def test_class_means_come_from_inference_mode_and_leave_the_model_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    from edge_sdk.models.torch_nets.torch_model import TorchModel  # only where torch is installed

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.9), torch.nn.Linear(WIDTH, CLASSES)
    )
    wrapped = TorchModel(net, CLASSES, input_shape=(1, 1, WIDTH))
    held, before = data([0, 1, 1]), wrapped.state_bytes()
    means, _ = fleets.answer_of(Workbench(wrapped, held), ClassMeans())
    assert wrapped.state_bytes() == before  # no running statistics, no dropout
    expected = held.train.x / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(means.rows, [expected[0], expected[1:].mean(axis=0)], atol=1e-5)
