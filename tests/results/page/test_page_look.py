"""The page's colours can be told from what is behind them, in light and in dark; its files name no other address."""

import re

import pytest

from coordinator.record.periods import Period
from coordinator.record.round_result import Missed
from coordinator.results.page.values import device_columns, round_columns

starlette_app = pytest.importorskip("coordinator.results.page.starlette_app", exc_type=ImportError)

OWN = ("index.html", "page.css", "format.js", "plots.js", "views.js", "page.js")


def text_of(name):
    return (starlette_app.STATIC / name).read_text(encoding="utf-8")


def schemes():
    """The colours of the light and of the dark scheme, by name."""
    parts = text_of("page.css").split("prefers-color-scheme: dark", 1)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part)) for part in parts]


def contrast(one, other):
    """The ratio of WCAG 2."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("place", [0, 1])
def test_text_and_lines_can_be_told_from_what_is_behind_them(place):
    colours = schemes()[place]
    for behind in ("back", "panel"):
        for name in ("text", "soft", "link"):
            assert contrast(colours[name], colours[behind]) >= 4.5, name
        for name in ("a", "b", "c", "d"):
            assert contrast(colours[name], colours[behind]) >= 3, name


@pytest.mark.parametrize("name", OWN)
def test_no_file_names_another_address(name):
    found = re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"http://www\.w3\.org/2000/svg", "", text_of(name)))
    assert found == []


def test_the_page_reads_only_columns_that_there_are():
    used = {*re.findall(r"\brow\.([a-z_]+)\b", text_of("views.js"))}
    assert used <= {
        *device_columns(),
        *round_columns(),
        *Missed._fields,
        *Period.__dataclass_fields__,
        "period",
        "name",
        "right",
        "holders",
        "device",
        "message",
        "remedy",
        "length",
    }


def test_the_plotting_library_comes_with_its_licence():
    assert "MIT" in text_of("uPlot.LICENSE.txt")
    assert "uPlot" in text_of("uPlot.iife.min.js")
