"""Comparing methods: worked means, deviations and paired differences; the table, the files and the pictures."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import statistics

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from coordinator.record.round_result import RoundResult
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import (
    METHOD_COLUMNS,
    RUN_COLUMNS,
    comparison_summary,
    markdown_text,
    method_rows,
    run_rows,
)
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.comparison.paper_table import escaped, paper_table
from coordinator.results.figures.insight import Insight
from coordinator.results.figures.intervals import Spread, spread_of
from coordinator.results.figures.result import DeviceResult
from coordinator.results.plots import curve_plots, drawing, plots
from coordinator.results.report.tables import latex_text, plain_text

BASE = synthetic.result(count=2)
T1 = 12.7062047
"""Student's t of one degree of freedom, for 95 %."""


def trial(seed, accuracies, *, completed=True, sent=100, rounds=2):
    """A run of two devices; in round r of n they stand at r/n of their final accuracy."""
    devices = tuple(
        DeviceResult(
            id=f"device-{i}",
            number=i,
            accuracy=a,
            bytes_up=sent * rounds,
            bytes_down=300,
            rounds_done=rounds,
            flops=2000,
        )
        for i, a in enumerate(accuracies)
    )
    history = tuple(
        RoundResult(
            round=r,
            accuracy={d.id: d.accuracy * r / rounds for d in devices},
            local_accuracy={d.id: d.accuracy * r / rounds for d in devices},
            virtual_s=9.0 / rounds,
            device_flops=4000 // rounds,
            device_j=50.0 / rounds,
            bytes_up=2 * sent,
            bytes_down=2 * sent,
        )
        for r in range(1, rounds + 1)
    )
    result = dataclasses.replace(
        BASE, devices=devices, history=history, seed=seed, completed=completed, time={"wall_s": 2.0, "virtual_s": 9.0}
    )
    return Trial(seed, result, f"x/seed-{seed}")


def comparison(**changes):
    found = {
        "alone": ((0.2, 0.4), (0.3, 0.5)),
        "fedal": ((0.7, 0.9), (0.8, 0.9)),
        "fedmd": ((0.6, 0.8), (0.5, 0.7)),
    }
    rows = [
        MethodRuns(name, tuple(trial(seed, values, **changes.get(name, {})) for seed, values in enumerate(pairs)))
        for name, pairs in found.items()
    ]
    return Comparison(tuple(rows), "fedal")


def test_the_worked_figures():
    """fedal: means 0.80 and 0.85; fedmd: 0.70 and 0.60; so fedmd - fedal is -0.10 and -0.25."""
    whole = comparison_summary(comparison())
    alone, fedal, fedmd = whole["methods"]
    assert fedal["accuracy"]["mean"] == pytest.approx(
        {
            "mean": 0.825,
            "sd": 0.05 / 2**0.5,
            "count": 2,
            "ci95_low": 0.825 - T1 * 0.025,
            "ci95_high": 0.825 + T1 * 0.025,
        }
    )
    assert fedal["accuracy"]["worst"]["mean"] == pytest.approx(0.75)  # 0.7 and 0.8
    assert fedmd["difference"]["mean"] == pytest.approx(
        {
            "mean": -0.175,
            "sd": 0.15 / 2**0.5,
            "count": 2,
            "ci95_low": -0.175 - T1 * 0.075,
            "ci95_high": T1 * 0.075 - 0.175,
        }
    )
    assert fedmd["difference"]["worst"]["mean"] == pytest.approx(-0.2)  # -0.1 and -0.3
    assert fedal["difference"]["mean"] == {"mean": 0.0, "sd": 0.0, "count": 2, "ci95_low": 0.0, "ci95_high": 0.0}
    assert alone["difference"]["mean"]["mean"] == pytest.approx(-0.475)  # -0.5 and -0.45
    assert alone["cost"]["up_per_device_round"] == {
        "mean": 100.0,
        "sd": 0.0,
        "count": 2,
        "ci95_low": 100.0,
        "ci95_high": 100.0,
    }
    assert alone["cost"]["down_per_device_round"]["mean"] == 150.0
    assert whole["seeds"] == [0, 1]
    assert whole["completed"] is True
    assert [run["mean_accuracy"] for run in fedmd["runs"]] == pytest.approx([0.7, 0.6])


