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
    ("machine", "phases"),
    [(session.SESSION_MACHINE, session.SessionPhase), (rounds.ROUND_MACHINE, rounds.RoundPhase)],
)
def test_the_page_has_every_phase_and_every_event(machine, phases):
    written = (DOCS / "reference" / "states.md").read_text(encoding="utf-8")
    for phase in phases:
        assert f"{phase.value}" in machine.diagram()
    for rule in machine.rules:
        assert f"| {rule.event.__name__} |" in written
        assert rule.effect in written
