"""Data on disk: digests of rows and files, losses in the write-ahead log, durable replacement, and quarantine.

Damage becomes one error, `errors.Damaged`, that names the file, the lost data and the remedy.  Plain functions without
state.  May import only errors.
"""
