"""A run of the fleet as processes over a real broker.

May import `edge_sim.fleet.fleet`, `config`, `engines`, the coordinator and edge_sdk.
"""
