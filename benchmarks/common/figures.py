"""A page of measured figures: each section is measured by one command, kept as JSON, and written as markdown."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from coordinator.results.figures.outcome import versions

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"

Table = list[list[str]]


@dataclass(frozen=True)
class Found:
    """What a section measured: a table whose first row is its head, and remarks that need figures too."""

    table: Table
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """docs/results/NAME.md, made from NAME.json, which keeps a section until it is measured again."""

    name: str
    title: str
    sections: Mapping[str, tuple[str, Callable[[], Table | Found]]]
    """Title and measurement of each section."""
    module: str
    """The module that measures it, as `python -m` takes it."""

    def main(self, description: str) -> None:
        """Measure the sections named on the command line, or all of them; or only write the page."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("section", nargs="*", choices=[[], *self.sections], default=[])
        parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the JSON")
        arguments = parser.parse_args()
        wanted = [] if arguments.page else arguments.section or list(self.sections)
        for name in wanted:
            print(f"measuring: {self.sections[name][0]}", flush=True)
            print("\n".join(markdown(self._measure(name))), flush=True)
        self._page_file.write_text(self._text(self._known()))

    @property
    def _page_file(self) -> Path:
        return RESULTS / f"{self.name}.md"

    @property
    def _figures_file(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def _known(self) -> dict[str, Any]:
        file = self._figures_file
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return known

    def _measure(self, name: str) -> Table:
        title, measure = self.sections[name]
        found = measure()
        found = found if isinstance(found, Found) else Found(found)
        known = self._known()  # read again: another process may have measured a section meanwhile
        known[name] = {
            "title": title,
            "table": found.table,
            "remarks": list(found.remarks),
            "command": f"python -m {self.module} {name}",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "versions": versions(),
            "cores": os.cpu_count(),
        }
        self._figures_file.parent.mkdir(parents=True, exist_ok=True)
        self._figures_file.write_text(json.dumps(known, indent=1) + "\n")
        return found.table

    def _text(self, known: Mapping[str, Any]) -> str:
        lines = [f"# {self.title}", "", f"Written by `python -m {self.module}`; nothing here is typed by hand."]
        for told in (known[name] for name in self.sections if name in known):
            software = ", ".join(f"{package} {version}" for package, version in told["versions"].items())
            lines += ["", f"## {told['title']}", "", *markdown(told["table"]), ""]
            lines += [line for remark in told.get("remarks", ()) for line in (remark, "")]
            lines.append(f"`{told['command']}`, {told['date']}, {told['cores']} cores; {software}")
        return "\n".join(lines) + "\n"


def markdown(table: Table) -> list[str]:
    """Return the lines of a table in markdown."""
    head, *rows = table if len(table) > 1 else [["" for _ in table[0]], *table]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def quantiles(waits: Sequence[float]) -> list[str]:
    """Return p50 and p95 as text."""
    ordered = sorted(waits)
    return [f"{ordered[int(len(ordered) * share)]:.2f}" for share in (0.5, 0.95)]
