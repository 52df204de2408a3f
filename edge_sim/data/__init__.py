"""Data sets, their sources on disk, and the partition of their samples over devices.

May import `edge_sim.config.settings`, `edge_sim.models` and the rooms of edge_sdk.
"""
