"""The caption of a table for a paper promises what the table has, and bold marks what the seeds tell apart."""

from __future__ import annotations

import dataclasses

import pytest
import synthetic

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.paper_table import paper_table


def comparison(**means: tuple[float, ...]) -> Comparison:
    """Methods whose devices all have the accuracy given, one for each seed."""
    lines = []
    for method, values in means.items():
        trials = []
        for seed, value in enumerate(values):
            result = synthetic.result(count=3, rounds=2, seed=seed)
            devices = tuple(dataclasses.replace(each, accuracy=value) for each in result.devices)
            trials.append(Trial(seed, dataclasses.replace(result, devices=devices), f"{method}-{seed}"))
        lines.append(MethodRuns(method, tuple(trials)))
    return Comparison(tuple(lines), next(iter(means)))


THREE = comparison(fedavg=(0.5, 0.6, 0.7), fednh=(0.51, 0.6, 0.69), fedmd=(0.1, 0.2, 0.3))
ONE = comparison(fedavg=(0.5,), fednh=(0.51,))


@pytest.mark.parametrize(
    ("found", "columns", "promised"),
    [
        (THREE, ("mean",), {"standard deviation", "bold"}),
        (THREE, ("mean", "difference"), {"standard deviation", "differences", "95 %", "bold"}),
        (THREE, ("difference",), {"differences", "95 %"}),
        (THREE, ("bytes_up",), set()),
        (ONE, ("mean", "difference"), {"differences", "bold"}),
        (ONE, ("bytes_up",), set()),
    ],
)
def test_a_caption_promises_what_is_there(found: Comparison, columns: tuple[str, ...], promised: set[str]) -> None:
    caption = paper_table(found, columns, latex=True).caption
    words = ("standard deviation", "differences", "95", "bold")
    assert {word for word in words if word in caption} == {word.removesuffix(" %") for word in promised}


def test_bold_are_all_that_the_seeds_do_not_tell_from_the_best() -> None:
    rows = paper_table(THREE, ("mean",), latex=True).rows
    assert ["mathbf" in row[1] for row in rows] == [True, True, False]


def test_nothing_is_bold_where_nothing_is_told_apart() -> None:
    alike = comparison(fedavg=(0.5, 0.6, 0.7), fednh=(0.51, 0.6, 0.69))
    table = paper_table(alike, ("mean",), latex=True)
    assert ["mathbf" in row[1] for row in table.rows] == [False, False]
    assert "bold" not in table.caption