def test_pairing_removes_what_seeds_have_in_common():
    """A hard seed lowers both methods: the difference is steady where the accuracies are not."""
    hard = Comparison(
        (
            MethodRuns("fedal", tuple(trial(seed, (level, level)) for seed, level in enumerate((0.3, 0.6, 0.9)))),
            MethodRuns("fedmd", tuple(trial(seed, (level, level)) for seed, level in enumerate((0.2, 0.5, 0.8)))),
        ),
        "fedal",
    )
    line = hard.lines[1]
    assert line.accuracy("mean").sd == pytest.approx(0.3)
    assert hard.difference(line, "mean").mean == pytest.approx(-0.1)
    assert hard.difference(line, "mean").sd == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_ended_early_counts_in_no_accuracy():
    broken = comparison(fedmd={"completed": False})
    assert not broken.completed
    fedmd = comparison_summary(broken)["methods"][2]
    assert fedmd["accuracy"] == {}
    assert fedmd["difference"] == {}
    assert "mean_accuracy" not in fedmd["runs"][0]
    table = compare_table(broken)
    assert any("fedmd, seed 1: ended early" in line for line in table.notes)
    assert table.rows[2][1:5] == ("-", "-", "-", "-")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_a_spread_is_the_sample_deviation(values):
    spread = spread_of([*values, None])
    assert spread == Spread(statistics.fmean(values), statistics.stdev(values), len(values))


def test_one_value_has_no_deviation_and_none_has_no_mean():
    assert spread_of([0.5]) == Spread(0.5, None, 1)
    assert spread_of([None]) is None


def test_the_table_says_means_deviations_and_differences():
    text = plain_text(compare_table(comparison()))
    heads, _, alone, fedal, fedmd, *_ = text.splitlines()
    assert heads.split("  ")[0] == "method"
    assert "mean - fedal" in heads
    assert alone.split()[:8] == ["alone", "35.0", "±", "7.1", "-47.5", "[-79.3,", "-15.7]", "25.0"]
    assert fedal.split()[:7] == ["fedal", "82.5", "±", "3.5", "-", "75.0", "±"]
    assert "-17.5 [-112.8, +77.8]" in fedmd
    assert "100 B" in fedmd
    assert "seeds 0, 1" in text


def test_one_seed_has_no_deviations_and_says_how_to_get_them():
    single = Comparison(tuple(MethodRuns(line.method, line.trials[:1]) for line in comparison().lines), "fedal")
    text = plain_text(compare_table(single))
    assert "±" not in text
    assert "--seeds 0,1,2" in text


def test_the_tables_have_a_column_for_every_figure():
    whole = comparison_summary(comparison())
    assert set(method_rows(whole)[1]) == set(METHOD_COLUMNS)
    assert {"method", "mean_accuracy", "scalars_up"} <= set(run_rows(whole)[1]) <= set(RUN_COLUMNS)
    assert method_rows(whole)[2]["mean_difference"] == pytest.approx(-0.175)
    assert len(run_rows(whole)) == 6


def test_the_band_is_the_deviation_of_the_seeds_or_of_one_seed_the_devices():
    fedal = comparison().lines[1]
    first, last = curve_plots.round_points(fedal)
    assert (first.round, last.round) == (1, 2)
    assert first.mean == pytest.approx(0.4125)
    assert (last.low, last.high) == pytest.approx((0.825 - 0.05 / 2**0.5, 0.825 + 0.05 / 2**0.5))
    (_, alone_last) = curve_plots.round_points(MethodRuns("fedal", fedal.trials[:1]))
    assert (alone_last.low, alone_last.mean, alone_last.high) == pytest.approx((0.7, 0.8, 0.9))


def test_a_subtitle_says_when_rounds_differ():
    result = trial(0, (0.5,)).result
    few, many = (MethodRuns(str(n), (Trial(0, dataclasses.replace(result, rounds=n)),)) for n in (2, 10))
    assert "2 to 10 rounds" in curve_plots.words_for(Comparison((few, many), "2"))
    assert " 10 rounds" in curve_plots.words_for(Comparison((many,), "10"))


def test_bytes_add_up_over_the_rounds():
    """Each round: 2 * 100 up and as much down, by two devices."""
    points = curve_plots.spent_points(comparison().lines[2])
    assert [(p.round, p.bytes_per_device) for p in points] == [(1, 200.0), (2, 400.0)]
    assert points[1].mean == pytest.approx(0.65)


def test_only_rounds_that_all_seeds_measured_are_drawn():
    short, long = trial(0, (0.5, 0.5), rounds=2), trial(1, (0.5, 0.5), rounds=4)
    assert [p.round for p in curve_plots.round_points(MethodRuns("m", (short, long)))] == [1, 2]


