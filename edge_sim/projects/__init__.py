"""The first steps of a newcomer: `edge-sdk new`, `edge-sdk init` and `edge-sdk methods`.

May import all other rooms except runs and studies.
"""
