"""A task says what the outputs of a network mean: their loss, statistics and metrics. One task, one file."""

from ..registry import Registry

tasks = Registry("task", "arno.tasks")
