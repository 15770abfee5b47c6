"""Client selection: which clients take part in a round; one rule, one file. A rule works with every method and problem.

A rule is a part with the role `select`. Its factory takes the participation, and its settings as keyword parameters.
Cohorts come from streams keyed by the run's seed and the round alone, so that all methods at one seed see the same
clients (as far as the rule does not look at the model). p_k is a client's share of the data.
"""

from ..registry import Registry

selections = Registry("select", "arno.client_selection", "selections.register")
