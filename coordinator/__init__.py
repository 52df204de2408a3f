"""The coordinator: admits devices, aggregates their knowledge, and never sees their data.

rounds/ says what a round is; serving/ is the loop around it; record/ and report/ hold and show what happened;
ledger.py, trace/ and broker/ are what lies on disk and on the wire.
May import the rooms of edge_sdk but `device` and `tools`.
"""
