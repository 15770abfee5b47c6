"""One registered factory per data source; its keyword parameters are the settings `data.…`."""
