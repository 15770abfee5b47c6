"""The operations of recorded networks, there and back: a rule computes its outputs, then the gradients of its inputs.

A rule computes one model, or many models of one shape at once (`lead`): then every tensor that depends on the model or
on the samples has one axis more, the first, with a row per model. Axes are counted from the last one, so that the same
rule serves both.
"""

from . import attention, images, normalisation, pointwise, reductions, shapes
from .rule import Rule

__all__ = ["RULES", "Rule"]

#: The rule of each operation by its name.
RULES: dict[str, type[Rule]] = {
    **pointwise.RULES, **shapes.RULES, **reductions.RULES, **normalisation.RULES, **images.RULES, **attention.RULES
}  # fmt: skip
