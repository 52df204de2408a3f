"""Model runtimes behind one protocol: numpy (reference), torch, ONNX Runtime."""
