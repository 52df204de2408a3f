"""Boards, links and operating systems as data: one TOML each, units in the names, the source given."""
