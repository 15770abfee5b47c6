"""The rules of the operations of recorded networks. A rule computes the outputs and then the gradients of the inputs.

A rule computes one model, or many models of one shape at once (`lead`). With `lead`, every tensor that depends on the
model or on the samples has an additional first axis with one row per model. Axes are counted from the last one, so
that the same rule computes both cases.
"""

from . import attention, images, normalisation, pointwise, reductions, shapes
from .rule import Rule

__all__ = ["RULES", "Rule"]

#: The rule of each operation, by the name of the operation.
RULES: dict[str, type[Rule]] = {
    **pointwise.RULES, **shapes.RULES, **reductions.RULES, **normalisation.RULES, **images.RULES, **attention.RULES
}  # fmt: skip
