"""The message log of a coordinator: entries on disk, a server that records them, and their replay.

This package may import `serving`, `rounds` and `ledger`; only deployments and the simulator import it.
"""
