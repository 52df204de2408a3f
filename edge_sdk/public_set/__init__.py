"""The public set: unlabelled samples that every device holds, named by a content hash, and how a device fetches them.

May import `protocol`, `objectives`, `data`, `durable` and `errors`.
"""
