"""All papers whose tables are run here, in the order of the page."""

from __future__ import annotations

from benchmarks.papers.tables import fedal, fedhkd, fedkf, fednh, fedssa, other_data
from benchmarks.papers.tables.kinds import Paper, Table

PAPERS: tuple[Paper, ...] = (
    fedhkd.PAPER,
    fedal.PAPER,
    fedssa.PAPER,
    fedkf.PAPER,
    fednh.PAPER,
    other_data.PAPER,
)
TABLES: tuple[Table, ...] = tuple(table for paper in PAPERS for table in paper.tables)
