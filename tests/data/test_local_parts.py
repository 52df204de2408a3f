"""What each device keeps for validation and for a test of its own, and that it measures itself on both."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk import data as preprocessing
from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import INFERENCE_BATCH, Workbench
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.requests import Evaluate
from edge_sdk.models.numpy_model import NumpyModel
from edge_sim.config import settings
from edge_sim.data import held_samples
from edge_sim.data.held_samples import PartSizes
from edge_sim.fleet import fleet

SIDE = 2


def samples(count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    return Samples(rng.normal(size=(count, SIDE, SIDE)).astype(np.float32), rng.integers(0, 3, count))


def measured(data: LocalData) -> tuple[dict[str, float], Workbench, int]:
    """The metrics of an evaluation, the bench that made it, and in how many slices."""
    bench = Workbench(NumpyModel(3, (1, SIDE, SIDE), seed=0), data)
    metrics: dict[str, float] = {}

    def work() -> Iterator[None]:
        metrics.update((yield from bench.serve(Evaluate(1), None)))

    slices = sum(1 for _ in work())
    return metrics, bench, slices


def accuracy(bench: Workbench, part: Samples) -> float:
    return float((bench.model.logits(bench.model.spec.preprocess(part.x)).argmax(axis=1) == part.y).mean())


def accuracies(bench: Workbench) -> dict[str, float]:
    """The accuracy on each part of its own that a device keeps, with its model as it is now."""
    parts = {"validation_accuracy": bench.data.validation, "local_accuracy": bench.data.local_test}
    return {name: accuracy(bench, part) for name, part in parts.items()}


def test_each_part_is_measured_by_name() -> None:
    data = LocalData(train=samples(5, 0), test=samples(40, 1), validation=samples(30, 2), local_test=samples(20, 3))
    metrics, bench, slices = measured(data)
    assert metrics == {
        "accuracy": accuracy(bench, data.test),
        "validation_accuracy": accuracy(bench, data.validation),
        "local_accuracy": accuracy(bench, data.local_test),
    }
    assert slices == 3
    assert bench.meter.infer_flops == 90 * bench.model.spec.flops_per_sample


def test_a_part_that_is_not_there_is_not_measured() -> None:
    assert "validation_accuracy" not in measured(LocalData(train=samples(5, 0), test=samples(40, 1)))[0]
    data = LocalData(train=samples(5, 0), validation=samples(INFERENCE_BATCH + 1, 2), local_test=samples(0, 0))
    metrics, _, slices = measured(data)
    assert set(metrics) == {"validation_accuracy"}
    assert slices == 2  # the agent looks for news between them


@pytest.mark.parametrize(("part", "named"), [("validation", "validation"), ("local_test", "local")])
def test_what_no_model_can_measure_is_refused_before_training(part: str, named: str) -> None:
    wild = Samples(np.full((2, SIDE, SIDE), np.inf, np.float32), np.zeros(2, np.int64))
    data = LocalData(train=samples(5, 0), **{part: wild})
    with pytest.raises(UsageError, match=rf"the {named}.* samples hold NaN"):
        Workbench(NumpyModel(3, (1, SIDE, SIDE), seed=0), data)


def test_a_fleet_divides_what_each_device_holds(pictures: Path, tmp_path: Path) -> None:
    plain = fleets.tables(pictures, "local", 4)
    whole = fleet.build_fleet(settings.parse(plain, Path("f.toml")))
    assert all(device.data.validation is device.data.local_test is None for device in whole.devices)
    plain["data"]["split"] = [8, 1, 1]
    found = fleet.build_fleet(settings.parse(plain, Path("f.toml")))
    for device, before in zip(found.devices, whole.devices, strict=True):
        parts = (device.data.train, device.data.validation, device.data.local_test)
        held = np.concatenate([part.x for part in parts])
        assert sorted(held.sum(axis=(1, 2))) == sorted(before.data.train.x.sum(axis=(1, 2)))
        n = len(before.data.train)
        assert [len(part) for part in parts[1:]] == [round(n / 10)] * 2
        assert device.data.test is found.dataset.test
        device.write(tmp_path / device.kit.id)
        again = fleet.read_device(tmp_path / device.kit.id).data
        for name in PartSizes._fields:
            np.testing.assert_array_equal(getattr(again, name).x, getattr(device.data, name).x)
            np.testing.assert_array_equal(getattr(again, name).y, getattr(device.data, name).y)


def test_the_division_is_drawn_from_the_seed_of_the_data(pictures: Path) -> None:
    def tested(seed: int) -> list[np.ndarray]:
        plain = fleets.tables(pictures, "local", 4)
        plain["data"] |= {"split": [3, 0, 1], "seed": seed}
        found = [device.data for device in fleet.build_fleet(settings.parse(plain, Path("f.toml"))).devices]
        assert all(data.validation is None for data in found)
        return [data.local_test.x for data in found]

    assert all(np.array_equal(a, b) for a, b in zip(tested(1), tested(1), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(tested(1), tested(2), strict=True))


def test_the_device_reports_both_to_its_owner_and_the_coordinator(pictures: Path) -> None:
    plain = fleets.tables(pictures, "local", 4)
    plain["data"]["split"] = [2, 1, 1]
    made = fleets.Run(settings.parse(plain, Path("f.toml")))
    seen: list[set[str]] = []
    made.devices[0].agent.on_round(lambda report: seen.append(set(report.metrics)))
    made.finished()
    assert {"accuracy", "local_accuracy", "validation_accuracy", "pm_v", "pm_l"} in seen
    result = made.result
    assert result.completed
    found = [accuracies(device.participant.context.bench) for device in made.devices]
    for name in ("validation_accuracy", "local_accuracy"):
        assert result.metrics[f"{name}_mean"] == pytest.approx(np.mean([each[name] for each in found]))


def test_new_data_take_the_place_of_the_old_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocessing, "_TOGETHER_VALUES", 2**14)
    old, new = (
        LocalData(train=Samples(np.full((4000, SIDE, 200), value, np.uint8), np.zeros(4000, np.int64)))
        for value in (1, 2)
    )
    tracemalloc.start()
    bench = Workbench(NumpyModel(3, (1, SIDE, 200), seed=0), old)
    tracemalloc.reset_peak()
    bench.use(new)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1.5 * bench.samples.nbytes
    assert bench.samples.max() == 2


def test_a_device_draws_its_parts_once_and_few_are_kept(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs them when it wakes, and again when it falls asleep; its class counts need no parts of their own."""
    monkeypatch.setattr(held_samples, "MOST_DRAWN", 2)
    plain = fleets.tables(pictures, devices=3)
    plain["data"]["split"] = [6, 2, 2]
    held = [each.held for each in fleet.build_fleet(settings.parse(plain, Path("test.toml"))).devices]
    counts = [each.class_counts(4) for each in held]
    drawn, draws = held_samples.cut, []

    def counted(*arguments: Any) -> Any:
        draws.append(arguments)
        return drawn(*arguments)

    monkeypatch.setattr(held_samples, "cut", counted)
    found = [each.data().class_counts(4) for each in (held[2], held[1], held[0], held[0], held[1])]
    assert found == [counts[2], counts[1], counts[0], counts[0], counts[1]]
    assert len(draws) == 3
    monkeypatch.delattr(held_samples, "draw_held")
    assert [each.class_counts(4) for each in (held[0], held[1])] == counts[:2]
    with pytest.raises(NameError):
        held[2].class_counts(4)  # its parts are kept no longer
