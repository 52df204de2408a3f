"""Identities in a lab: key files, signatures of frames, identity folders, claims, certificates, the lab's registry.

May import `protocol`, `errors` and the single files below all rooms; pyca/cryptography only in the files `crypto_*`.
"""
