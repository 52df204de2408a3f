"""Reports of a run for people and scripts: summary and files, tables, pictures, comparisons, progress and log.

result: summary, run_files, text_files.  tables: tables, run_table.  plots: drawing, plots, curve_plots, device_plots,
insight_plots.  compare: compare, compare_files, compare_table.  While a run goes on: progress, progress_file, log.
May import the rest of the coordinator; of that, only commands, deploy and the page may import this.
"""
