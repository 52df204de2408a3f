"""The operators of a running federation: their orders, their view of devices, and the desk that answers them.

May import `serving.devices`, `serving.run_context`, `serving.sender`, `ledger` and the neutral packages of edge_sdk.
"""
