"""A device's traffic: its Hello, its frames with their stamps and signatures, and its pauses.

Nothing here touches a model.
May import what `edge_sdk.device` may import.
"""
