"""The public set: unlabelled samples that every device holds, identified by a hash, and fetching them.

May import `protocol`, `data`, `durable`, `arrays` and `errors`.
"""
