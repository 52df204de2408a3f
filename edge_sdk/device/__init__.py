"""One device: its session (a pure state machine), the participant that drives it, the workbench, and the store.

May import every other package of edge_sdk except `tools`; the coordinator does not import it.
"""
