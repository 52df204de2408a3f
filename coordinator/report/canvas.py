"""The look that all pictures share: size, type, colours, headings, and an axis of devices.

matplotlib is loaded on first use, and its global state (pyplot, the list of figures, rcParams) is left as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.report.result import DeviceResult
from coordinator.report.units import printable
from edge_sdk.errors import MissingExtra, StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
"""From the palette of Okabe and Ito, which colour-blind readers can tell apart."""
INK, SOFT, FAINT = "#222222", "#666666", "#E6E6E6"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "axes.labelcolor": SOFT,
    "axes.edgecolor": "#BBBBBB",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.hashsalt": "edge-sdk",  # ids inside the file follow from what is drawn
}
HEADER_IN = 0.62
MARGIN_IN = 0.12
ROW_IN = 0.44
MOST_IN = 24.0
"""No picture is wider: beyond that, columns shrink and only some are named."""
MOST_ROWS = 30
"""Devices in a picture that has a row for each; files beside the pictures have all."""
LINE_IN = 0.17
"""A line of small type: columns that are narrower are not all named."""
LONGEST_NAME = 26
Shown = TypeVar("Shown")
"""What is drawn."""
DOT = " \N{MIDDLE DOT} "
"""Between the words of a subtitle."""


@contextmanager
def pictures_in(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder that pictures go into, made where it is missing.  Raises StoreError where it cannot be written."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot write the pictures ({error.strerror or error}); free or change the place, "
            "then edge-sdk report draws them"
        ) from error


def draw_each(shown: Shown, drawings: Sequence[Callable[[Shown, Path], None]], folder: Path) -> list[Path]:
    """One picture by each function, in a file of its name."""
    paths = [folder / f"{draw.__name__}.png" for draw in drawings]
    for draw, path in zip(drawings, paths, strict=True):
        draw(shown, path)
    return paths


@contextmanager
def picture(path: Path, width_in: float, height_in: float, title: str, subtitle: str) -> Iterator[Figure]:
    """A figure with its heading, saved on leaving: as PNG, and as SVG beside it.

    Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib import rc_context  # noqa: PLC0415  # an optional package: only where a picture is drawn
        from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("matplotlib", "coordinator", "drawing plots") from None
    with rc_context(STYLE):
        figure = NewFigure(figsize=(width_in, height_in), layout="constrained")
        body = (MARGIN_IN / width_in, 0.02, 1 - 2 * MARGIN_IN / width_in, 1 - HEADER_IN / height_in - 0.02)
        figure.get_layout_engine().set(rect=body)  # type: ignore[union-attr,call-arg]  # "constrained" has a rect
        left = MARGIN_IN / width_in
        figure.text(left, 1 - 0.12 / height_in, title, va="top", fontsize=12, fontweight="bold")
        figure.text(left, 1 - 0.38 / height_in, subtitle, va="top", fontsize=8, color=SOFT)
        yield figure
        # without date and version, the same run gives the same bytes
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), format="svg", metadata={"Date": None, "Creator": None})


def height_in(count: int, row_in: float = ROW_IN, frame_in: float = 0.6) -> float:
    """The height of a picture with so many rows."""
    return HEADER_IN + frame_in + row_in * max(count, 2)


def every(count: int, column_in: float = ROW_IN) -> int:
    """Of so many columns every n-th is named, so that names never touch."""
    return math.ceil(LINE_IN / min(column_in, (MOST_IN - 2 * HEADER_IN) / max(count, 1)))


def rows_of(
    devices: Sequence[DeviceResult], key: Callable[[DeviceResult], float], words: str
) -> tuple[list[DeviceResult], str]:
    """The devices that a picture has a row for, and what its subtitle says of that.

    All by number; of more than MOST_ROWS those whose `key` is lowest, the lowest first, which `words` describe.
    """
    ordered = sorted(devices, key=lambda device: device.number)
    if len(ordered) <= MOST_ROWS:
        return ordered, ""
    return sorted(ordered, key=key)[:MOST_ROWS], f"{DOT}here the {MOST_ROWS} {words}"


def device_axis(
    axes: Axes, devices: Sequence[DeviceResult], detail: Callable[[DeviceResult], str] | None = None
) -> None:
    """Name the devices down the left side, the first on top, with a smaller second line where `detail` gives one."""
    axes.set_yticks(range(len(devices)), [""] * len(devices))
    axes.set_ylim(len(devices) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    for row, device in enumerate(devices):
        lines = [(short(device.id), 8.5, INK)]
        if detail is not None:
            lines.append((detail(device), 7, SOFT))
        rises = (0.0,) if len(lines) == 1 else (5.0, -5.5)
        for (words, size, colour), rise_pt in zip(lines, rises, strict=True):
            axes.annotate(
                words,
                (0, row),
                xycoords=("axes fraction", "data"),
                xytext=(-7, rise_pt),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=size,
                color=colour,
            )


def bar_labels(axes: Axes, values: Sequence[float | None], offset: float, words: Callable[[float], str]) -> None:
    """Write each bar's value at its end; where there is no value, say so."""
    for row, value in enumerate(values):
        axes.annotate(
            "not measured" if value is None else words(value),
            (value or 0, row + offset),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=SOFT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # no grid line runs through a figure
            annotation_clip=False,
        )


def short(text: str, most: int = LONGEST_NAME) -> str:
    """A name cut to what an axis can carry."""
    clean = printable(text)
    return clean if len(clean) <= most else clean[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
