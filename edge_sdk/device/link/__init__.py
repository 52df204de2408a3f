"""A device's traffic: its frames with their stamps, signatures and encryption.

Nothing here touches a model.
May import what `edge_sdk.device` may import.
"""
