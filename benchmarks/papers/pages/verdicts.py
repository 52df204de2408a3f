"""The one rule of the papers' pages: what a sign's differences over seeds let one say.

Intervals and p values are those of `edge-sdk compare` (Student's t over paired differences).  All signs of a table are
corrected together, by Benjamini and Hochberg (1995): of the signs that a table calls shown or against, at most one in
twenty may be expected to be wrong, if they are independent or rise together.  A sign that repeats another one is not
counted and not corrected for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.papers.pages.signs import NOT_RUN, Sign

SHOWN, LEANING, LEVEL, OPEN, ONE_SEED = "shown", "leaning", "level", "open", "one seed"
LEANING_AGAINST, AGAINST = "leaning against", "against"
COUNTED_WITH = "counted with"
VERDICTS = (SHOWN, LEANING, LEVEL, OPEN, LEANING_AGAINST, AGAINST, ONE_SEED, NOT_RUN)
"""The verdicts of signs that count, in the order of the page."""
TESTED_FROM = 3
"""The number of seeds from which on a sign is tested."""
ERROR_RATE = 0.05
"""The share of wrong ones that may be expected among the signs that a table calls shown or against."""
PROCESSOR_SD = 0.005
"""What another processor moves an accuracy by, as a fraction: the root mean square over the rows that were run on two
(rows/two-processors.csv), of the table and figure that move most."""
MARGIN = 0.014
"""Level: a difference within this, as a fraction; the floor of one seed."""
MARGIN_TIMES = math.log(1.1)
"""The floor and the margin of a ratio of what was spent, as a logarithm."""
_TWO_SIDED = 1.96


@dataclass(frozen=True)
class Judged:
    """A sign with what it lets one say."""

    sign: Sign
    verdict: str
    """One of VERDICTS, or COUNTED_WITH."""
    corrected: float | None
    """The p value after the correction over the table, or None where the sign was not tested."""

    @property
    def says(self) -> str:
        """The verdict on the page."""
        return f"{COUNTED_WITH} {self.sign.counted_with}" if self.verdict == COUNTED_WITH else self.verdict


def judged(signs: Sequence[Sign]) -> list[Judged]:
    """Return all signs of a table with their verdicts."""
    tested = [sign for sign in signs if len(sign.gains) >= TESTED_FROM and not sign.counted_with]
    corrected = dict(zip(map(id, tested), benjamini_hochberg([_p_value(sign) for sign in tested]), strict=True))
    return [Judged(sign, _verdict(sign, corrected.get(id(sign))), corrected.get(id(sign))) for sign in signs]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return each p value corrected for all of them: min over j >= i of p_(j) n / j, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found, least = [0.0] * len(p_values), 1.0
    for rank in range(len(order), 0, -1):
        at = order[rank - 1]
        least = min(least, p_values[at] * len(order) / rank)
        found[at] = least
    return found


def floor(sign: Sign) -> float:
    """Return the mean difference below which nothing is shown: what processors may move it by, in 95 of 100 cases."""
    if sign.is_ratio:
        return MARGIN_TIMES
    return _TWO_SIDED * PROCESSOR_SD * math.sqrt(sign.runs / max(1, len(sign.gains)))


def _verdict(sign: Sign, corrected: float | None) -> str:
    spread = sign.spread
    if sign.counted_with:
        return COUNTED_WITH
    if spread is None:
        return NOT_RUN
    above = abs(spread.mean) >= floor(sign)
    if corrected is not None:
        if above and corrected <= ERROR_RATE:
            return SHOWN if spread.mean > 0 else AGAINST
        if _is_level(sign):
            return LEVEL
    if spread.interval is None:
        return ONE_SEED
    low, high = spread.interval
    if not above or low <= 0 <= high:
        return OPEN
    return LEANING if spread.mean > 0 else LEANING_AGAINST


def missed(judged: Judged) -> bool:
    """Whether a sign is level, or against the claim, in the mean at least, by more than its floor."""
    spread = judged.sign.spread
    if spread is None or judged.verdict == COUNTED_WITH:
        return False
    return judged.verdict == LEVEL or spread.mean <= -floor(judged.sign)


def other_corrections(tables: Sequence[Sequence[Judged]]) -> dict[int, Judged]:
    """Return the signs, by `id` of their Sign, that a correction over all tables at once would move."""
    signs = [each.sign for table in tables for each in table]
    alone = {id(each.sign): each.verdict for table in tables for each in table}
    return {id(each.sign): each for each in judged(signs) if each.verdict != alone[id(each.sign)]}


def _is_level(sign: Sign) -> bool:
    """Whether two one-sided tests at 5 % put the mean difference within the margin: its 90 % interval lies in there."""
    interval = None if sign.spread is None else sign.spread.interval_at(1 - 2 * ERROR_RATE)
    margin = MARGIN_TIMES if sign.is_ratio else MARGIN
    return interval is not None and -margin < interval[0] <= interval[1] < margin


def _p_value(sign: Sign) -> float:
    found = None if sign.spread is None else sign.spread.p_value
    return 1.0 if found is None else found
