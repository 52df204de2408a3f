"""Where data sets come from: one file for each kind of source, each giving a Whole."""
