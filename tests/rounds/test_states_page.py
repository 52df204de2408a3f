"""docs/reference/states.md shows the tables as they run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coordinator import rounds
from edge_sdk.device import session

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_tables_say():
    written = (DOCS / "reference" / "states.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "gen_states.py"))["page"](), "run docs/gen_states.py"


@pytest.mark.parametrize(
    ("phases", "machine"), [(session.SessionPhase, session.SESSION_MACHINE), (rounds.Phase, rounds.MACHINE)]
)
def test_the_page_has_every_phase_and_every_event(phases, machine):
    written = (DOCS / "reference" / "states.md").read_text(encoding="utf-8")
    for phase in phases:
        assert phase.value in machine.diagram()
    for rule in machine.rules:
        assert f"| {rule.event.__name__} |" in written
        assert rule.effect in written
