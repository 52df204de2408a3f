"""The tests have teeth: each bug of the list can be planted, and its test fails on it.

A few of the bugs are planted in every run of the tests, all of them with `scripts/test --all`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import runpy

import planted_bugs
import planting
import pytest
from planting import Copy, PlantedBug

BUGS = planted_bugs.BUGS
ALWAYS = ("all devices draw the same batches", "an upload counts twice", "inference effort is counted twice")
"""Those that are planted in every run: each takes a process of its own, so these few are quick."""


@functools.cache
def functions(path: str) -> set[str]:
    tree = ast.parse((planting.ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_has_its_test(bug: PlantedBug) -> None:
    assert planting.patched(bug) != (planting.ROOT / bug.file).read_text(encoding="utf-8")
    path, _, name = bug.test.partition("::")
    assert name in functions(path), f"{bug.name}: {path} has no {name}"


def test_every_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert {bug.name for bug in BUGS} >= set(ALWAYS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"old": "a text that is not there"}, "0 times"),
        ({"old": "self"}, "times, not once"),
        ({"file": "edge_sdk/none.py"}, "there is no"),
        ({"new": BUGS[0].old}, "changes nothing"),
        ({"new": "[("}, "no Python any more"),
    ],
)
def test_a_bug_that_cannot_be_planted_any_more_is_named(changes: dict[str, str], words: str) -> None:
    bug = dataclasses.replace(BUGS[0], **changes)
    with pytest.raises(ValueError, match=f"{bug.name}: .*{words}"):
        planting.patched(bug)


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("planted"))


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug.name in ALWAYS else pytest.mark.long) for bug in BUGS],
    ids=lambda bug: bug.name,
)
def test_the_test_of_a_planted_bug_fails(copy: Copy, bug: PlantedBug) -> None:
    copy.caught(bug)


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_a_bug_the_same_tests_pass_in_the_copy(copy: Copy) -> None:
    """Else they could fail there for any reason."""
    code, said = copy.run(*dict.fromkeys(bug.test for bug in BUGS))
    assert code == planting.PASSED, said


@pytest.mark.processes
@pytest.mark.long
def test_a_bug_that_nobody_notices_is_told(copy: Copy) -> None:
    bug = dataclasses.replace(BUGS[0], test="tests/protocol/test_topics.py")
    with pytest.raises(AssertionError, match="did not notice"):
        copy.caught(bug)


def test_the_page_lists_every_bug() -> None:
    docs = planting.ROOT / "docs"
    written = (docs / "reference" / "planted-bugs.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(docs / "gen_planted_bugs.py"))["page"](), "run docs/gen_planted_bugs.py"
