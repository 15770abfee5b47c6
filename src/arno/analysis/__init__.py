"""Scores, intervals, tests and tables from the records of runs."""
