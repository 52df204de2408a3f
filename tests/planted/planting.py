"""Plants a bug: a copy of the repository in which one text is replaced, and the test that must fail there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_EVERYWHERE = shutil.ignore_patterns(
    ".git", ".venv", ".cache", ".hypothesis", ".*_cache", "*.egg-info", "node_modules"
)  # compiled modules are copied: only the file with the bug is compiled again
_IN = {ROOT: {"runs", "data", "build", "dist", "site"}, ROOT / "docs": {"results", "assets"}}
FAILED, PASSED = 1, 0
"""Exit codes of pytest; all others say that it could not run the tests."""


@dataclass(frozen=True)
class PlantedBug:
    """One mistake that somebody could make, and who must notice."""

    name: str
    file: str
    """Path of the file that it is made in, from the root of the repository."""
    old: str
    """A text that occurs once in the file."""
    new: str
    """What stands in its place."""
    test: str
    """The test that must fail: PATH::FUNCTION, without parameters."""
    promise: str = ""
    """The promise of docs/promises.md that the test checks; empty: none of these."""


def patched(bug: PlantedBug, root: Path = ROOT) -> str:
    """Return the file with the bug in it.  Raises ValueError, which names the bug, if it cannot be planted."""
    path = root / bug.file
    if not path.is_file():
        raise ValueError(f"{bug.name}: there is no {bug.file}; follow the code that the bug is about")
    text = path.read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise ValueError(
            f"{bug.name}: {bug.file} holds the text {text.count(bug.old)} times, not once: {bug.old!r}; "
            "follow the code that the bug is about"
        )
    if bug.old == bug.new:
        raise ValueError(f"{bug.name}: changes nothing")
    after = text.replace(bug.old, bug.new)
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise ValueError(f"{bug.name}: {bug.file} is no Python any more: {error}") from None
    return after


def left_out(folder: str, names: list[str]) -> set[str]:
    """What no test of a planted bug reads, for shutil.copytree."""
    return _EVERYWHERE(folder, names) | _IN.get(Path(folder), set()).intersection(names)


class Copy:
    """A copy of the repository, in which one bug at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        shutil.copytree(ROOT, self.root, ignore=left_out)

    def caught(self, bug: PlantedBug) -> None:
        """Raise AssertionError, with what pytest said, unless the bug's test fails while the bug is planted."""
        path = self.root / bug.file
        before = path.read_bytes()
        path.write_text(patched(bug, self.root), encoding="utf-8")
        try:
            code, said = self.run(bug.test)
        finally:
            path.write_bytes(before)
        assert code == FAILED, f"{bug.name}: {bug.test} did not notice (pytest ended with {code}):\n{said}"

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests in the copy, the long ones too, until the first that fails; return pytest's exit code and words."""
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--all", *tests]
        paths = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=self.root, env={**os.environ, **paths}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout[-4000:] + done.stderr[-2000:]
