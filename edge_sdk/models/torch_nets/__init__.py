"""The torch runtime: takes over a user's net, finds its features and its head, minimises loss terms, exports.

Only this room and `edge_sdk.models.torch_training` import torch; each file's name begins with `torch_`.
May import what `edge_sdk.models` may import.
"""
