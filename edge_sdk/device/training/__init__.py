"""A device's work with its model and data: it serves a method's requests, measures, and accounts for privacy.

Nothing here knows of topics or sessions.
May import what `edge_sdk.device` may import.
"""
