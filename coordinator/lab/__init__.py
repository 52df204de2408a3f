"""The owner's side of a lab: its folder with keys and the broker's settings, claims, the desk that enrols boards.

May import `coordinator.broker` and edge_sdk's `identity`, `protocol` and `transport`; only commands import it.
"""
