"""The device in an app: the Agent, its arguments, loop, callbacks and state folder, and the command `edge-sdk device`.

May import every other package of edge_sdk except `tools`; the coordinator does not import it.
"""
