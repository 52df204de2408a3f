"""[data] normalise: what is subtracted and divided by, on which samples, and when a run warns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.sample_kind import SampleKind
from edge_sim import run
from edge_sim.config import settings
from edge_sim.data.datasets import far_from_unit_scale, scaling_of, statistics
from edge_sim.fleet import fleet

SCALE = 1 / 255


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 4 x 4 in three channels, each at a level of its own."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "colours.npz"
    levels = np.array([40, 120, 200])
    x = np.clip(rng.normal(levels, [5, 10, 20], (240, 4, 4, 3)), 0, 255).astype(np.uint8)
    y = np.arange(240) % 4
    np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    return path


def built(path: Path, **data: Any) -> fleet.Fleet:
    plain = fleets.tables(path, "fedmd", devices=4)
    plain["data"] = {**plain["data"], "scale": SCALE, **data}
    return fleet.build_fleet(settings.parse(plain, Path("f.toml")))


def test_fit_takes_the_pooled_training_data_and_serves_all_parts(colours: Path) -> None:
    found = built(colours, normalise="fit", split=[8, 1, 1])
    private = found.dataset.private.x.astype(np.float64) * SCALE
    assert found.dataset.scaling.mean == pytest.approx(private.mean(axis=(0, 1, 2)))
    assert found.dataset.scaling.std == pytest.approx(private.std(axis=(0, 1, 2)))
    for device in found.devices:
        bench = device.kit.preprocess
        assert (bench.mean, bench.std) == (found.dataset.scaling.mean, found.dataset.scaling.std)
    inputs = found.devices[0].kit.preprocess(found.dataset.private.x)
    np.testing.assert_allclose(inputs.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(inputs.std(axis=(0, 2, 3)), 1, atol=1e-5)


def test_given_numbers_are_used_and_survive_the_resolved_settings(colours: Path) -> None:
    found = built(colours, normalise={"mean": [0.5, 0.25, 0.125], "std": [2]})
    raw = found.dataset.test.x[:1]
    expected = (raw.transpose(0, 3, 1, 2) * SCALE - np.reshape([0.5, 0.25, 0.125], (3, 1, 1))) / 2
    np.testing.assert_allclose(found.devices[0].kit.preprocess(raw), expected, atol=1e-6)
    plain = fleets.tables(colours, "fedmd", devices=4)
    plain["data"] |= {"normalise": {"mean": [0.5], "std": [2.0]}, "augment": {"flip": True}}
    config = settings.parse(plain, Path("f.toml"))
    assert settings.parse(config.tables, Path("f.toml")) == config
    assert settings.parse({**plain, "data": {}}, Path("f.toml")).data.normalise == "none"


def test_the_summary_says_it_and_the_warning_goes(colours: Path) -> None:
    plain = fleets.tables(colours, "fedmd", devices=4)
    raw = run(plain)
    assert [line for line in raw.warnings if line.startswith("data.normalise: ")]
    assert "normalise" not in raw.data
    plain["data"] |= {"normalise": "fit", "augment": {"crop_pixels": 1}}
    fitted = run(plain)
    assert not [line for line in fitted.warnings if line.startswith("data.normalise: ")]
    assert len(fitted.data["normalise"]["mean"]) == len(fitted.data["normalise"]["std"]) == 3
    assert fitted.data["augment"] == {"crop_pixels": 1, "flip": False}


def test_devices_of_another_process_do_the_same(colours: Path, tmp_path: Path) -> None:
    found = built(colours, normalise="fit", augment={"crop_pixels": 1, "flip": True})
    found.devices[1].write(tmp_path)
    again = fleet.read_device(tmp_path)
    assert again.kit == found.devices[1].kit
    assert again.data.augment == found.devices[1].data.augment is not None


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"normalise": "standard"}, "data.normalise: expected"),
        ({"normalise": 3}, "data.normalise: expected"),
        ({"normalise": {"mean": [0.5]}}, "data.normalise.std: missing"),
        ({"normalise": {"mean": [0.5], "std": [0.0]}}, r"data.normalise.std\[0\]: expected"),
        ({"normalise": {"mean": [0.5, 0.5], "std": [1.0]}}, "data.normalise.mean: expected 1 or 3 numbers"),
        ({"augment": {"crop_pixels": 4}}, "data.augment: crop_pixels: .* 4 of the pictures"),
        ({"augment": {"crop_pixels": -1}}, "data.augment.crop_pixels: expected"),
        ({"augment": True}, "data.augment: expected"),
    ],
)
def test_what_does_not_fit_is_one_line(colours: Path, data: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=f"^f.toml: {key}"):
        built(colours, **data)


def test_flat_samples_are_not_cropped(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((80, 6), np.float32), np.arange(80) % 4
    np.savez(tmp_path / "flat.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UsageError, match=r"^f.toml: data.augment: flat samples of shape \(6,\)"):
        built(tmp_path / "flat.npz", public=8, augment={"flip": True})


@pytest.mark.parametrize(
    ("mean", "std", "warns"), [(0.3, 0.37, False), (0.44, 0.2, True), (0, 0.01, True), (0, 50, True), (0, 1, False)]
)
def test_when_it_warns(mean: float, std: float, warns: bool) -> None:
    raw = np.random.default_rng(0).normal(mean, std, (500, 4, 4)).astype(np.float32)
    assert bool(far_from_unit_scale(raw, 1.0)) == warns


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    raw = np.full((10, 2, 2, 1), 128, np.uint8)
    assert statistics(raw, 1 / 128).std == (1.0,)
    assert statistics(raw, 1 / 128).mean == pytest.approx((1.0,))


def test_an_app_gives_numbers_for_each_channel() -> None:
    colour = np.array([[[[2, 4, 8]]]], np.float32)
    assert Preprocess(mean=(1, 2, 3), std=(1, 2, 5))(colour).ravel().tolist() == [1, 1, 1]
    assert Preprocess(mean=(1, 2, 3), std=2.0).black(3).tolist() == [-0.5, -1, -1.5]
    with pytest.raises(UsageError, match="2 numbers for samples with 3 channels"):
        Preprocess(mean=(1, 2))(colour)
    with pytest.raises(UsageError, match="std"):
        Preprocess(std=(1.0, 0.0))


def test_columns_of_a_declared_vector_have_a_mean_and_a_deviation_each() -> None:
    x = np.array([[1, 1000], [3, 3000]], np.float32)
    found = statistics(x, 1.0, SampleKind("vector"))
    assert (found.mean, found.std) == ((2, 2000), (1, 1000))
    assert statistics(x, 1.0).mean == (1001,)  # undeclared, it may be a flat picture
    scaled = Preprocess(kind="vector", mean=found.mean, std=found.std)(x)
    assert scaled.tolist() == [[[[-1, -1]]], [[[1, 1]]]]
    with pytest.raises(UsageError, match="3 numbers for samples with 2 channels"):
        Preprocess(kind="vector", mean=(1, 2, 3))(x)
    tables = {"federation": {"name": "a", "rounds": 1, "devices": 2}}
    nine = {"normalise": {"mean": [1] * 9, "std": [2] * 9}}  # as many sensors as a motion set has
    given = settings.parse({**tables, "data": nine}, Path("f.toml")).data.normalise
    assert scaling_of(given, np.zeros((2, 5, 9), np.float32), 1.0, SampleKind("series")).std == (2.0,) * 9
