"""Whole devices in worker processes: session, codec, store and training; only frames cross.

May import `edge_sim.clock` and the rooms that it may import.
"""
