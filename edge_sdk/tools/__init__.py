"""Tools for the owner of a machine: `doctor` checks it, `measure` writes the profile of a board or a link.

May import every other package of edge_sdk; only the command line imports it.
"""
