"""One paper, one file: the citation, the formula, the parts, and a factory whose parameters are the settings.

`methods` are factories that return a list of parts. `parts` are the parts by name, for `method=compose`.

A method is registered with its name, its family (of `FAMILIES`), its formula and its paper. `tune` gives the ranges of
settings that are worth searching; `defaults` gives other defaults of general settings. The docstring of the factory
begins with one sentence, and says when the method helps, when it hurts, and what its settings mean; `descriptions.py`
reads it.
"""

from ..registry import Registry

methods = Registry("method", "arno.methods")
parts = Registry("part", "arno.methods")

#: What the methods of a family have in common.
FAMILIES = {
    "global": "one model for all clients",
    "server": "another step or another mean on the server",
    "variance-reduction": "corrections with stored updates or gradients",
    "regularised": "a term or a step that limits the clients' drift",
    "label-skew": "a loss for clients that hold few classes",
    "sub-models": "clients that train a part of the network",
    "personal": "a model for each client",
    "composed": "several parts in one method",
}
