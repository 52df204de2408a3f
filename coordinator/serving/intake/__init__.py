"""What comes in: the checks of every frame and upload, each sender's share, and what one device may move.

May import `serving.devices`, `record`, `rounds` and the neutral packages of edge_sdk.
"""
