"""Run a configuration, continue it, and read what it left."""
