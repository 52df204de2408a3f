"""`edge-sdk doctor`: checks whether this machine and a broker are fit for use, and shows the fix for each fault.

May import what `edge_sdk.tools` may, and `tools.measure` and `tools.selftest`; only the command line imports it.
"""
