"""Training without a federation: every client keeps the whole model and trains alone.

client k:  w_k ← local SGD from w_k
server:    nothing is sent, and w stays at w⁰
"""

from __future__ import annotations

from ..core.method_part import Part
from . import methods
from .kept_layers import Keep


@methods.register(
    "local",
    family="personal",
    paper="none: training without a federation",
    formula="w_k ← local SGD from w_k;  nothing is sent",
)
def local() -> list[Part]:
    """Every client trains alone; nothing is sent.

    Helps: as the baseline without a federation, and if clients have enough data or very different tasks.
    Hurts: if clients have few samples.

    >>> local()
    [Keep(group='full')]
    """
    return [Keep("full")]
