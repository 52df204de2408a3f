"""Intake: checks of every frame and upload, each sender's share, and limits on the influence of one device.

May import `serving.devices`, `record`, `rounds` and the neutral packages of edge_sdk.
"""
