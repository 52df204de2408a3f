"""The page docs/results/papers.md: ten headline claims, verdicts by table, causes, and what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import markdown
from benchmarks.papers.pages.causes import CAUSES, Pair
from benchmarks.papers.pages.figures import FOLDER as PICTURES
from benchmarks.papers.pages.paper_page import NAMES, paper_page
from benchmarks.papers.pages.signs import Sign, found_in, gains, signs
from benchmarks.papers.pages.verdicts import (
    COUNTED_WITH,
    ERROR_RATE,
    MARGIN,
    PROCESSOR_SD,
    TESTED_FROM,
    VERDICTS,
    Judged,
    judged,
    other_corrections,
)
from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import Headline, Paper, Table

HOUR_S = 3600
ROWS = "rows"
"""The folder of the CSV files, beside the papers' pages."""
HEAD = """# The papers' tables

The claims of five papers, beside the results of this implementation at a smaller scale. Compare the signs of the
differences, not the values. Each paper has a page with its claims, every value, and the authors' figures.
`python -m benchmarks.papers --page` writes all of it from the rows of `papers/rows/TABLE.csv`, and
`python -m benchmarks.papers` first runs the missing rows ([how](../../benchmarks/papers/README.md)).
"""
RULE = """## When a sign is called shown

A sign is claimed if the authors' text or tables put one method above another. Claims that their own figures deny do not
count; claims that they show on other data do. Each sign is a mean over seeds of paired differences, in points of
accuracy, with its 95 % interval as `edge-sdk compare` prints it. The rule is the same on every page:

| verdict | rule |
| --- | --- |
| shown | from {tested} seeds on; significant at {rate:.0%} after the correction; the mean is above the floor |
| level | from {tested} seeds on; an equivalence test (two one-sided t tests): within ± {margin:.1f} points |
| against | as shown, below 0 |
| leaning, leaning against | the interval excludes 0 and the mean is beyond the floor, but not after the correction |
| open | the interval contains 0, or the mean is within the floor: more seeds are needed |
| one seed | one difference, which alone shows nothing |
| not run yet | no seed has both rows; the paper's page has the command |

- *The correction* is Benjamini and Hochberg's over all tested signs of a table (column *p*). Of the signs that a table
  calls shown or against, at most one in twenty is expected to be wrong, if signs are independent or rise together. Some
  depend on each other otherwise: FedKF over FedAvg is the sum of FedKF over slots and of slots over FedAvg.
- *The floor* allows for the processor. Accuracies repeat bit for bit on processors with the same instruction set;
  others add in another order. Rows that were run on two ([which](papers/rows/two-processors.csv)) differ by {sd:.1f}
  points (root mean square, in the table and figure that differ most). So the floor is 1.96 · {sd:.1f} · √(2/n) points
  for n seeds: {floors}. The margin of *level* is that of one seed.
- *Equal signs count once.* Ditto's global model and CReFF's personal models are FedAvg's. In the one seed of table 5
  that they have, FedKF's FedProx and FedGKD differ from FedAvg by a third of a point of AMP at most (WLP: up to 2.4).
  Their signs are *counted with* those of FedAvg, and the correction leaves them out.
- *Claims without a table here*: those on CIFAR-100 (FedHKD, FedSSA, FedNH; FedSSA's +3.62 is one), SVHN (FedHKD,
  FedAL), CINIC-10, CelebA and TinyImageNet, because the data are missing; FedHKD over MOON, FedMD, FedAlign and itself
  without noise with 20 and 50 clients, and over FedMD and FedAlign at beta 0.2 and 5; FedNH in PM(V) over FedROD at
  beta 1, and over the further methods of its table 3; and seconds of training.
- *The arithmetic* of FedKD's truncation, FedAlign's terms, CReFF's server step and q-FFL agrees with plain autograd, as
  does that of the others (`tests/methods/test_audits.py`).
- Before 2026-11-26 the page counted 233 signs: 79 shown (56 in every seed, 23 in the mean), 88 in the one seed that was
  run, 29 in one seed by less than seeds differ, 37 not shown.
"""
COLUMNS = """## What the columns mean

Accuracies are in per cent. A line of a table is the mean over its seeds, so do not compare lines with different seeds
by eye. The signs compare seed by seed, over the seeds that both lines have.

- *GM*: the global model on the test that all share; *personal*: the devices' own models there, on average;
- *own test*: the devices' own models, each on its own test part;
- *PM(V)*, *PM(L)* (FedNH): as personal, but each class that a device holds has the same weight (V), or its share of the
  device's samples as weight (L); *deviation of PM(L)*: over the devices, in points; low is fair;
- *AMP*, *WLP* (FedKF): the global model on the devices' own test parts, the mean and the worst device. The global model
  is the mean of the newest upload of every device, taking part or not (*OCA*, all clients' aggregation; lines with
  `+slots`, and `fedkf`), or of the round's devices alone (*ACA*, active clients' aggregation). *FM* is the variance of
  the accuracy over the devices, its root their deviation in points: low is fair;
- *bytes, FLOPs to a target*: how many times fewer one line spent until the highest accuracy that both reached.

*Up, down*: bytes of a device in a round, with repetitions. In its first rounds, a device that needs more than 5 s
(`retry_s`) to answer is asked again. Before 2026-11-24 it was asked again in every round, and an upload that crossed
the question was sent twice. Rows from then have more bytes, down more than up, where *device s* is near 5 or more;
FedHKD's rows, FedNH's table 1 and FedSSA's targets are newer. *Device s*: seconds of computing of a device that takes
part in a round, by the profile of a Raspberry Pi 4. *Rounds*: methods that exchange after each step have more.

Any row again: the command at its table, with data as [benchmarks/papers](../../benchmarks/papers/README.md) says.
From all of it: [which method for which fleet](choose-a-method.md).
"""
CAUSES_HEAD = """## Causes, tested

Each guess explains why a sign misses, and has one run or test that could refute it.
"""


