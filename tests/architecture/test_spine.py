"""The spine: the few files that carry the idea of the system, as docs/explanation/read-the-code.md lists them."""

from __future__ import annotations

import ast
import re

import pytest
from imports import ROOT, imports

PAGE = (ROOT / "docs" / "explanation" / "read-the-code.md").read_text(encoding="utf-8")
SPINE = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| \S", PAGE, re.MULTILINE)
"""The files in reading order; each has a sentence."""
DOORS = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \| \S", PAGE, re.MULTILINE)
"""A file beside the spine, and the one name in it to read."""
MOST_LINES = 6000
PARTS = (
    "edge_sdk/protocol",
    "edge_sdk/device",
    "edge_sdk/methods",
    "coordinator/rounds",
    "coordinator/serving",
    "edge_sim",
)
RINGS = (
    *("coordinator.lab", "coordinator.broker", "edge_sim.lab", "edge_sdk.identity"),
    "coordinator.results",
    *("coordinator.trace", "edge_sim.replay", "edge_sdk.tools", "edge_sim.projects", "edge_sim.notebook"),
    *("edge_sim.bench", "edge_sim.studies", "edge_sim.shards", "edge_sim.over_broker"),
)
"""Packages that no file of the spine imports, at the top, inside a function, or for its types."""


def rings_of(source: str) -> list[str]:
    return [found.name for found in imports(source) if f"{found.name}.".startswith(tuple(f"{ring}." for ring in RINGS))]


def test_the_page_leads_through_every_part_of_the_system() -> None:
    assert len(SPINE) == len(set(SPINE))
    assert not [part for part in PARTS if not any(path.startswith(f"{part}/") for path in SPINE)]


@pytest.mark.parametrize("path", SPINE)
def test_a_file_of_the_spine_exists_and_imports_no_ring(path: str) -> None:
    assert rings_of((ROOT / path).read_text(encoding="utf-8")) == []


def test_the_spine_stays_within_its_bound() -> None:
    lines = sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in SPINE)
    assert lines <= MOST_LINES, f"{lines} lines: move what is no part of the idea out, or leave a file out of the page"
    assert f"at most {MOST_LINES:,} lines" in PAGE


@pytest.mark.parametrize(("path", "name"), DOORS)
def test_what_the_page_names_in_another_file_stands_there(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = (ast.FunctionDef, ast.ClassDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    assert path not in SPINE


def test_the_page_names_every_ring_and_each_is_there() -> None:
    for ring in RINGS:
        folder = ring.replace(".", "/")
        assert (ROOT / folder).is_dir()
        assert f"`{folder}`" in PAGE


@pytest.mark.parametrize(
    "planted",
    [
        "from coordinator.trace.log import TraceWriter",
        "from coordinator import results",
        "def f():\n    import edge_sdk.identity.sealing",
        "if TYPE_CHECKING:\n    from edge_sim.studies import tune",
    ],
)
def test_a_planted_import_of_a_ring_is_found(planted: str) -> None:
    assert len(rings_of(planted)) == 1
    assert rings_of("from coordinator.record import remarks") == []
