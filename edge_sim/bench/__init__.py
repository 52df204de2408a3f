"""The benchmark: all methods on data of several kinds, on fleets of small boards.

May import `edge_sim.studies` and what that may import.
"""
