"""The figures of a run: what they are, and the values.

result: a finished run as plain values.  outcome: makes it from what a coordinator recorded.  device_figures,
round_figures: declares each figure once.  metrics: measures from papers.  insight: arrays for pictures.
May import `record`, `rounds` and `serving`; everything else in `results` may import this.
"""
