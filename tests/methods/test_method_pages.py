"""A method's page in docs/reference/methods says what its contract says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.projects.methods_command import catalogue_text, describe_methods

PAGES = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "docs/reference/methods").glob("*.md")}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_parameters_roles_and_terms_are_those_of_the_method(name: str) -> None:
    method, page = load_method(name)(), PAGES[name]
    section = page.split("## Parameters")[1].split("\n## ")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    assert table == {key: str(value) for key, value in method.table.items()}
    for row in method.exchanges:
        for way, roles in (("up", row.up), ("down", row.down)):
            for role, slot in roles.items():
                assert re.search(rf"^\| {way}.*`{role}` \| {slot.kind.__name__}", page, re.MULTILINE), role
    assert all(f"`{term}`" in page for term in method.terms - {"cross-entropy"})


def test_every_registered_method_has_a_page() -> None:
    assert set(PAGES) == set(method_names())


def test_the_catalogue_tells_what_each_method_asks_and_gives() -> None:
    text = catalogue_text(describe_methods())
    about = {part.split(":")[0]: part for part in text.split("\n\n")}
    assert "the federation's feature_dim" in about["fedproto"]
    assert re.search("weights +never leave", about["fedproto"])
    assert re.search("weights +of the last layer", about["fedssa"])
    assert "feature_dim" not in about["fedmd"]
    assert re.search("weights +leave .*; one architecture", about["fedavg"])
    assert re.search("weights +leave .*by architecture", about["feddf_al"])