NAMES = [
    "accuracy_by_round",
    "own_task_by_round",
    "accuracy_of_devices",
    "accuracy_by_bytes",
    "accuracy_by_time",
    "accuracy_by_energy",
    "accuracy_for_its_cost",
]


def read(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.draws
def test_every_picture_and_the_figures_behind_it(tmp_path):
    pytest.importorskip("matplotlib")
    paths = plots.draw_comparison(comparison(), tmp_path / "plots")
    assert [path.name for path in paths] == [f"{name}.png" for name in NAMES]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in path.with_suffix(".svg").read_text()
        rows = read(path.with_suffix(".csv"))
        assert {row["method"] for row in rows} == {"alone", "fedal", "fedmd"}
    again = tmp_path / "accuracy_of_devices.png"
    curve_plots.accuracy_of_devices(comparison(), again)
    for suffix in (".png", ".svg", ".csv"):
        assert (
            again.with_suffix(suffix).read_bytes() == (tmp_path / "plots" / again.name).with_suffix(suffix).read_bytes()
        )


def test_the_figures_behind_the_pictures_are_the_worked_ones():
    """Own task of fedal: seed 0 (0.7, 0.9), of seed 1 (0.8, 0.9); in round 1 of 2 half of that."""
    fedal = comparison().lines[1]
    first, last = curve_plots.own_task_points(fedal)
    assert (last.amp, last.wlp) == pytest.approx((0.825, 0.75))
    assert last.fm == pytest.approx((0.01 + 0.0025) / 2)
    assert first.fm == pytest.approx(last.fm / 4)
    devices = [point for point in curve_plots.device_points(comparison()) if point.method == "fedal"]
    assert [(point.seed, point.accuracy) for point in devices] == [(0, 0.7), (0, 0.9), (1, 0.8), (1, 0.9)]
    cost = curve_plots.cost_point(fedal)
    assert (cost.bytes_per_device, cost.device_flops) == (500.0, 4000.0)
    assert cost.mean == pytest.approx(0.825)
    assert [point.time_s for point in curve_plots.spent_points(fedal)] == [4.5, 9.0]


@pytest.mark.draws
def test_a_comparison_without_any_accuracy_is_drawn_too(tmp_path):
    pytest.importorskip("matplotlib")
    bare = Trial(0, dataclasses.replace(BASE, history=()))
    empty = Comparison((MethodRuns("alone", (bare,)), MethodRuns("fedal", (bare,))), "fedal")
    paths = plots.draw_comparison(empty, tmp_path)
    assert all(path.exists() for path in paths)
    assert paths[0].with_suffix(".csv").read_text() == "method,round,mean,low,high,measured\n"


def test_every_line_looks_different():
    styles = [drawing.line_style(place) for place in range(1, 29)]
    assert len({(style.dashes, style.marker) for style in styles}) == 28  # also in black and white
    assert len({style[:3] for style in styles}) == 28


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.2))
def test_names_are_pushed_apart_and_keep_their_order(values, gap):
    placed = drawing.apart(values, gap)
    ordered = [place for _, place in sorted(zip(values, placed, strict=True), key=lambda pair: pair)]
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(ordered))
    assert statistics.fmean(placed) == pytest.approx(statistics.fmean(values), abs=1e-9)


