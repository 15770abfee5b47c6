"""Run a grid of configurations for `arno compare`, on this machine or on a Ray cluster."""
