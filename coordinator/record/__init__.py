"""What a coordinator notes while it runs, and what came of it: record, metrics, result, remarks. Values, no I/O.

May import the neutral rooms of edge_sdk; every other room of the coordinator may import it.
"""
