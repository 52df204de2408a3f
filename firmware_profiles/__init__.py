"""Boards and links as data: one TOML each, units in the names, the source given."""
