"""The devices of a running federation: admission, versions that work together, and what each device declared.

May import `record`, `rounds` and the neutral packages of edge_sdk; of `serving` nothing outside this folder.
"""
