"""All papers whose tables are run here, in the order of the page."""

from __future__ import annotations

from benchmarks.papers import fedal_tables, fedhkd_tables, fedkf_tables, fednh_tables, fedssa_tables, other_data
from benchmarks.papers.kinds import Paper, Table

PAPERS: tuple[Paper, ...] = (
    fedhkd_tables.PAPER,
    fedal_tables.PAPER,
    fedssa_tables.PAPER,
    fedkf_tables.PAPER,
    fednh_tables.PAPER,
    other_data.PAPER,
)
TABLES: tuple[Table, ...] = tuple(table for paper in PAPERS for table in paper.tables)
