"""Pictures for a paper: their width, their formats, no text beyond an edge, names as in the papers."""

from __future__ import annotations

import re

import pytest
import synthetic

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial, paper_name
from coordinator.results.plots import curve_plots, drawing
from coordinator.results.plots.look import WIDTHS_IN, Look, looking
from coordinator.results.plots.plots import comparison_drawings, run_drawings
from coordinator.results.report.run_files import write_run
from edge_sdk.cli import main

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.draws


@pytest.fixture
def folder(tmp_path):
    write_run(synthetic.result(count=4, rounds=5), "", tmp_path / "run")
    return tmp_path / "run"


def methods(*names):
    trial = Trial(0, synthetic.result(count=4, rounds=5))
    return Comparison(tuple(MethodRuns(name, (trial,)) for name in names), names[-1])


@pytest.mark.parametrize("width", ["column", "page"])
def test_a_pdf_is_as_wide_as_asked_and_an_svg_lies_beside_it(folder, capsys, width):
    assert main(["plot", str(folder), "--width", width, "--only", "accuracy_by_round,accuracy_by_bytes"]) == 0
    out = folder / "plots" / width
    assert {path.name for path in out.iterdir() if path.suffix != ".csv"} == {
        f"accuracy_by_{of}.{suffix}" for of in ("round", "bytes") for suffix in ("pdf", "svg")
    }
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", (out / "accuracy_by_round.pdf").read_bytes())
    assert float(box.group(1)) / 72 == pytest.approx(WIDTHS_IN[width], abs=0.01)
    assert str(out / "accuracy_by_bytes.svg") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--only", "accuracy"], "accuracy_by_round"), (["--format", "eps"], "pdf"), (["--format", ""], "pdf")],
)
def test_a_wrong_name_is_one_line_with_the_right_ones(folder, capsys, arguments, word):
    assert main(["plot", str(folder), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
    assert not (folder / "plots").exists()


def test_titles_are_off_and_axes_say_what_they_are(tmp_path, figures):
    with looking(Look(width_in=3.5, titles=False)):
        curve_plots.accuracy_by_round(methods("alone", "fedavg", "fedkf, ACA"), tmp_path / "p.png")
    (figure,) = figures
    assert figure.texts == []
    assert figure.axes[0].get_ylabel() == "accuracy"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Local", "FedAvg", "FedKF, ACA"]


def test_names_are_those_of_the_papers():
    assert [paper_name(name) for name in ("lg_fedavg", "qffl", "no_such")] == ["LG-FedAvg", "q-FedAvg", "no_such"]


@pytest.mark.parametrize("look", [Look(("png",)), Look(("png",), 3.5), Look(("png",), 3.5, titles=False)])
def test_no_text_is_cut_at_an_edge(tmp_path, look):
    """Headings and legends lie inside their pictures once these are drawn."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    cut, real = {}, figure.savefig

    def savefig(self, path, *, dpi, **options):
        real(self, path, dpi=dpi, **options)
        right = self.get_size_inches()[0] * dpi
        for text in (*self.texts, *(text for legend in self.legends for text in legend.get_texts())):
            box = text.get_window_extent(dpi=dpi)
            if box.x0 < -1 or box.x1 > right + 1:
                cut.setdefault(path.stem, []).append(text.get_text())

    names = ["alone", "fedavg", "fedkf", "feddf_al", "fedclassavg", "lg_fedavg"]
    wanted = ("accuracy_by_round", "own_task_by_round", "accuracy_for_its_cost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "savefig", savefig)
        drawing.draw_pictures(comparison_drawings(methods(*names)), tmp_path, look, wanted)
        drawing.draw_pictures(run_drawings(synthetic.result(count=2, rounds=2)), tmp_path, look, ("who_holds_what",))
    assert cut == {}


def test_a_word_longer_than_a_line_is_broken(tmp_path, figures):
    result = synthetic.result(count=2, rounds=2, federation="x" * 200)
    curve_plots.accuracy_by_round(Comparison((MethodRuns("fedal", (Trial(0, result),)),), "fedal"), tmp_path / "p.png")
    lines = figures[0].texts[1].get_text().splitlines()
    assert len(lines) > 2
    assert max(drawing.text_width_in(line, 8) for line in lines) <= 7.2
