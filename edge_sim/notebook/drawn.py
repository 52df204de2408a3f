"""Pictures for notebooks: each is drawn when it is asked for, shown as SVG, and saved in any format."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from coordinator.results.plots.drawing import Drawings, draw_pictures
from coordinator.results.plots.look import FORMATS, SCREEN, WIDTHS_IN, Look
from edge_sdk.errors import UsageError


class Picture:
    """A picture of a run or a comparison."""

    def __init__(self, name: str, drawings: Drawings, look: Look) -> None:
        self.name, self._drawings, self._look = name, drawings, look

    def __repr__(self) -> str:
        return f"<picture {self.name}>"

    def _repr_svg_(self) -> str:
        """The picture as a notebook shows it."""
        with tempfile.TemporaryDirectory() as folder:
            (path,) = draw_pictures(self._drawings, folder, replace(self._look, formats=("svg",)), (self.name,))
            return path.read_text(encoding="utf-8")

    def save(self, path: str | Path) -> Path:
        """Write the picture into a file: png, svg or pdf, by the end of its name; return the file.

        Raises UsageError for another end, StoreError where it cannot be written.
        """
        target = Path(path)
        kind = target.suffix.removeprefix(".")
        if kind not in FORMATS:
            raise UsageError(f"{target}: expected a name that ends with .{', .'.join(FORMATS)}")
        with tempfile.TemporaryDirectory() as folder:
            (drawn,) = draw_pictures(self._drawings, folder, replace(self._look, formats=(kind,)), (self.name,))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(drawn.read_bytes())
        return target


class Plots:
    """The pictures that there are, each as a method: `plot.accuracy_by_round(width="column")`."""

    def __init__(self, drawings: Drawings) -> None:
        self._drawings = drawings

    def __dir__(self) -> list[str]:
        return [*self._drawings]

    def __repr__(self) -> str:
        return f"<plots: {', '.join(self._drawings)}>"

    def __getattr__(self, name: str) -> PlotFunction:
        if name.startswith("_") or name not in self._drawings:
            raise AttributeError(f"no picture {name!r} here; there are {', '.join(self._drawings)}")
        return PlotFunction(name, self._drawings)


class PlotFunction:
    """Draws one picture."""

    def __init__(self, name: str, drawings: Drawings) -> None:
        self._name, self._drawings = name, drawings

    def __call__(self, *, width: str = "", titles: bool | None = None) -> Picture:
        """Return the picture.

        width: column or page, for a paper; empty: as on the screen.  titles: default: only on the screen.
        """
        if width not in ("", *WIDTHS_IN):
            raise UsageError(f"width={width!r}: expected {', '.join(WIDTHS_IN)}, or nothing")
        look = replace(SCREEN, width_in=WIDTHS_IN.get(width), titles=not width if titles is None else titles)
        return Picture(self._name, self._drawings, look)
