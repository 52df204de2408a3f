"""Virtual time: the queue of events, the fleet that runs on it, its faults, computations and checkpoints.

May import `edge_sim.fleet.fleet`, `engines.base`, `config`, the coordinator and edge_sdk.
"""
