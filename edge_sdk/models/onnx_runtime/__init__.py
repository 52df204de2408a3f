"""The ONNX runtime: .onnx files as models, with a frozen body under a trained head, or as teachers that only predict.

May import `models`, `models.onnx_file` and what models may import; ONNX Runtime is loaded with the first file.
"""
