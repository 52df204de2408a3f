"""Pictures of runs and comparisons, drawn with matplotlib.

plots: which pictures a run or comparison gets.  curve_plots, device_plots, insight_plots: the pictures.  drawing, look:
axes, colours, sizes.  plot_command: `edge-sdk plot`.
May import `record`, `report` and `comparison`.
"""
