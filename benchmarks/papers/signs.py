"""Whether a claimed sign is shown: the differences of two lines, seed by seed, from the rows that stand."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.papers import cells
from benchmarks.papers.kinds import SEEDS, Claim, Setting, Table, Trend

NOT_RUN = "not run yet"
SHOWN, MISSED = "shown", "not shown"
HOW_SHOWN = "shown in every seed", "shown in the mean", "shown in the one seed run"
"""How a sign is shown: under several seeds that all agree, or of which more agree than disagree, or under one."""
UNDECIDED = "in the one seed run, less than seeds differ by"

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
    """The difference of each seed that both lines have, as a fraction."""
    why: str

    @property
    def verdict(self) -> str:
        """SHOWN where the mean difference is above 0 and more seeds agree than disagree, MISSED, or NOT_RUN."""
        if not self.gains:
            return NOT_RUN
        for_it, against = (sum(sign * gain > 0 for gain in self.gains) for sign in (1, -1))
        return SHOWN if statistics.fmean(self.gains) > 0 and for_it > against else MISSED

    @property
    def shown_by(self) -> str:
        """Which of HOW_SHOWN it is; empty where it is not shown."""
        if self.verdict != SHOWN:
            return ""
        every, mean, one = HOW_SHOWN
        if len(self.gains) == 1:
            return one
        return every if min(self.gains) > 0 else mean

    @property
    def found(self) -> str:
        """The mean difference in points, its deviation over seeds, and how many seeds agree."""
        if not self.gains:
            return NOT_RUN
        mean, agree = 100 * statistics.fmean(self.gains), sum(gain > 0 for gain in self.gains)
        if len(self.gains) == 1:
            return f"{mean:+.1f}, one seed"
        equal = sum(gain == 0 for gain in self.gains)
        told = f"{agree} of {len(self.gains)} seeds" + (f", {equal} equal" if equal else "")
        return f"{mean:+.1f} ± {100 * statistics.stdev(self.gains):.1f}, {told}"


def why_missed(sign: Sign, others: Sequence[Sign]) -> str:
    """Return why a sign is not shown: what was found, or that one seed says too little, as those of its table differ.

    others: all signs of its table.
    """
    if not sign.why and is_small(sign, others):
        return f"one seed; over seeds, such differences of this table vary by up to ± {100 * _spread(sign, others):.1f}"
    return sign.why or "not known"


def how_shown(sign: Sign, others: Sequence[Sign]) -> str:
    """Return how a sign of a table with these signs is shown, or that it is not, or was not run."""
    return UNDECIDED if sign.shown_by and is_small(sign, others) else sign.shown_by or sign.verdict


def is_small(sign: Sign, others: Sequence[Sign]) -> bool:
    """Whether a sign rests on one seed, and is within what seeds differ by."""
    return len(sign.gains) == 1 and abs(sign.gains[0]) <= _spread(sign, others)


def _spread(sign: Sign, others: Sequence[Sign]) -> float:
    """Return the largest deviation over seeds of any difference of this figure."""
    alike = (other.gains for other in others if other.figure == sign.figure and len(other.gains) > 1)
    return max(map(statistics.stdev, alike), default=0.0)


def found_in(table: Table, setting: Setting, kept: Sequence[cells.Row]) -> Found:
    """Return the rows of every line of a setting, whatever seeds were planned."""
    return {
        line.name: [
            row for seed in SEEDS if (row := cells.row_of(cells.Cell(table, setting, line, seed), kept)) is not None
        ]
        for line in table.lines_of(setting)
    }


def signs(table: Table, kept: Sequence[cells.Row]) -> list[Sign]:
    """Return every claim of a table for each of its figures and settings, then its trends."""
    found = {setting.name: found_in(table, setting, kept) for setting in table.settings}
    return [*_claims(table, found), *_trends(table, found)]


def gains(found: Found, better: str, worse: str, figure: str, than: str = "") -> dict[int, float]:
    """Return the difference of a figure between two lines for each seed that both have."""
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
                yield Sign(what, setting.name, figure, told, tuple(differences.values()), claim.why)


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
            yield Sign(what, f"{first} to {last}", figure, told, grown, trend.why)


def _told(setting: Setting, claim: Claim, figure: str, than: str) -> float | None:
    better, worse = (setting.reported.get(line, {}) for line in (claim.better, claim.worse))
    return better[figure] - worse[than] if figure in better and than in worse else None


def _told_by(setting: Setting, trend: Trend, figure: str) -> float | None:
    return _told(setting, Claim(trend.better, trend.worse, (figure,)), figure, figure)


def _by_seed(rows: Sequence[cells.Row], figure: str) -> dict[int, float]:
    return {int(row["seed"]): float(row[figure]) for row in rows if row.get(figure)}
