"""Text of a sweep for the terminal: for each condition, the comparison and each method's chosen settings."""

from __future__ import annotations

from coordinator.record.units import percent, printable
from coordinator.results.comparison.compare import setting_text
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.report.tables import plain_text
from edge_sdk.terminal import indented
from edge_sim.studies.sweep import Candidate, Condition, Sweep


def sweep_text(found: Sweep, room: int | None = None) -> str:
    """Return the table of each condition as aligned text, followed by the methods' chosen settings.

    room: the width of the tables in characters, or None for any.
    """
    return "\n".join(_condition(condition, room) for condition in found.conditions)


def _condition(condition: Condition, room: int | None) -> str:
    heading = f"{printable(setting_text(condition.values))}:\n\n" if condition.values else ""
    choices = [_choice(condition, candidate) for candidate in condition.chosen.values() if candidate.setting]
    lines = "".join(f"{indented(each, room)}\n" for each in choices)
    chosen = f"chosen on the validation part:\n{lines}" if choices else ""
    table = compare_table(condition.comparison, everything="trials.csv")
    return f"{heading}{plain_text(table, room)}{chosen}"


def _choice(condition: Condition, candidate: Candidate) -> str:
    method = candidate.line.method
    tried = [other for other in condition.candidates if other.line.method == method]
    pruned = sum(other.pruned for other in tried)
    early = f", {pruned} of them ended early" if pruned else ""
    found = candidate.validation
    validated = "never measured" if found is None else percent(found.mean)
    setting = printable(setting_text(candidate.setting))
    return f"{method}: {setting} (validation {validated}, best of {len(tried)}{early})"
