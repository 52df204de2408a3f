"""Comparisons of several runs: methods, settings and seeds.

compare: the values.  compare_files: reads and writes them.  compare_table: the table on a terminal.  paper_table,
budgets: tables for papers.  table_command: `edge-sdk table`.
May import `record` and `report`.
"""
