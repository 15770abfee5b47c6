"""The data sources: one registered factory for each. The keyword parameters of a factory are its settings `data.…`."""
