"""Tools: `doctor` checks a machine, `measure` writes the profile of a board, `operator` speaks to a coordinator.

May import every other package of edge_sdk; only the command line imports it.
"""
