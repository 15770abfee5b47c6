"""One paper, one file: the citation, the formula, the parts, and a factory whose parameters are the settings."""

from ..registry import Registry

methods = Registry("method", "arno.methods")
