"""Run a configuration, continue it, and read its results."""
