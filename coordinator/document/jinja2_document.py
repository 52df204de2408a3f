"""The HTML document: one file without any outside address, written from the template in static/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coordinator.document.pictures import inline_pictures
from coordinator.document.values import DocumentSection, SortableTable
from coordinator.report import text_files
from coordinator.report.drawing import Drawings
from edge_sdk.at_rest.places import unwritable
from edge_sdk.version import __version__

STATIC = Path(__file__).parent / "static"


def write_document(
    sections: Sequence[tuple[DocumentSection, Drawings]], path: Path, overview: SortableTable | None = None
) -> None:
    """Write all sections with their pictures as one file, which is replaced at once.

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
        pictures, why = inline_pictures(drawings, section.anchor)
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
