"""The record of a run: what a coordinator counts and notes while it runs, its observers and its warnings.

Plain values without I/O.  `coordinator.results` makes figures, files and pages of it.
This package may import the neutral packages of edge_sdk; every other package of the coordinator may import it.
"""
