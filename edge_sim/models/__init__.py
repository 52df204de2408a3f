"""The models that simulated devices run, by name: numpy, ONNX and torch nets sized to any input.

May import the rooms of edge_sdk only.
"""
