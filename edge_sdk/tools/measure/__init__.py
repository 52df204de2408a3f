"""Measures the profile of this machine, and of its link to a broker: `edge-sdk boards --measure`.

May import what `edge_sdk.tools` may, and `tools.selftest`; `doctor`, `install` and the command line import it.
"""
