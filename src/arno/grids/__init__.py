"""Run a grid of configurations."""
