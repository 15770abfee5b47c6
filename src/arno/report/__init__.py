"""The report of a comparison: one HTML file, figures for a paper, tables of text."""
