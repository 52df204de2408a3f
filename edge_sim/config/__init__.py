"""A simulated federation as TOML: its settings, scenario, conditions of devices, and which model a device runs.

May import `coordinator.config`, `edge_sim.models` and the rooms of edge_sdk.
"""
