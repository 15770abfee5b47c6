"""One paper, one file: the citation, the formula, the parts, and a factory whose parameters are the settings.

`methods` are factories that return a list of parts; `parts` are the ingredients by name, for `method=compose`.
"""

from ..registry import Registry

methods = Registry("method", "arno.methods")
parts = Registry("part", "arno.methods")
