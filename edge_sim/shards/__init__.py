"""Whole devices in worker processes: session, codec, store and training; only frames cross.

May import what `edge_sim.clock` may, and that room.
"""
