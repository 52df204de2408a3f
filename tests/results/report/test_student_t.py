"""Student's t: the printed tables, and scipy's where it is installed."""

from __future__ import annotations

import pytest

from coordinator.results.figures.intervals import Spread, spread_of, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042)]
)
def test_the_quantiles_of_the_printed_table(freedom, expected):
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=5e-4)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(0.95, 100_000) == pytest.approx(1.95996, abs=5e-5)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_scipy_says_the_same(confidence):
    stats = pytest.importorskip("scipy.stats")
    for freedom in range(1, 40):
        expected = stats.t.ppf((1 + confidence) / 2, freedom)
        assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-9)


def test_a_p_value_is_what_its_interval_leaves_out_zero_at():
    spread = Spread(0.02, 0.011, 5)
    low, _ = spread.interval_at(1 - spread.p_value)
    assert low == pytest.approx(0, abs=1e-12)
    assert spread.p_value == pytest.approx(0.0153, abs=5e-5)  # t = 4.0656 with 4 degrees of freedom
    assert Spread(0.02, None, 1).p_value is None
    assert (Spread(0.02, 0.0, 3).p_value, Spread(0.0, 0.0, 3).p_value) == (0.0, 1.0)


def test_scipy_has_the_same_p_value():
    stats = pytest.importorskip("scipy.stats")
    values = [0.01, 0.03, -0.002, 0.014]
    assert spread_of(values).p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)
