"""The coordinator at work: the server's loop, admission, checks of uploads, aggregation, and what it sends.

May import `rounds`, `record`, `ledger` and the neutral rooms of edge_sdk; never `report`.
"""
