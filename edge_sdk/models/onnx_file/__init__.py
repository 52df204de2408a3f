"""The content of .onnx files, read and written without the package onnx: wire format, tensors, graph, last layer.

A board needs ONNX Runtime to run a file, and nothing more to split one or to write a trained head back (ADR 0026).
These modules may import numpy, edge_sdk.errors and edge_sdk.arrays; none imports onnx or ONNX Runtime.
"""
