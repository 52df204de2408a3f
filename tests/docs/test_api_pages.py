"""Every public name has its place in docs/reference/api, and words that say what it is."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import edge_sdk

API = Path(__file__).parents[2] / "docs" / "reference" / "api"
NAMED = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in sorted(API.glob("*.md"))), re.MULTILINE)
PUBLIC = {
    "edge_sdk": {*edge_sdk.__all__} - {"__version__"},
    "edge_sdk.methods": {*importlib.import_module("edge_sdk.methods").__all__},
    "edge_sim": {*importlib.import_module("edge_sim").__all__},
}
ALIASES = {"Stage", "Start", "Up", "Weighting"}
"""Names for types that need no page; the classes that use them say what they are."""


def test_every_public_name_has_its_place() -> None:
    whole = {name for name in NAMED if name in PUBLIC}  # all of a package's names have their place
    wanted = {f"{package}.{name}" for package in PUBLIC.keys() - whole for name in PUBLIC[package] - ALIASES}
    # these stand among all errors
    errors = {"Damaged", "EdgeError", "Refused", "RunFailed", "StoreError", "UsageError"}
    assert wanted - set(NAMED) == {f"edge_sdk.{name}" for name in errors}
    assert "edge_sdk.errors" in NAMED
    assert len(NAMED) == len(set(NAMED))


def found(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", NAMED)
def test_it_says_what_it_is(name: str) -> None:
    if "torch" in name.lower():
        pytest.importorskip("torch")
    item = found(name)
    assert inspect.getdoc(item)
    if inspect.isclass(item):
        for key, member in vars(item).items():
            if not key.startswith("_") and inspect.isfunction(member) and member.__module__.startswith("edge_sdk"):
                assert inspect.getdoc(getattr(item, key)), f"{name}.{key}"
