"""Training all layers of an .onnx file: its graph differentiated into a graph of ordinary operators, and what runs it.

The backward pass is emitted for one shape of mini-batches, so that every size in it is a constant.  ONNX Runtime's
inference kernels compute it, or numpy (ADR 0047).  May import `models`, `models.onnx_file` and what models may import.
"""
