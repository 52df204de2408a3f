"""What models hold at the end: gathered from a run, kept in its directory, drawn where it is there."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from coordinator.results.figures.insight import Insight, principal_components
from coordinator.results.plots import insight_plots
from coordinator.results.plots.drawing import draw_pictures
from coordinator.results.plots.insight_plots import MethodInsight, cosines
from coordinator.results.report.run_files import INSIGHT, insight_bytes, read_run, write_run
from edge_sdk.errors import UsageError
from edge_sdk.objectives import softmax
from edge_sim.config import settings
from edge_sim.runs.runner import run
from edge_sim.runs.simulation_result import PER_CLASS, model_insight


def one_run(pictures: Path, method: str, **changes):
    tables = fleets.tables(pictures, method, devices=3, rounds=2)
    return run(settings.parse(tables | changes, Path("f.toml")))


def made(k: int = 4, devices: int = 2, n: int = 5) -> Insight:
    rng = np.random.default_rng(k)
    count = k * n
    return Insight(
        predictions=softmax(rng.normal(size=(k, k)).astype(np.float32)),
        prototype_classes=np.arange(k),
        prototypes=rng.normal(size=(k, 3)).astype(np.float32),
        points=rng.normal(size=(count * devices, 2)).astype(np.float32),
        point_classes=np.tile(np.repeat(np.arange(k), n), devices),
        point_devices=np.repeat(np.arange(devices), count),
        explained=np.array([0.5, 0.25], np.float32),
    )


def table(path: Path) -> list[dict[str, str]]:
    with path.with_suffix(".csv").open() as file:
        return list(csv.DictReader(file))


# -- arithmetic -----------------------------------------------------------------------------------------------------


def test_principal_components_of_a_line_and_of_a_plane() -> None:
    points, shares = principal_components(np.array([[1, 2, 0], [3, 6, 0], [5, 10, 0]], np.float32))
    assert points[:, 0] == pytest.approx([-2 * 5**0.5, 0, 2 * 5**0.5], abs=1e-5)  # along (1, 2) / sqrt 5
    assert np.abs(points[:, 1]).max() < 1e-5
    assert shares == pytest.approx([1, 0], abs=1e-6)
    cross = np.array([[3, 0], [-3, 0], [0, 1], [0, -1]], np.float32)
    assert principal_components(cross)[1] == pytest.approx([0.9, 0.1])
    assert principal_components(np.ones((3, 1), np.float32))[0].tolist() == [[0, 0]] * 3


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(3, 20), st.integers(2, 8))
def test_components_keep_distances_as_far_as_they_explain(seed: int, n: int, d: int) -> None:
    features = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    points, shares = principal_components(features)
    centred = features - features.mean(axis=0)
    assert (points.astype(np.float64) ** 2).sum() == pytest.approx(float(shares.sum()) * (centred**2).sum(), rel=1e-3)
    again, _ = principal_components(features[::-1].copy())
    assert again[::-1] == pytest.approx(points, abs=1e-3)


def test_cosines() -> None:
    found = cosines(np.array([[1, 0], [1, 1], [-2, 0], [0, 0]], np.float32))
    half = 2**-0.5
    assert found.ravel() == pytest.approx([1, half, -1, 0, half, 1, -half, 0, -1, -half, 1, 0, 0, 0, 0, 0], abs=1e-6)


# -- gathered, kept ---------------------------------------------------------------------------------------------------


def test_a_run_in_memory_has_all_that_its_models_can_show(pictures: Path) -> None:
    fleet = fleets.built(pictures, "fedproto", 3, rounds=2)
    whole = fleets.Run(fleet).finished()
    found, _ = model_insight(whole.server, whole.models(), fleet.dataset)
    labels, samples = fleet.dataset.public_labels, fleet.dataset.public.samples
    models = [device.participant.context.bench.model for device in whole.devices]
    for label in range(fleets.CLASSES):
        mine = [softmax(m.logits(m.spec.preprocess(samples[labels == label]))).mean(axis=0) for m in models]
        assert found.predictions[label] == pytest.approx(np.mean(mine, axis=0), abs=1e-5)
    common = whole.server.method.common(whole.server.method_state, type("At", (), {"round": 1, "exchange": 0}))
    assert (found.prototypes == common["prototypes"].rows).all()
    assert len(found.points) == 3 * min(PER_CLASS, 10) * fleets.CLASSES
    assert set(found.point_devices.tolist()) == {0, 1, 2}


def test_one_model_on_all_devices_shows_its_last_layer(pictures: Path) -> None:
    fleet = fleets.built(pictures, "fedavg", 3, rounds=2)
    whole = fleets.Run(fleet).finished()
    found, _ = model_insight(whole.server, whole.models(), fleet.dataset)
    rows = whole.devices[1].participant.context.bench.model.head_rows()
    assert found.prototypes == pytest.approx(rows[:, :-1])
    assert found.prototype_classes.tolist() == [*range(fleets.CLASSES)]


def test_models_whose_answers_are_not_finite_are_left_out(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleets.built(pictures, "fedproto", 3, rounds=2)
    whole = fleets.Run(fleet).finished()
    models = [*whole.models()]
    (_, endless), (_, wild), _ = models
    sound, remarks = model_insight(whole.server, models[2:], fleet.dataset)
    assert not remarks
    for model, value in ((endless, np.nan), (wild, np.inf)):
        model.set_weights(np.full(model.spec.parameters, value, np.float32))  # the features stay the pixels
    monkeypatch.setattr(endless, "features", lambda x: np.full((len(x), fleets.WIDTH), np.nan, np.float32))
    found, (remark,) = model_insight(whole.server, models, fleet.dataset)
    assert (found.predictions == sound.predictions).all()
    assert set(found.point_devices.tolist()) == {1, 2}
    assert np.isfinite(found.points).all()
    assert remark == "no picture of models shows device-00 and 1 more: its outputs are not finite"
    none, _ = model_insight(whole.server, models[:1], fleet.dataset)
    assert none.predictions is None
    assert none.points is None


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("fedproto", {"predictions", "prototypes", "points"}),
        ("fedavg", {"predictions", "prototypes", "points"}),
        ("fedmd", {"predictions", "points"}),
        ("fedssa", {"predictions", "prototypes", "points"}),
    ],
)
def test_it_is_kept_with_the_run(pictures: Path, tmp_path: Path, method: str, parts: set[str]) -> None:
    result = one_run(pictures, method)
    write_run(result, "", tmp_path)
    again = read_run(tmp_path).insight
    assert again is not None
    for name in ("predictions", "prototypes", "points"):
        kept, before = getattr(again, name), getattr(result.insight, name)
        assert (kept is not None) is (name in parts)
        assert kept is None or (kept == before).all()
    assert insight_bytes(again) == (tmp_path / INSIGHT).read_bytes()
    (tmp_path / INSIGHT).write_bytes(b"no zip")
    with pytest.raises(UsageError, match=r"insight\.npz: cannot be read"):
        read_run(tmp_path)


def test_models_of_several_widths_cannot_be_drawn_together(pictures: Path) -> None:
    rows = [{"count": 1, "model": "softmax", "size": [side, side]} for side in (8, 12, 16)]
    found = one_run(pictures, "fedmd", fleet=rows).insight
    assert found is not None
    assert found.points is None
    assert found.predictions is not None


# -- drawn ------------------------------------------------------------------------------------------------------------


@pytest.mark.draws
def test_what_there_is_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    full, half = made(), Insight(predictions=made().predictions)
    insights = [MethodInsight("fedal", "digits", full), MethodInsight("fedmd", "digits", half)]
    drawn = draw_pictures(insight_plots.insight_drawings(insights, "lab"), tmp_path)
    assert [path.stem for path in drawn] == ["public_predictions", "prototype_cosines", "features"]
    rows = table(tmp_path / "public_predictions.csv")
    assert {row["method"] for row in rows} == {"fedal", "fedmd"}
    assert float(rows[1]["probability"]) == pytest.approx(float(full.predictions[0, 1]))
    assert {row["method"] for row in table(tmp_path / "features.csv")} == {"fedal"}
    assert insight_plots.insight_drawings([MethodInsight("fedal", "digits", Insight())], "lab") == {}


@pytest.mark.parametrize(("k", "methods", "devices"), [(2, 1, 1), (13, 5, 8)])
def test_any_number_of_classes_and_methods_stays_in_bounds(
    tmp_path: Path, figures: list[Any], k: int, methods: int, devices: int
) -> None:
    seen = [MethodInsight(f"method-{place}", "digits", made(k, devices, 2)) for place in range(methods)]
    paths = draw_pictures(insight_plots.insight_drawings(seen, "lab"), tmp_path)
    for path, figure in zip(paths, figures, strict=True):
        assert max(figure.get_size_inches()) <= 24
        assert table(path)


def test_groups_of_a_known_data_set_stand_together() -> None:
    order, names = insight_plots.in_groups("cifar10", np.array([0, 2, 8, 9]))
    assert names == ["airplane", "ship", "truck", "bird"]
    assert order == [0, 2, 3, 1]
    assert insight_plots.in_groups("digits", np.array([3, 5])) == ([0, 1], ["3", "5"])


def test_cosines_of_cifar_are_written_in_the_order_of_class_ids(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    of = made(10)
    insight_plots.prototype_cosines([MethodInsight("fednh", "cifar10", of)], "lab", tmp_path / "p.png")
    rows = table(tmp_path / "p.png")
    assert [row["class_"] for row in rows[:11:10]] == ["0", "1"]
    assert float(rows[1]["cosine"]) == pytest.approx(float(cosines(of.prototypes)[0, 1]), abs=1e-6)
