"""How pictures look and in which files they are written: for the screen, for a paper, or inside an HTML document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

WIDTHS_IN: Mapping[str, float] = MappingProxyType({"column": 3.5, "page": 7.16})
"""The widths of a column and of a page of a two-column paper, in inches (IEEE; ACM and Springer differ by 0.2)."""
_LEAST_IN = 1.4
"""The least height of a picture, which axes with their labels need."""
FORMATS = ("png", "svg", "pdf")
_SMALLER: Mapping[str, Any] = MappingProxyType(
    {
        "font.size": 7.5,
        "axes.labelsize": 7.5,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "text.color": "#000000",
        "axes.labelcolor": "#000000",
        "xtick.color": "#000000",
        "ytick.color": "#000000",
        "axes.edgecolor": "#555555",
        "pdf.fonttype": 42,  # TrueType: publishers refuse the default, Type 3
    }
)
"""The differences to the style of the screen, for a picture that is printed at its own size."""


@dataclass(frozen=True, slots=True)
class Look:
    """The look of all pictures that are drawn while it is chosen."""

    formats: tuple[str, ...] = ("png", "svg")
    """The files of each picture."""
    width_in: float | None = None
    """The width of every picture in inches, as a paper needs it, or None to let each picture have its own."""
    titles: bool = True
    """Whether a picture has a title and a subtitle; in a paper the caption says that."""
    text_as_text: bool = False
    """Whether text in an SVG stays text, which a browser can search and colour; else it is drawn as outlines."""

    @property
    def for_paper(self) -> bool:
        """Whether pictures have the width of a paper."""
        return self.width_in is not None

    @property
    def style(self) -> dict[str, Any]:
        """The settings of matplotlib that differ from those of the screen."""
        fonts = {"svg.fonttype": "none"} if self.text_as_text else {}
        return {**(_SMALLER if self.for_paper else {}), **fonts}

    def scaled(self, width_in: float, height_in: float) -> tuple[float, float]:
        """The size of a picture that the screen shows at this size, without its header: both in inches."""
        if self.width_in is None:
            return width_in, height_in
        factor = min(1.0, self.width_in / width_in)
        return self.width_in, max(min(_LEAST_IN, height_in), height_in * factor)

    def columns(self, panel_in: float, most: int) -> int:
        """How many panels at least `panel_in` wide stand side by side, and no more than `most`."""
        return most if self.width_in is None else max(1, min(most, int(self.width_in / panel_in)))


SCREEN = Look()
INLINE = Look(formats=("svg",), titles=False, text_as_text=True)
"""Pictures inside an HTML document, which has its own headings."""
_CHOSEN: ContextVar[Look] = ContextVar("look", default=SCREEN)


def chosen_look() -> Look:
    """The look of the pictures that are drawn now."""
    return _CHOSEN.get()


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Choose the look of all pictures that are drawn inside, in this thread."""
    token = _CHOSEN.set(look)
    try:
        yield
    finally:
        _CHOSEN.reset(token)
