"""Runs the grids of `arno compare`, on this machine or on a Ray cluster, and the searches of `arno tune`."""
