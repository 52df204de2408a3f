"""Equal budgets: the accuracy that each method had by the time a number of bytes, joules, FLOPs or seconds was spent.

Bytes, joules and FLOPs are those of all devices together; seconds are the run's, on the boards' clock in a simulation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.record.units import human_bytes, human_flops, human_joules, human_seconds
from coordinator.results.comparison.compare import ALONE, Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_table import spread_text
from coordinator.results.figures.intervals import Spread, spread_of
from coordinator.results.figures.metrics import Point
from coordinator.results.report.tables import Column, Table
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.requests import MeasuredModel


@dataclass(frozen=True, slots=True)
class BudgetKind:
    """The quantity that a budget limits."""

    unit: str
    say: Callable[[float], str]
    spent: Callable[[Point, int], float]
    """Return the amount spent up to a point of a run with this many devices."""


KINDS: Mapping[str, BudgetKind] = {
    "bytes": BudgetKind("B", human_bytes, lambda point, devices: point.bytes_per_device * devices),
    "joules": BudgetKind("J", human_joules, lambda point, _devices: point.device_j),
    "flops": BudgetKind("FLOP", human_flops, lambda point, _devices: point.device_flops),
    "seconds": BudgetKind("s", human_seconds, lambda point, _devices: point.time_s),
}
_PREFIXES: Mapping[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIMES: Mapping[str, float] = {"min": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<prefix>[kMGTP]?)(?P<unit>B|J|FLOP|s|min|h)")


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget: how much of what."""

    kind: str
    """One of KINDS."""
    amount: float

    @property
    def text(self) -> str:
        """The budget as a heading writes it: `5.0 MB`."""
        return KINDS[self.kind].say(self.amount)


def read_budget(text: str) -> Budget:
    """Read a budget such as 5MB, 100J, 2TFLOP, 60s or 2h.  Raises UsageError."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None or float(match["number"]) <= 0:
        raise UsageError(f"--at {text}: expected a number with a unit, such as 5MB, 100J, 2TFLOP, 60s, 10min or 2h")
    number, prefix, unit = float(match["number"]), match["prefix"], match["unit"]
    if unit in _TIMES and not prefix:
        return Budget("seconds", number * _TIMES[unit])
    for kind, each in KINDS.items():
        if each.unit == unit:
            return Budget(kind, number * _PREFIXES[prefix])
    raise UsageError(f"--at {text}: no such unit; there are B, J, FLOP and s with k, M, G, T, and min and h")


def accuracy_at(trial: Trial, budget: Budget, model: MeasuredModel = "personal") -> float | None:
    """The last accuracy measured within the budget, or None without one, or if what is spent is unmeasured.

    A run that ended with less counts with its last accuracy.
    """
    kind, devices = KINDS[budget.kind], len(trial.result.devices)
    points = trial.result.points(model)
    if not points or not kind.spent(points[-1], devices):
        return None
    within = [point.accuracy for point in points if kind.spent(point, devices) <= budget.amount]
    return within[-1] if within else None


def at_budget(line: MethodRuns, budget: Budget, model: MeasuredModel = "personal") -> Spread | None:
    """The spread over the seeds of the accuracy at a budget, or None unless every seed has one."""
    found = [accuracy_at(trial, budget, model) for trial in line.trials]
    return None if None in found else spread_of(found)


def common_budgets(comparison: Comparison) -> tuple[Budget, ...]:
    """Return one budget of each kind: what the cheapest method spent in all, so that every method reached it."""
    found = []
    for name, kind in KINDS.items():
        totals = [spent for line in comparison.lines if line.method != ALONE and (spent := _total(line, kind))]
        if totals:
            found.append(Budget(name, min(totals)))
    return tuple(found)


def budget_table(comparison: Comparison, budgets: Sequence[Budget] = ()) -> Table:
    """The accuracy of each line at each budget, in percent.  budgets: default: those that all methods reach."""
    chosen = tuple(budgets) or common_budgets(comparison)
    model = budget_model(comparison)
    rows = (
        (line.method, *(spread_text(at_budget(line, budget, model)) for budget in chosen)) for line in comparison.lines
    )
    return Table(
        columns=(Column("method"), *(Column(f"at {budget.text}", right=True) for budget in chosen)),
        rows=tuple(rows),
        notes=tuple(_notes(comparison, bool(budgets))),
    )


def budget_model(comparison: Comparison) -> MeasuredModel:
    """The model whose accuracies are meant: the global one where the comparison's metric is about it."""
    return "global" if comparison.metric.startswith(("gm", "global")) else "personal"


def _notes(comparison: Comparison, chosen: bool) -> Iterable[str]:
    which = "global models" if budget_model(comparison) == "global" else "the devices' own models"
    yield f"accuracy of {which} in percent, measured last before all devices together had spent so much"
    if not chosen:
        yield "each budget is what the cheapest method spent in all, so that no method is cut short by its end"


def _total(line: MethodRuns, kind: BudgetKind) -> float:
    """Return the spending of a line's runs at their last measured round, mean over the seeds; 0 if unmetered."""
    ends = [(points[-1], len(trial.result.devices)) for trial in line.trials if (points := trial.result.points())]
    spent = spread_of(kind.spent(point, devices) for point, devices in ends)
    return spent.mean if spent else 0.0