def pages(papers: Sequence[Paper], out: Path) -> dict[Path, str]:
    """Return the page and that of each paper from the CSV files; out: the page, whose folder has its name."""
    folder = out.with_suffix("")
    tables = [table for paper in papers for table in paper.tables]
    kept = {table.name: cells.rows(table, folder / ROWS) for table in tables}
    found = {table.name: judged(signs(table, kept[table.name])) for table in tables}
    parts = [
        HEAD,
        _headlines(papers, found),
        _rule(),
        _counted(papers, found, out),
        _causes(tables, kept),
        COLUMNS,
        _spent(tables, kept),
    ]
    texts = {out: "\n".join(part for part in parts if part)}
    for paper in papers:
        texts[folder / f"{paper.name}.md"] = paper_page(paper, kept, found, folder / PICTURES)
    return texts


def sign_of(headline: Headline, found: Mapping[str, Sequence[Judged]]) -> Judged:
    """Return the sign of a headline.  Raises StopIteration where its table has none."""
    wanted = (headline.what, headline.setting, headline.figure)
    return next(
        each for each in found[headline.table] if (each.sign.what, each.sign.setting, each.sign.figure) == wanted
    )


def _headlines(papers: Sequence[Paper], found: Mapping[str, Sequence[Judged]]) -> str:
    lines = [["paper", "headline claim", "what we see", "here, with its 95 % interval", "in one sentence"]]
    for paper in papers:
        for headline in paper.headlines:
            sign = sign_of(headline, found)
            where = f"{NAMES[headline.figure]}, {headline.setting}: {sign.sign.found}"
            link = f"[{paper.title}](papers/{paper.name}.md)"
            sentence = headline.sentence if sign.verdict == headline.verdict else ""
            lines.append([link, headline.claim, f"**{sign.says}**", where, sentence])
    return f"{markdown(lines)}\n{_other_correction(papers, found)}" if len(lines) > 1 else ""


def _other_correction(papers: Sequence[Paper], found: Mapping[str, Sequence[Judged]]) -> str:
    """Return which headlines would have another verdict if all tested signs of all pages were corrected at once."""
    moved = other_corrections([*found.values()])
    tested = sum(each.corrected is not None for table in found.values() for each in table)
    said = []
    for paper in papers:
        for headline in paper.headlines:
            sign = sign_of(headline, found)
            if (other := moved.get(id(sign.sign))) is not None:
                said.append(f"{paper.title}'s *{sign.sign.what}* {other.verdict} ({_p(sign)} to {_p(other)})")
    names = "; ".join(said) or "no verdict of these would change"
    return f"\nWith one correction over all {tested} tested signs of these pages, not one for each table: {names}.\n"


