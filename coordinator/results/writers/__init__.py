"""Writers of a run's figures for other tools: TensorBoard, Weights & Biases, MLflow, Prometheus, and JSON lines.

figures: what is written.  opening: the options of commands.  Each package is optional and imported where it is needed.
May import `record` and `report`; only commands and runs import this.
"""
