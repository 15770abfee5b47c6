"""From the records of runs to scores, intervals, tests and tables."""
