"""The first steps of a newcomer: `edge-sdk new`, `edge-sdk init` and `edge-sdk methods`.

May import all other rooms but those of runs and studies.
"""
