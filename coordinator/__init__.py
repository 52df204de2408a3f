"""The coordinator: admits devices, aggregates their knowledge, and never sees their data.

rounds/ defines a round; serving/ is the loop around it; record/ and report/ hold and show what happened;
page/, document/ and writers/ show it in a browser, in a file and to other tools; lab/ keeps the keys of a lab;
ledger.py, trace/ and broker/ handle files on disk and messages on the wire.
May import all rooms of edge_sdk except `device` and `tools`.
"""
