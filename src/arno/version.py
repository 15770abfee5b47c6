"""The version, apart from everything else so that reading it costs nothing."""

__version__ = "0.2.0"
