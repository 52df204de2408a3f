"""The results of a run: figures, files, tables, pictures, documents, the live page, and other tools.

A ring around the coordinator: commands, `deploy` and simulations import it; rounds, serving and ledger never do.
report: one run on a terminal and in files.  comparison: several runs.  plots: pictures.  document: one HTML file.
page: the live page.  writers: TensorBoard, Prometheus and the like.
May import the rest of the coordinator, and the neutral packages of edge_sdk.
"""
