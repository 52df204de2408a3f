"""The rule of the papers' pages: intervals, the correction, the floor, and signs that say the same."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import replace

import pytest

from benchmarks.papers import __main__ as runner
from benchmarks.papers.pages.page import ROWS as ROWS_NAME
from benchmarks.papers.pages.signs import TREND_RUNS, Sign, gains, signs
from benchmarks.papers.pages.verdicts import (
    AGAINST,
    COUNTED_WITH,
    LEANING,
    LEANING_AGAINST,
    LEVEL,
    MARGIN,
    NOT_RUN,
    ONE_SEED,
    OPEN,
    PROCESSOR_SD,
    SHOWN,
    TESTED_FROM,
    benjamini_hochberg,
    floor,
    judged,
    other_corrections,
)
from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import SEEDS
from benchmarks.papers.tables.papers import TABLES

ROWS = runner.PAGE.with_suffix("") / ROWS_NAME


def sign(*points: float, **more: object) -> Sign:
    made = Sign("a over b", "iid", "personal", None, tuple(point / 100 for point in points))
    return replace(made, **more)


def verdict(*points: float, **more: object) -> str:
    return judged([sign(*points, **more)])[0].verdict


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ((), NOT_RUN),
        ((20.0,), ONE_SEED),  # a sign of one seed is never shown
        ((-20.0,), ONE_SEED),
        ((1.0,), ONE_SEED),
        ((5.0, 5.1), LEANING),
        ((5.0, 5.1, 4.9), SHOWN),
        ((-5.0, -5.1, -4.9), AGAINST),
        ((9.0, 1.0, 5.0), OPEN),  # its interval has 0
        ((-9.0, -1.0, -5.0), OPEN),
        ((-5.0, -5.1), LEANING_AGAINST),  # too few to be tested
        ((0.5, 0.51, 0.49), LEVEL),  # its interval is above 0, but a processor moves as much
        ((-0.3, 0.1, 0.2), LEVEL),
        ((-9.0, 9.0, 0.1), OPEN),
    ],
)
def test_the_rule(points: tuple[float, ...], told: str) -> None:
    assert verdict(*points) == told


def test_a_ratio_is_held_against_a_tenth() -> None:
    ratio = sign(figure="bytes")
    assert judged([replace(ratio, gains=(math.log(2), math.log(2.01)))])[0].verdict == LEANING
    assert judged([replace(ratio, gains=(math.log(1.05), math.log(1.05)))])[0].verdict == OPEN


def test_the_correction_is_benjamini_and_hochbergs() -> None:
    """The example of their paper (1995, section 3.1): 15 p values, of which the first four are significant at 5 %."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590]
    p.append(1.0)
    found = benjamini_hochberg(p)
    assert sum(each <= 0.05 for each in found) == 4
    assert found[0] == pytest.approx(0.0015)
    assert found[8] == pytest.approx(0.0459 * 15 / 9)
    assert benjamini_hochberg(p[::-1]) == found[::-1]
    assert benjamini_hochberg([]) == []


def test_other_signs_of_a_table_weaken_one_that_is_near() -> None:
    near, lost = sign(4.0, 6.5, 5.5), sign(-3.0, 4.0, 1.0)
    assert judged([near])[0].verdict == SHOWN
    first, *_ = judged([near, *[lost] * 9])
    assert (first.verdict, first.sign.spread.interval[0] > 0) == (LEANING, True)


def test_signs_of_another_table_weaken_it_only_in_the_correction_over_all() -> None:
    near, lost = judged([sign(4.0, 6.5, 5.5)]), judged([sign(-3.0, 4.0, 1.0) for _ in range(9)])
    assert near[0].verdict == SHOWN
    moved = other_corrections([near, lost])
    assert {at: each.verdict for at, each in moved.items()} == {id(near[0].sign): LEANING}
    assert other_corrections([near]) == {}


def test_a_sign_that_says_the_same_is_neither_counted_nor_corrected_for() -> None:
    near, same = sign(4.0, 6.5, 5.5), sign(-3.0, 4.0, 1.0, counted_with="a over c")
    first, *others = judged([near, *[same] * 9])
    assert first.verdict == SHOWN
    assert {(each.verdict, each.corrected, each.says) for each in others} == {
        (COUNTED_WITH, None, "counted with a over c")
    }


def test_the_floor_falls_with_seeds_and_is_wider_for_a_difference_of_differences() -> None:
    assert floor(sign(1.0)) == pytest.approx(MARGIN, abs=2e-4)
    assert floor(sign(1.0, 1.0, 1.0, 1.0)) == pytest.approx(floor(sign(1.0)) / 2)
    assert floor(sign(1.0, runs=TREND_RUNS)) == pytest.approx(floor(sign(1.0)) * math.sqrt(2))


def test_the_floor_is_what_the_rows_of_two_processors_say() -> None:
    shifts = defaultdict(list)
    with (ROWS / "two-processors.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            shifts[row["table"], row["figure"]].append(float(row["second"]) - float(row["first"]))
    found = [math.sqrt(statistics.fmean(each * each for each in values)) for values in shifts.values()]
    assert len(found) >= 6
    assert round(max(found), 3) == PROCESSOR_SD


def test_pairs_that_are_counted_once_have_the_same_figures() -> None:
    """The lines that differ between a claim and the one that it is counted with are a third of a point apart at most.

    WLP is one device's accuracy on some tens of samples, so two of its samples may differ; roots of FM follow it.
    """
    limits = {"global_wlp": 0.025, "fm_sd": 0.025}
    looked_at = 0
    for table in (each for each in TABLES if cells.rows(each, ROWS)):
        kept = cells.rows(table, ROWS)
        for claim in (each for each in table.claims if each.counted_with):
            for setting in table.settings_of(claim):
                found = {
                    line.name: [
                        row for seed in SEEDS if (row := cells.row_of(cells.Cell(table, setting, line, seed), kept))
                    ]
                    for line in table.lines_of(setting)
                }
                for mine, theirs in zip((claim.better, claim.worse), claim.counted_with or (), strict=True):
                    for figure in claim.figures if mine != theirs else ():
                        apart = gains(found, mine, theirs, figure)
                        looked_at += len(apart)
                        assert all(abs(each) <= limits.get(figure, 0.0035) for each in apart.values())
    assert looked_at > 30


def test_no_sign_of_fewer_seeds_is_shown_or_against() -> None:
    for table in TABLES:
        for each in judged(signs(table, cells.rows(table, ROWS))):
            if each.verdict in {SHOWN, AGAINST, LEVEL}:
                assert len(each.sign.gains) >= TESTED_FROM
