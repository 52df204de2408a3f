"""FedHKD's noise: what it promises, who can predict it, what the coordinator makes of noised sums; and without weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import check_merge_laws, spec_of
from method_specs import job, rows_of

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.store import MemoryStore, SqliteStore
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import EmptyRound, UsageError
from edge_sdk.methods.contract.base import NoState, OnDevice
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import BoundedShare, HyperMeans
from edge_sdk.methods.fedhkd import FedHKD, Params, State, passes
from edge_sdk.methods.parts.fedhkd_noise import gaussian, on_simplex
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import BoundedDistance, PrototypeDistance, Seen, bounded, softmax
from edge_sdk.privacy.noise import delta, epsilon
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

NOISES = ("noise_features", "noise_soft", "noise_counts")
SECRET = bytes(range(32))


def noises(z: float) -> dict[str, float]:
    return dict.fromkeys(NOISES, z)


# -- what it promises -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "at", "expected"),
    [
        (1 / 7, 1e-2, 0.161),
        (32**0.5 / 7, 1e-2, 1.74),
        (64**0.5 / 7, 1e-2, 2.775),
        (500**0.5 / 7, 1e-2, 11.8),
        (64**0.5 / 7, 1e-5, 5.11),
        (64**0.5 / 7 * 50**0.5, 1e-5, 66.3),
    ],
)
def test_epsilon_of_the_papers_noise(mu: float, at: float, expected: float) -> None:
    """methods.md A.5, 3: sigma = 7; the paper claims 0.5 where d = 64 gives 2.8."""
    assert epsilon(at, mu) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("z", "rounds", "expected"), [(20, 1, 0.29), (20, 50, 2.50), (7, 1, 0.92), (7, 50, 8.49)])
def test_epsilon_of_the_recommended_noise(z: float, rounds: int, expected: float) -> None:
    """methods.md A.5, and what the warning says of it."""
    params = Params(**noises(z))
    assert params.mu == pytest.approx(3**0.5 / z)
    assert epsilon(1e-5, params.mu * rounds**0.5) == pytest.approx(expected, abs=0.005)
    spec = _spec(**noises(z), rounds=rounds)
    (warning,) = FedHKD(params).warnings(spec)
    assert warning.startswith("W2")
    whole = f"{epsilon(1e-5, params.mu * rounds**0.5):.3g}"
    assert f"{whole} for all {rounds};" in warning
    assert "no epsilon" in warning
    assert FedHKD().warnings(spec) == ()


@given(st.floats(1e-3, 200), st.floats(1e-9, 0.09))
def test_epsilon_is_the_inverse_of_delta(mu: float, at: float) -> None:
    found = epsilon(at, mu)
    assert delta(found, mu) <= at
    if found > 1e-6:
        assert delta(found * (1 - 1e-6), mu) >= at * (1 - 1e-3)


def test_delta_at_epsilon_0_is_the_total_variation() -> None:
    """Between N(0, 1) and N(1, 1) it is 2 Phi(1/2) - 1; far out the series continues the function."""
    assert delta(0, 1) == pytest.approx(0.382925, abs=1e-6)
    assert delta(24.9 * 10 - 50, 10) == pytest.approx(delta(25.1 * 10 - 50, 10), rel=1e3)
    assert 0 < delta(25.1 * 10 - 50, 10) < delta(24.9 * 10 - 50, 10)


# -- who can predict it ---------------------------------------------------------------------------------------------


def test_noise_is_standard_normal_and_its_draws_are_independent() -> None:
    drawn = gaussian(SECRET, np.zeros(200_000))
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert drawn.std() == pytest.approx(1, abs=0.01)
    assert np.mean(np.abs(drawn) < 1) == pytest.approx(0.682689, abs=0.005)
    assert np.mean(drawn[1:] * drawn[:-1]) == pytest.approx(0, abs=0.01)
    assert np.isfinite(drawn).all()


def test_noise_repeats_for_the_same_values_and_secret_only() -> None:
    values = np.arange(12.0).reshape(3, 4)
    drawn = gaussian(SECRET, values)
    np.testing.assert_array_equal(drawn, gaussian(SECRET, values))
    others = [
        gaussian(SECRET[::-1], values),
        gaussian(SECRET, np.nextafter(values, 9.0)),
        gaussian(SECRET, values.reshape(4, 3)).reshape(3, 4),
    ]
    for other in others:
        assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.9
        assert not np.isin(other, drawn).any()


def test_noise_without_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret of 32 bytes"):
        gaussian(b"", np.zeros(3))


def test_each_device_draws_a_secret_and_keeps_it(tmp_path: Path) -> None:
    one, other = (SqliteStore(tmp_path / name) for name in ("a.db", "b.db"))
    assert len(one.secret) == 32
    assert one.secret != other.secret
    assert MemoryStore().secret != MemoryStore().secret
    assert one.secret.hex() not in repr(MemoryStore(secret=one.secret))
    one.close()
    again = SqliteStore(tmp_path / "a.db")
    assert again.secret == one.secret
    for store in (again, other):
        store.close()


# -- the device -----------------------------------------------------------------------------------------------------

MEANS = HyperKnowledge(
    classes=np.array([0, 2], np.int32),
    features=np.array([[0.5, 0], [0, 1]], np.float32),
    soft=np.array([[0.5, 0.25, 0.25], [0, 0, 1]], np.float32),
    counts=np.array([4, 2], np.int32),
)
SUMS = np.array([[2, 0, 2, 1, 1, 4], [0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 2, 2]], np.float64)


def shared(secret: bytes = SECRET, **params: Any) -> ClassRows:
    spec = _spec(classes=3, **{**noises(1.0), **params})
    method = method_of(spec)
    stage = method.share(OnDevice(job=replace(job(spec, 0), secret=secret), state=NoState(), down={}))
    assert next(stage) == HyperMeans(method.params.temperature, method.params.clip, of_all=True)
    with pytest.raises(StopIteration) as done:
        stage.send(MEANS)
    return done.value.value["sums"]


def test_a_device_tells_of_every_class_in_noised_sums() -> None:
    quiet = shared(noise_features=1e-6, noise_soft=1e-6, noise_counts=1e-6)
    assert (quiet.classes.tolist(), quiet.counts.tolist()) == ([0, 1, 2], [1, 1, 1])
    assert quiet.rows == pytest.approx(SUMS, abs=1e-4)
    np.testing.assert_array_equal(shared().rows, shared().rows)
    assert not np.isclose(shared().rows, shared(SECRET[::-1]).rows).any()


def test_each_column_has_its_own_noise() -> None:
    """Deviations z_h C of features, z_q of predictions, z_n of counts."""
    draws = gaussian(SECRET, SUMS)
    found = shared(noise_features=2.0, noise_soft=3.0, noise_counts=5.0, clip=7.0).rows - SUMS
    assert found == pytest.approx(draws * np.array([14, 14, 3, 3, 3, 5]), rel=1e-4, abs=1e-4)


def test_features_are_shortened_and_never_lengthened() -> None:
    rows = np.array([[3, 4], [0.3, 0.4], [0, 0]], np.float32)
    assert bounded(rows, 1.0) == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4], [0, 0]]))
    assert bounded(rows, 1.0, cube=True) == pytest.approx(np.array([[1, 1], [0.3, 0.4], [0, 0]]))
    assert bounded(rows, np.inf) is rows


# -- one bounded feature on all three sides -------------------------------------------------------------------------


@pytest.mark.parametrize("cube", [False, True])
def test_sums_predictions_and_loss_see_the_same_bounded_feature(cube: bool) -> None:
    x = 4 * np.random.default_rng(3).normal(size=(12, 2, 2)).astype(np.float32)
    y = np.arange(12) % 3
    bench = Workbench(NumpyModel(3, (1, 2, 2), seed=0), LocalData(train=Samples(x, y)))
    means, _ = fleets.answer_of(bench, HyperMeans(0.5, 1.0, cube))
    whole = bench.model.features(bench.samples)
    f = bounded(whole, 1.0, cube=cube)
    for label in range(3):
        np.testing.assert_allclose(means.features[label], f[y == label].mean(axis=0), atol=1e-6)
        predicted = softmax(bench.model.head(f[y == label]), 0.5).mean(axis=0)
        np.testing.assert_allclose(means.soft[label], predicted, atol=1e-6)
    term = BoundedDistance(classes=np.arange(3), rows=means.features, most=1.0, cube=cube)
    seen = Seen(None, y, 0, features=whole)
    expected = np.linalg.norm(f - means.features[y], axis=1).mean()
    assert term.value(seen) == pytest.approx(expected, rel=1e-5)
    share, _ = fleets.answer_of(bench, BoundedShare(1.0, cube))
    assert share == (f != whole).any(axis=1).mean() > 0


@pytest.mark.parametrize(("most", "cube"), [(1.0, False), (0.8, True), (np.inf, False)])
def test_the_slope_goes_through_the_bound(most: float, cube: bool) -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 1, 2, 0, 1])
    term = BoundedDistance(classes=np.array([0, 1]), rows=rng.normal(size=(2, 3)), weight=0.7, most=most, cube=cube)
    slope = term.slope(Seen(None, labels, 0, features=features))
    step = 1e-3
    for at in np.ndindex(features.shape):
        up, down = features.astype(np.float64), features.astype(np.float64)
        up[at] += step
        down[at] -= step
        rise = [term.value(Seen(None, labels, 0, features=each)) for each in (up, down)]
        assert slope[at] == pytest.approx((rise[0] - rise[1]) / (2 * step), abs=1e-3)
    plain = PrototypeDistance(classes=term.classes, rows=term.rows, weight=0.7)
    if most == np.inf:
        np.testing.assert_array_equal(slope, plain.slope(Seen(None, labels, 0, features=features)))


@pytest.mark.torch
def test_little_noise_changes_little(pictures: Path) -> None:
    """With weights of 1 on both terms and features that are mostly beyond the bound."""
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "fedhkd", devices=3, rounds=6, feature_dim=16)
    tables["fleet"][0]["model"] = "mlp"
    tables["partition"] = {"kind": "iid"}
    tables["train"] |= {"local_steps": 8, "optimiser": "sgd", "learning_rate": 0.1}
    found = []
    for params in ({}, {**noises(1e-3), "min_count": 1}):
        tables["method"] = {"soft_weight": 1.0, "feature_weight": 1.0, "start": "equal", **params}
        run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
        found.append(float(np.mean([device.accuracy for device in run.result.devices])))
    assert found[1] > found[0] - 0.1
    assert any("beyond method.clip" in text for text in run.result.warnings)


# -- the paper's noise, under its name ------------------------------------------------------------------------------


def test_the_papers_noise_is_on_mean_features_and_on_nothing_else() -> None:
    spec = _spec(noise="published", sigma=0.5, zeta=3.0, min_count=1, nu=0.25)
    method = method_of(spec)
    stage = method.share(OnDevice(job=replace(job(spec, 0), secret=SECRET), state=NoState(), down={}))
    assert next(stage) == HyperMeans(method.params.temperature, 3.0, cube=True)
    with pytest.raises(StopIteration) as done:
        stage.send(MEANS)
    (sent,) = done.value.value.values()
    assert sent.classes.tolist() == [0]  # 4 of 9 samples; 2 of 9 are below nu
    np.testing.assert_array_equal(sent.soft, MEANS.soft[:1])
    drawn = gaussian(SECRET, MEANS.features.astype(np.float64))[:1]
    np.testing.assert_allclose(sent.features, MEANS.features[:1] + 2 * 3 * 0.5 / 4 * drawn, rtol=1e-5)


def test_the_warning_tells_the_true_epsilon_of_published_noise() -> None:
    spec = _spec(noise="published", delta=0.01, rounds=50)
    object.__setattr__(spec, "feature_dim", 64)
    (warning,) = [text for text in method_of(spec).warnings(spec) if text.startswith("W2")]
    for mu in (64**0.5 / 7, (64 * 50) ** 0.5 / 7):
        assert f"{epsilon(0.01, mu):.3g}" in warning
    assert "0.444" in warning  # what the paper's formula gives at sigma = 7
    assert "no epsilon" in warning


def test_an_epsilon_is_kept_or_the_run_does_not_begin() -> None:
    for asked, enough in ((2.6, True), (2.4, False)):
        spec = _spec(**noises(20.0), rounds=50, epsilon=asked)
        if enough:
            method_of(spec).begin(spec)
            continue
        with pytest.raises(UsageError, match=r"^method\.epsilon: 2\.4 asked for"):
            method_of(spec).begin(spec)


# -- the threshold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "samples", "nu"), [(3, 30, 0.1), (7, 70, 0.1), (1, 4, 0.25), (6, 20, 0.3)])
def test_a_class_exactly_at_the_threshold_passes(count: int, samples: int, nu: float) -> None:
    assert passes(count, samples, nu)
    assert not passes(count - 1, samples, nu)
    assert not passes(count, samples + 1, nu)


# -- the coordinator ------------------------------------------------------------------------------------------------


def _spec(classes: int = 3, rounds: int = 5, **params: Any) -> Any:
    spec = spec_of(FedHKD, share_weights=False, **params)
    for key, value in (("classes", classes), ("feature_dim", 2), ("rounds", rounds)):
        object.__setattr__(spec, key, value)
    return spec


def made_of(*ups: ClassRows, samples: int = 100, **params: Any) -> HyperKnowledge | None:
    spec = _spec(**{**noises(1.0), **params})
    aggregate = FedHKD().zero()
    for number, rows in enumerate(ups):
        aggregate = FedHKD().add(aggregate, Contribution(number=number, samples=samples, knowledge={"sums": rows}))
    state = method_of(spec).finish(spec, method_of(spec).begin(spec), ExchangeId(0, 0), aggregate)
    assert state.weights is None
    return state.hyper


def test_sums_are_divided_by_noised_counts_and_put_on_the_simplex() -> None:
    """By hand: class 0 has (2, 0; 2, 1, 1; 4) + (1, 3; 1, -2, 1; 1) over 5; classes below min_count are absent."""
    a = rows_of([0, 1, 2], SUMS)
    b = rows_of([0, 1, 2], [[1, 3, 1, -2, 1, 1], [9, 9, 9, 9, 9, 1.9], [0, 0, 0, 0, 0, -3]])
    hyper = made_of(a, b, min_count=2)
    assert hyper.classes.tolist() == [0]
    assert hyper.features == pytest.approx(np.array([[0.6, 0.6]]))
    # (.6, -.2, .4): its nearest point on the simplex is (.6, 0, .4)
    assert hyper.soft == pytest.approx(np.array([[0.6, 0, 0.4]]), abs=1e-6)
    assert hyper.counts.tolist() == [5]
    assert made_of(a, b, min_count=6) is None


def test_a_count_beyond_what_was_declared_is_cut() -> None:
    rogue = rows_of([0, 1, 2], [[0, 0, 0, 0, 0, 1e6], [0, 0, 0, 0, 0, -1e6], [0] * 6])
    honest = rows_of([0, 1, 2], [[40, 0, 40, 0, 0, 40]] * 3)
    hyper = made_of(rogue, honest, samples=40, min_count=1)
    assert hyper.counts.tolist() == [40 + 46, 40 - 6, 40]


def test_noise_is_of_use_with_many_contributors_only() -> None:
    """methods.md A.5: d = 64, z = 20: the noise on a mean is 1.6 C of 100 samples, and 0.16 C of 10^4 on 100 devices."""
    for devices, expected in ((1, 1.6), (100, 0.16)):
        drawn = [20 * gaussian(bytes([i]) * 32, np.zeros((30, 64))) for i in range(devices)]  # 30 classes
        lengths = np.linalg.norm(np.sum(drawn, axis=0) / (100 * devices), axis=1)
        assert lengths.mean() == pytest.approx(expected, rel=0.05)


@hypothesis.settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_the_nearest_point_of_the_simplex(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 3, (20, k))
    found = on_simplex(rows)
    assert (found >= 0).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(20))
    for other in rng.dirichlet(np.ones(k), 50):
        assert (((rows - found) ** 2).sum(axis=1) <= ((rows - other) ** 2).sum(axis=1) + 1e-9).all()
    inside = rng.dirichlet(np.ones(k), 5)
    assert on_simplex(inside) == pytest.approx(inside)


def test_merge_laws_of_noised_sums() -> None:
    spec = _spec(**noises(2.0), min_count=1)
    rng = np.random.default_rng(5)
    ups = [
        Contribution(number=n, samples=50, knowledge={"sums": rows_of([0, 1, 2], 10 ** rng.uniform(-6, 2, (3, 6)))})
        for n in (3, 0, 7, 5)
    ]
    check_merge_laws(method_of(spec), spec, ExchangeId(0, 0), ups)


# -- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"noise_features": 1.0}, "noise_soft"),
        ({"noise_counts": 1.0}, "noise_counts"),
        ({**noises(1.0), "nu": 0.25}, "nu"),
        ({"clip": 0.0}, "clip"),
        ({"delta": 0.0}, "delta"),
        ({"noise": "published", "epsilon": 0.5}, "epsilon"),
        ({"noise": "published", **noises(1.0)}, "noise_features"),
        ({"epsilon": 0.5}, "epsilon"),
        ({"noise": "published", "forms": "code"}, "forms"),
    ],
)
def test_impossible_parameters_are_refused(table: dict[str, float], key: str) -> None:
    with pytest.raises(UsageError, match=f"method.{key}: expected"):
        FedHKD.read(table)


def test_without_weights_the_method_asks_for_no_permission() -> None:
    whole, part = FedHKD.under({}), FedHKD.under({"share_weights": False})
    assert (whole.shares_weights, part.shares_weights) == (True, False)
    assert whole.needs - part.needs == {"weights"}
    assert "weights" not in part.discloses
    noised = FedHKD.under(noises(1.0))
    assert (noised.holders_wanted, whole.holders_wanted) == (0, 3)  # every device tells of every class
    assert "noised" in noised.discloses
    (row,) = part.exchanges
    assert (set(row.down), set(row.up)) == ({"hyper"}, {"hyper"})


def test_no_upload_is_no_round_without_weights_too() -> None:
    spec = _spec()
    with pytest.raises(EmptyRound, match="round 2"):
        method_of(spec).finish(spec, State(), ExchangeId(2, 0), FedHKD().zero())


# -- whole runs -----------------------------------------------------------------------------------------------------


def _config(pictures: Path, **params: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fedhkd", devices=3, rounds=3)
    tables["method"] = {"min_count": 1, **params}
    return settings.parse(tables, Path("test.toml"))


def run_of(pictures: Path, **params: Any) -> fleets.Run:
    run = fleets.Run(_config(pictures, **params))
    if not params.get("share_weights", True):
        for device in run.devices:
            device.participant.context.shares_weights = False
    return run.finished()


def test_a_noised_run_repeats_and_survives_a_power_cut(pictures: Path) -> None:
    """In a simulation the secret is made from the seed; a round that is computed again draws the same noise."""
    clean = run_of(pictures, **noises(0.5))
    cut = fleets.Run(_config(pictures, **noises(0.5)))
    cut.power_cut("device-01", 0.4 * clean.clock.now_s, 0.1)
    cut.power_cut("coordinator", 0.6 * clean.clock.now_s, 0.1)
    assert cut.finished().coordinator_bytes == clean.coordinator_bytes
    assert cut.model_bytes == clean.model_bytes
    assert run_of(pictures, **noises(0.25)).model_bytes != clean.model_bytes
    assert any(text.startswith("W2") for text in clean.result.warnings)


def test_without_weights_devices_that_keep_theirs_learn_from_one_another(pictures: Path) -> None:
    run = run_of(pictures, share_weights=False)
    assert run.result.completed
    assert run.server.method_state.weights is None
    assert run.server.method_state.hyper is not None
    rows = [device.participant.context.bench.model.head_rows() for device in run.devices]
    assert not np.array_equal(rows[0], rows[1])
    alone = run_of(pictures, share_weights=False, soft_weight=0.0, feature_weight=0.0)
    assert alone.model_bytes != run.model_bytes


@pytest.mark.torch
def test_without_weights_architectures_may_differ_with_noise_too(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "fedhkd", devices=2, rounds=2, feature_dim=64)
    tables["fleet"] = [{"count": 1, "model": "mlp"}, {"count": 1, "model": "cnn"}]
    tables["method"] = {"share_weights": False, "min_count": 1, **noises(0.1)}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert run.result.updates["refused"] == 0
    assert run.server.method_state.hyper.features.shape[1] == 64
    assert len({device.participant.context.bench.model.spec.parameters for device in run.devices}) == 2