def test_names_that_do_not_touch_stay_where_they_are():
    assert drawing.apart([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]
    assert drawing.apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


def test_the_interval_is_student_t_over_the_paired_differences():
    """Differences of +1, +2 and +3 points: 2 +- 4.3027 * 1 / sqrt(3)."""
    base, better = (0.5, 0.6, 0.7), (0.51, 0.62, 0.73)
    lines = tuple(
        MethodRuns(name, tuple(trial(seed, (level, level)) for seed, level in enumerate(levels)))
        for name, levels in (("fedal", base), ("fedmd", better))
    )
    low, high = Comparison(lines, "fedal").difference(lines[1], "mean").interval
    assert (low, high) == pytest.approx((0.02 - 0.0248413, 0.02 + 0.0248413), abs=1e-6)
    assert Spread(0.5, None, 1).interval is None


def test_the_rounds_to_a_target_count_only_where_every_seed_reached_it():
    """fedal has 0.4 and 0.425 after one round, 0.8 and 0.85 after two."""
    _, fedal, _ = comparison_summary(comparison())["methods"]
    assert fedal["to_target"]["0.8"]["round"]["mean"] == 2
    assert fedal["to_target"]["0.8"]["bytes_per_device"]["mean"] == 400.0
    assert "0.9" not in fedal["to_target"]


def test_the_table_for_a_paper_tells_what_its_means_leave_out():
    found = comparison(fedmd={"completed": False})
    text = latex_text(paper_table(found, latex=True))
    assert text.count("ended early and counts in no accuracy") == len(found.seeds)
    assert text.index(r"\end{tabular}") < text.index(r"\par\footnotesize FedMD, seed 0: ended early")
    assert "FedMD, seed 1: ended early" in markdown_text(paper_table(found, latex=False))


def test_the_latex_table_has_a_row_for_each_line_and_escapes():
    text = latex_text(paper_table(comparison(), latex=True))
    assert text.count(r"\\") == 4
    differs = r"$-17.50$ $[-112.80, +77.80]$"  # its seeds gave 70 and 60: they do not tell it from the best
    assert rf"FedMD & $\mathbf{{65.00 \pm 7.07}}$ & {differs}" in text
    assert r"FedAL & $\mathbf{82.50 \pm 3.54}$ & -- &" in text
    assert escaped("lg_fedavg 5 % \\x") == r"lg\_fedavg 5 \% \textbackslash{}x"


def test_many_methods_are_named_beside_the_picture_which_grows(tmp_path, figures):
    names = ["alone", *(f"method_{i}" for i in range(24))]
    lines = tuple(MethodRuns(name, (trial(0, (0.5 + i / 100, 0.6)),)) for i, name in enumerate(names))
    curve_plots.accuracy_by_round(Comparison(lines, "method_0"), tmp_path / "many.png")
    curve_plots.accuracy_by_round(Comparison(lines[:3], "method_0"), tmp_path / "few.png")
    many, few = (figure.get_size_inches()[1] for figure in figures)
    assert many > few
    assert (tmp_path / "many.csv").read_text().count("method_23") == 2


@pytest.mark.parametrize("count", [3, 12])
def test_every_line_has_a_band_and_many_are_fainter(tmp_path, figures, count):
    lines = tuple(MethodRuns(f"method_{number}", (trial(0, [0.5, 0.6]),)) for number in range(count))
    curve_plots.accuracy_by_round(Comparison(lines, "method_0"), tmp_path / "p.png")
    bands = figures[0].axes[0].collections
    assert len(bands) == count
    assert all(0 < band.get_alpha() <= 0.45 / min(count, 9) for band in bands)
    assert "band: worst" in figures[0].texts[1].get_text()


def test_a_line_over_time_says_where_it_begins(tmp_path, figures):
    curve_plots.accuracy_by_time(comparison(), tmp_path / "p.png")
    assert "all 2 devices" in figures[0].texts[1].get_text()


def test_a_method_that_never_began_has_no_panel_and_no_row(tmp_path, figures):
    never = dataclasses.replace(
        BASE,
        completed=False,
        rounds_done=0,
        history=(),
        devices=tuple(dataclasses.replace(device, accuracy=None) for device in BASE.devices),
    )
    even = np.full((2, 2), 0.5, np.float32)
    runs = {"alone": BASE, "fedavg": never, "fedmd": BASE}
    lines = tuple(
        MethodRuns(name, (Trial(0, dataclasses.replace(run, insight=Insight(predictions=even))),))
        for name, run in runs.items()
    )
    plots.draw_comparison(Comparison(lines, "fedmd"), tmp_path)
    assert {row["method"] for row in read(tmp_path / "public_predictions.csv")} == {"alone", "fedmd"}
    curve_plots.accuracy_of_devices(Comparison(lines, "fedmd"), tmp_path / "p.png")
    (axes,) = figures[-1].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alone", "fedmd"]
    colour = drawing.line_styles(runs)["fedmd"].colour  # the same as where fedavg has a line
    assert axes.patches[-1].get_edgecolor()[:3] == pytest.importorskip("matplotlib.colors").to_rgb(colour)


def test_the_table_says_each_warning_once_with_its_methods():
    """A user who compares sees what a single run would say, of its models too; a long list is cut."""
    runs = {"local": ["slow"], "fedmd": ["slow", "few samples", *(f"odd {i}" for i in range(30))]}
    lines = []
    for method, warnings in runs.items():
        one = trial(0, [0.5, 0.6])
        result = dataclasses.replace(one.result, warnings=tuple(warnings))
        lines.append(MethodRuns(method, (dataclasses.replace(one, result=result),)))
    notes = compare_table(Comparison(lines=tuple(lines), baseline="local")).notes
    said = [each for each in notes if "warning" in each]
    assert said[:2] == ["warning: slow", "fedmd: warning: few samples"]
    assert said[-1] == "20 further warnings: see summary.json of each run"
