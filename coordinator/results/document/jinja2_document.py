"""The HTML document: one file without any outside address, written from the template in static/."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coordinator.results.document.values import DocumentSection, InlinePicture, SortableTable
from coordinator.results.plots.drawing import DOT, FAINT, INK, SOFT, Drawings, draw_pictures
from coordinator.results.plots.look import INLINE
from coordinator.results.report import text_files
from edge_sdk.at_rest.files import unwritable
from edge_sdk.errors import MissingExtra
from edge_sdk.version import __version__

NOT_DRAWN = "drawn without them (--no-plots)"
STATIC = Path(__file__).parent / "static"


def write_document(
    sections: Sequence[tuple[DocumentSection, Drawings]],
    path: Path,
    overview: SortableTable | None = None,
    *,
    draws: bool = True,
) -> None:
    """Write all sections as one file, which is replaced at once, with their pictures if `draws`.

    Raises UsageError where it cannot be written, or StoreError if the disk fails.
    """
    environment = Environment(
        loader=FileSystemLoader(STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    full = []
    for section, drawings in sections:
        pictures, why = inline_pictures(drawings, section.anchor) if draws else ([], NOT_DRAWN)
        full.append(replace(section, pictures=pictures, no_pictures=why))
    title = full[0].title if len(full) == 1 else f"{len(full)} runs"
    text = environment.get_template("report.html.j2").render(
        title=title, sections=full, overview=overview, version=__version__
    )
    try:
        text_files.replace_file(path, text)
    except OSError as error:
        fault = f"{path}: cannot write the report ({error.strerror}); give --html another file"
        raise unwritable(error, fault) from None


# -- Plots as inline SVG: drawn by matplotlib, in the colours of the document, light or dark --------------------------

_VARIABLES: Mapping[str, str] = {
    INK.lower(): "var(--text)",
    SOFT.lower(): "var(--soft)",
    FAINT.lower(): "var(--grid)",
    "#bbbbbb": "var(--line)",
    "#ffffff": "var(--back)",
    "#000000": "var(--text)",
}
"""Colours of lines and text that mean no method, and the document's."""
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_ABOUT = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def inline_pictures(drawings: Drawings, prefix: str) -> tuple[list[InlinePicture], str]:
    """The pictures, and why they are missing, if they are.

    prefix: stands before every id, so that those of several pictures of a document differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = draw_pictures(drawings, folder, INLINE)
        except MissingExtra as missing:
            return [], str(missing)
        texts = [Path(path).read_text(encoding="utf-8") for path in paths]
    subtitles = [_said(svg, _SUBTITLE).split(DOT) for svg in texts]
    shared = _shared(subtitles) if len(texts) > 1 else 0  # the section's heading says this part
    return [
        InlinePicture(
            title := _said(svg, _TITLE),
            DOT.join(subtitle[shared:]),
            _inline(svg, html.escape(title), f"{prefix}-{place}-"),
        )
        for place, (svg, subtitle) in enumerate(zip(texts, subtitles, strict=True))
    ], ""


_TITLE, _SUBTITLE = (re.compile(f"<dc:{name}>(.*?)</dc:{name}>", re.DOTALL) for name in ("title", "description"))


def _said(svg: str, what: re.Pattern[str]) -> str:
    """Return a text that drawing.py has put into a picture, or empty without one."""
    found = what.search(svg)
    return html.unescape(found[1]) if found else ""


def _shared(lists: Sequence[Sequence[str]]) -> int:
    """Return how many first entries all lists have in common."""
    differ = (place for place, entries in enumerate(zip(*lists, strict=False)) if len({*entries}) > 1)
    return next(differ, min(map(len, lists), default=0))


def _inline(svg: str, words: str, prefix: str) -> str:
    """The svg element alone, with unique ids, the document's colours, and a name for screen readers."""
    element = _ABOUT.sub("", _HEAD.sub("", svg))
    element = _ID.sub(lambda match: match[1] + prefix, element)
    for colour, variable in _VARIABLES.items():
        element = element.replace(colour, variable)
    view = re.search(r'viewBox="([^"]+)"', element)
    width = float(view[1].split()[2]) if view else 518.0
    opening = (
        f'<svg role="img" aria-label="{words}" viewBox="{view[1] if view else "0 0 518 300"}" '
        f'style="max-width: {1.25 * width:.0f}px">'
    )
    return opening + element[element.index(">") + 1 :]
