"""Any combination of parts without a contradiction. The user names the parts on the command line.

    arno run method=compose method.parts=[window,proximal,scaffold,cluster_varp] method.window.beta=0.5

Contradictory combinations (two parts that average, SCAFFOLD with local momentum) are refused with the reason.
"""

from __future__ import annotations

from typing import Any

from ..core.method_part import Part
from ..errors import ArnoError
from . import methods
from . import parts as registry


@methods.register(
    "compose",
    family="composed",
    paper="your own",
    formula="the formulas of its parts, in the order of their roles",
    nested=registry,
)
def compose(*, parts: tuple[str, ...] = (), **settings: dict[str, Any]) -> list[Part]:
    """The parts that you name, each with its own settings.

    Helps: to combine ideas of several papers, or to leave one idea out.
    Hurts: never by itself; contradictory parts are refused with the reason.

    parts: the names of the parts; their order has no effect, because roles order the parts.

    >>> compose(parts=("proximal", "scaffold"), proximal={"mu": 0.1})
    [Proximal(mu=0.1), Scaffold()]
    """
    unused = [name for name, given in settings.items() if given and name not in parts and given != _defaults(name)]
    if unused:
        listed = ", ".join(f"method.{name}" for name in unused)
        rule = f"this part is not in method.parts = [{', '.join(parts)}]"
        raise ArnoError(f"{listed} is set", rule, "add it to method.parts, or leave its settings out")
    return [registry.get(name)(**settings.get(name, {})) for name in parts]


def _defaults(name: str) -> dict[str, Any]:
    """The defaults as the configuration holds them, with lists for tuples."""
    defaults = {p.name: p.default for p in registry.settings(name).values()}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
