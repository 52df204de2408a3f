"""A room holds few files, so that a reader finds each thing where they look first."""

from collections import Counter
from pathlib import Path

import pytest
from imports import PACKAGES, ROOT

MOST_FILES = 16
CATALOGUES = {
    "edge_sdk/methods": "one file a paper: readers look for the paper's name",
}
"""Folders that list things of one kind, which may hold more, and why."""


def sizes(paths: list[Path]) -> Counter[str]:
    """Folder -> its modules, without `__init__`."""
    return Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")


def test_a_planted_seventeenth_file_is_found() -> None:
    assert sizes([Path(f"a/m{n}.py") for n in range(17)] + [Path("a/__init__.py")])["a"] > MOST_FILES


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_holds_more_files_than_a_reader_surveys(package: str) -> None:
    found = sizes([path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")])
    assert {room: count for room, count in found.items() if count > MOST_FILES and room not in CATALOGUES} == {}
