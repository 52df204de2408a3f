"""What was found of each claim: the differences of two lines, seed by seed, from the rows that stand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import DEVIATIONS, SEEDS, SPENT, Claim, Setting, Table, Trend
from coordinator.results.comparison.compare_table import difference_text
from coordinator.results.figures.intervals import Spread, spread_of

NOT_RUN = "not run yet"
PAIR_RUNS, TREND_RUNS = 2, 4
"""The runs that a difference of a seed is made of."""

Found = Mapping[str, Sequence[cells.Row]]
"""The rows of each line of a setting, one for each finished seed in the order of the seeds."""


@dataclass(frozen=True)
class Sign:
    """A claim for one figure and setting, with what was found."""

    what: str
    """The claim in words."""
    setting: str
    figure: str
    reported: float | None
    """The authors' difference, in points."""
    gains: tuple[float, ...]
    """The difference of each seed that both lines have, as a fraction; of SPENT the logarithm of the ratio.
    Above 0: as claimed."""
    why: str = ""
    """Where it misses: what was found."""
    counted_with: str = ""
    """The claim in words that says the same, and counts."""
    runs: int = PAIR_RUNS
    """The runs that each difference is made of."""

    @property
    def spread(self) -> Spread | None:
        """The mean over seeds, as `edge-sdk compare` has it, or None where nothing was run."""
        return spread_of(self.gains)

    @property
    def is_ratio(self) -> bool:
        """Whether the lines are compared by ratio."""
        return self.figure in SPENT

    @property
    def found(self) -> str:
        """The mean difference in points with its 95 % interval as `edge-sdk compare` prints it, and how many seeds."""
        spread = self.spread
        if spread is None:
            return NOT_RUN
        seeds = f"{spread.count} seeds" if spread.count > 1 else "one seed"
        return f"{self._times(spread) if self.is_ratio else difference_text(spread)}, {seeds}"

    @staticmethod
    def _times(spread: Spread) -> str:
        ends = "" if spread.interval is None else " [{:.2g}, {:.2g}]".format(*map(math.exp, spread.interval))
        return f"{math.exp(spread.mean):.3g} times{ends}"


def found_in(table: Table, setting: Setting, kept: Sequence[cells.Row]) -> Found:
    """Return the rows of every line of a setting, whatever seeds were planned."""
    return {
        line.name: [
            row for seed in SEEDS if (row := cells.row_of(cells.Cell(table, setting, line, seed), kept)) is not None
        ]
        for line in table.lines_of(setting)
    }


def signs(table: Table, kept: Sequence[cells.Row]) -> list[Sign]:
    """Return every claim of a table for each of its figures and settings, then its trends and falls."""
    found = {setting.name: found_in(table, setting, kept) for setting in table.settings}
    return [*_claims(table, found), *_trends(table, found), *_falls(table, found)]


def gains(found: Found, better: str, worse: str, figure: str, than: str = "") -> dict[int, float]:
    """Return by how much one line is better than another in a figure, for each seed that both have."""
    if figure in SPENT:
        return _times_less(found[better], found[worse], figure)
    high, low = _by_seed(found[better], figure), _by_seed(found[worse], than or figure)
    return {seed: high[seed] - low[seed] for seed in high if seed in low}


def _claims(table: Table, found: Mapping[str, Found]) -> Iterator[Sign]:
    for claim in table.claims:
        for setting in table.settings_of(claim):
            for figure, than in claim.pairs:
                differences = gains(found[setting.name], claim.better, claim.worse, figure, than)
                told = _told(setting, claim, figure, than)
                if told is not None and told < 0:
                    continue  # nobody claims what the authors' own figures deny
                same = claim.better == claim.worse
                what = f"{claim.better}: {figure} over {than}" if same else f"{claim.better} over {claim.worse}"
                counted = " over ".join(claim.counted_with or ())
                yield Sign(what, setting.name, figure, told, tuple(differences.values()), claim.why, counted)


def _trends(table: Table, found: Mapping[str, Found]) -> Iterator[Sign]:
    settings = {setting.name: setting for setting in table.settings}
    for trend in table.trends:
        first, last = trend.settings[0], trend.settings[-1]
        for figure in trend.figures:
            before, after = (gains(found[name], trend.better, trend.worse, figure) for name in (first, last))
            grown = tuple(after[seed] - before[seed] for seed in after if seed in before)
            low, high = (_told_by(settings[name], trend, figure) for name in (first, last))
            told = high - low if low is not None and high is not None else None
            what = f"the gap of {trend.better} over {trend.worse} grows"
            yield Sign(what, f"{first} to {last}", figure, told, grown, trend.why, runs=TREND_RUNS)


def _falls(table: Table, found: Mapping[str, Found]) -> Iterator[Sign]:
    for fall in table.falls:
        first, last = fall.settings[0], fall.settings[-1]
        for figure in fall.figures:
            before, after = (_by_seed(found[name][fall.line], figure) for name in (first, last))
            fallen = tuple(before[seed] - after[seed] for seed in before if seed in after)
            yield Sign(f"{fall.line} falls", f"{first} to {last}", figure, None, fallen, fall.why)


def _told(setting: Setting, claim: Claim, figure: str, than: str) -> float | None:
    better, worse = (setting.reported.get(line, {}) for line in (claim.better, claim.worse))
    if figure not in better or than not in worse:
        return None
    return (better[figure] - worse[than]) * (-1 if figure in DEVIATIONS else 1)


def _told_by(setting: Setting, trend: Trend, figure: str) -> float | None:
    return _told(setting, Claim(trend.better, trend.worse, (figure,)), figure, figure)


def _by_seed(rows: Sequence[cells.Row], figure: str) -> dict[int, float]:
    """Return a figure of each seed that has it; with DEVIATIONS its negative, so that the higher one is better."""
    if figure == "fm_sd":
        return {int(row["seed"]): -math.sqrt(float(row["global_fm"])) for row in rows if row.get("global_fm")}
    sign = -1 if figure in DEVIATIONS else 1
    return {int(row["seed"]): sign * float(row[figure]) for row in rows if row.get(figure)}


def _times_less(better: Sequence[cells.Row], worse: Sequence[cells.Row], of: str) -> dict[int, float]:
    """Return for each seed log(what one line spent / what the other did) until the highest target that both reached."""
    ours, theirs = ({int(row["seed"]): reached(row) for row in rows} for rows in (better, worse))
    found = {}
    for seed in ours.keys() & theirs.keys():
        both = ours[seed].keys() & theirs[seed].keys()
        if both:
            target = max(both, key=float)
            found[seed] = math.log(theirs[seed][target][of] / ours[seed][target][of])
    return dict(sorted(found.items()))


def reached(row: cells.Row) -> dict[str, dict[str, float]]:
    """Return what a row's run had spent when it reached each target."""
    found: dict[str, dict[str, float]] = json.loads(row[cells.REACHED]) if row.get(cells.REACHED) else {}
    return found
