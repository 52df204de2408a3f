"""The owner's side of a lab: its folder with keys and the broker's settings, claims, the desk that enrols, backups.

May import `coordinator.broker`, `coordinator.ledger` and edge_sdk's `identity`, `protocol` and `transport`; only
commands import it.
"""
