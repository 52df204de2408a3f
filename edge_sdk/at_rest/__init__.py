"""What lies on a disk: digests of rows and files, the write-ahead log's losses, files replaced durably, and quarantine.

Damage becomes one error, `errors.Damaged`, that says which file, what is lost and what to do.  Plain functions without
state.  May import nothing but errors.
"""
