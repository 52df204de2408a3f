"""Student's t: the printed tables, and scipy's where it is installed."""

from __future__ import annotations

import pytest

from coordinator.results.comparison.compare import t_quantile


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
