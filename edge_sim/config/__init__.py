"""The TOML file of a simulated federation: settings, scenario, conditions of the devices, rules for their models.

May import `coordinator.config`, `edge_sim.models` and the rooms of edge_sdk.
"""
