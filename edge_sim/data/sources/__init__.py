"""The sources of data sets: one file for each kind; each returns SourceData."""
