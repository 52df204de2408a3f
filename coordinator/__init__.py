"""The coordinator: admits devices, aggregates their knowledge, and never sees their data.

rounds/ says what a round is; serving/ is the loop around it; record/ and report/ hold and show what happened;
page/, document/ and writers/ show it in a browser, in a file and to other tools; lab/ keeps the keys of a lab;
ledger.py, trace/ and broker/ are what lies on disk and on the wire.
May import the rooms of edge_sdk but `device` and `tools`.
"""
