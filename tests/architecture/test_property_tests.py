"""Property tests try the same examples in each run, and other ones with --all; none of them decides that for itself."""

from __future__ import annotations

import pytest
from hypothesis import settings
from imports import ROOT


def test_the_examples_are_new_ones_with_all_alone(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--hypothesis-profile"):
        pytest.skip("another profile was asked for")
    found = settings()
    assert found.derandomize is not request.config.getoption("--all")
    assert found.deadline is None


def test_the_profile_that_explores_says_how_to_repeat() -> None:
    found = settings.get_profile("new_examples")
    assert (found.derandomize, found.print_blob) == (False, True)


def test_no_test_fixes_its_own_examples() -> None:
    fixed = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if "derandomize" in path.read_text(encoding="utf-8")
        and path.name not in ("conftest.py", "properties.py", "test_property_tests.py")
    ]
    assert fixed == []
