"""From messages to bytes and back: records and their schema, the msgpack body, the frame with its checksum.

Everything here checks before it decodes, because the bytes may come from anybody.
May import `edge_sdk.errors` and `edge_sdk.arrays`.
"""
