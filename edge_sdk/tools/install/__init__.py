"""`edge-sdk install --systemd`: makes a device a service of systemd, with limits, and reports each step.

May import what `edge_sdk.tools` may, and `tools.measure`; only the command line imports it.
"""
