"""Runs and comparisons as one self-contained HTML file, and the command `edge-sdk report`.

command: the terminal's tables and the file.  values: what the file says, as plain values.  pictures: inline SVG.
jinja2_document: the file, from the template, style and script in static/.  May import `record` and `report`.
"""
