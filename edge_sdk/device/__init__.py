"""One device: the session (a pure state machine), the participant that drives it, the workbench, and what is stored.

May import every other room of edge_sdk except `tools`; nothing of the coordinator imports it.
"""
