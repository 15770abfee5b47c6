"""Personal layers in one file: each client keeps the layers whose names match a pattern, the rest is averaged.

    arno run method=custom method.target=examples/my_personal_layers.py:factory method.layers='hidden.*' \\
        data.client_test=0.2

The records then have the scores of the clients' own models (`personal_…`) beside those of the global model (`own_…`).
`arno methods fedper` shows the method that keeps the last layer.
"""

from arno import Part
from arno.methods.kept_layers import Keep


def factory(*, layers: str = "head") -> list[Part]:
    """layers: head, body, norm, or a pattern of parameter names such as encoder.*"""
    return [Keep(layers)]
