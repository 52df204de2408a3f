"""A sweep in the terminal: for every condition, the comparison, and what each method chose."""

from __future__ import annotations

from coordinator.report import comparison_table
from coordinator.report.units import percent, printable
from edge_sim.sweep import Candidate, Condition, Sweep, said


def sweep_text(found: Sweep) -> str:
    """Aligned plain text."""
    return "\n".join(map(_condition, found.conditions))


def _condition(condition: Condition) -> str:
    heading = f"{printable(said(condition.values))}:\n\n" if condition.values else ""
    choices = [_choice(condition, candidate) for candidate in condition.chosen.values() if candidate.setting]
    chosen = "chosen on the validation part:\n" + "".join(choices) if choices else ""
    return f"{heading}{comparison_table.render(condition.comparison)}{chosen}"


def _choice(condition: Condition, candidate: Candidate) -> str:
    method = candidate.line.method
    number = sum(other.line.method == method for other in condition.candidates)
    found = candidate.validation
    validated = "never measured" if found is None else percent(found.mean)
    return f"  {method}: {printable(said(candidate.setting))} (validation {validated}, best of {number})\n"
