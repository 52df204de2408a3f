"""Parts of papers that have a file of their own: loss terms, noise, first prototypes, and nets that a server trains.

PAPER_part.py belongs to ../PAPER.py; torch_PAPER.py is the part that needs torch.
May import what `edge_sdk.methods` may import; torch parts also `edge_sdk.models`.
"""
