"""What the output of a network means: its loss, its statistics, its metrics. One task, one file."""

from ..registry import Registry

tasks = Registry("task", "arno.tasks")
