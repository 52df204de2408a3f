"""Reports of one run for people and scripts, while it runs and after it.

summary, run_files, text_files, finished_run: files.  tables, run_table: the table on a terminal.
While a run is under way: progress (with log.jsonl), progress_file.
May import `record`; everything else in `results` may import this.
"""
