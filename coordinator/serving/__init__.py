"""The coordinator while it runs: the server's loop, admission, checks of uploads, aggregation, and sending.

This package may import `rounds`, `record`, `ledger` and the neutral packages of edge_sdk, never `report`.
"""
