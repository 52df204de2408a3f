"""Stacks: equal requests of devices with equal nets computed as one, by batched products or torch.func.

May import `engines.base`, `engines.memory`, `engines.torch_threads` and edge_sdk.
"""