def _p(judged: Judged) -> str:
    return "untested" if judged.corrected is None else f"p {judged.corrected:.2g}"


def _rule() -> str:
    floors = ", ".join(f"{196 * PROCESSOR_SD * (2 / count) ** 0.5:.1f} for {count}" for count in (1, TESTED_FROM, 5))
    return RULE.format(tested=TESTED_FROM, rate=ERROR_RATE, margin=100 * MARGIN, sd=100 * PROCESSOR_SD, floors=floors)


def _counted(papers: Sequence[Paper], found: Mapping[str, Sequence[Judged]], out: Path) -> str:
    """Return how many claims of each table have which verdict."""
    lines = [["table", "signs that count", *VERDICTS, f"{COUNTED_WITH} another"]]
    total = Counter[str]()
    for paper in papers:
        for table in paper.tables:
            counts = Counter(each.verdict for each in found[table.name])
            total += counts
            lines.append([f"[{table.title}]({out.stem}/{paper.name}.md)", *_numbers(counts)])
    lines.append(["all", *_numbers(total)])
    return f"## Verdicts by table\n\n{markdown(lines)}\n"


def _numbers(counts: Counter[str]) -> list[str]:
    return [
        str(sum(counts[kind] for kind in VERDICTS)),
        *(str(counts[kind] or "") for kind in (*VERDICTS, COUNTED_WITH)),
    ]


def _causes(tables: Sequence[Table], kept: Mapping[str, Sequence[cells.Row]]) -> str:
    by_name = {table.name: table for table in tables}
    lines = [["what was seen", "guess", "what could refute it", "what it gave", "result"]]
    for cause in CAUSES:
        pairs = [_difference(by_name[pair.table], pair, kept) for pair in cause.pairs if pair.table in by_name]
        lines.append([cause.seen, cause.guess, cause.test, "; ".join(pairs), cause.result])
    return f"{CAUSES_HEAD}\n{markdown(lines)}\n"


def _difference(table: Table, pair: Pair, kept: Mapping[str, Sequence[cells.Row]]) -> str:
    (setting,) = (each for each in table.settings if each.name == pair.setting)
    differences = gains(found_in(table, setting, kept[table.name]), pair.better, pair.worse, pair.figure)
    sign = Sign(f"{pair.better} over {pair.worse}", pair.setting, pair.figure, None, tuple(differences.values()))
    return f"{sign.what}, {NAMES[pair.figure]}, {pair.setting}: {sign.found}"


def _spent(tables: Sequence[Table], kept: Mapping[str, Sequence[cells.Row]]) -> str:
    lines = [["table", "cells with a row", "cells", "CPU hours", "still to run, estimated", "lines by number of seeds"]]
    total = rest = 0.0
    for table in tables:
        rows, planned = kept[table.name], cells.cells(table)
        spent = sum(float(row["cpu_s"]) for row in rows) / HOUR_S
        missing = [cell for cell in planned if cells.row_of(cell, rows) is None]
        ahead = sum(cells.estimate(cell, rows) for cell in missing) / HOUR_S
        total, rest = total + spent, rest + ahead
        done = str(len(planned) - len(missing))
        lines.append([table.name, done, str(len(planned)), f"{spent:.2f}", f"{ahead:.2f}", _seeds(rows)])
    lines.append(["all", "", "", f"{total:.2f}", f"{rest:.2f}", ""])
    return f"## What it took\n\nCPU hours, of one core each; no GPU.\n\n{markdown(lines)}\n"


def _seeds(rows: Sequence[cells.Row]) -> str:
    """Return how many lines have rows of how many seeds: `12 with 3, 4 with 5`."""
    known = {(row["setting"], row["method"]): 0 for row in rows}
    for row in rows:
        known[row["setting"], row["method"]] += 1
    counts = Counter(known.values())
    return ", ".join(f"{counts[seeds]} with {seeds}" for seeds in sorted(counts))
