"""The record of a run, its metrics, result and remarks: plain values without I/O.

This package may import the neutral packages of edge_sdk; every other package of the coordinator may import it.
"""
