"""One registered factory per data source; the keyword parameters of a factory are its settings `data.…`."""
