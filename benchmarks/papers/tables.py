"""All tables of the papers that are run here, in the order of the page."""

from __future__ import annotations

from benchmarks.papers import fedal_tables, fedhkd_tables, fedkf_tables, fednh_tables, fedssa_tables, other_data
from benchmarks.papers.kinds import Table

TABLES: tuple[Table, ...] = (
    *fedhkd_tables.TABLES,
    *fedal_tables.TABLES,
    *fedssa_tables.TABLES,
    *fedkf_tables.TABLES,
    *fednh_tables.TABLES,
    *other_data.TABLES,
)
