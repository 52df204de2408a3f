"""The life of one simulated run: its folder, its engine, its devices alone, and its result.

May import `edge_sim.engines`, `over_broker`, `clock`, `fleet`, `data`, `config` and the coordinator, but not `studies`.
"""
