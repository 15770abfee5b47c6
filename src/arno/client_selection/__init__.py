"""Client selection: which clients take part in a round; one rule or paper, one file.

A rule works with every method and problem. It is a part with the role `select`. Its factory takes the participation,
and its settings as keyword parameters. Cohorts come from streams keyed by the run's seed and the round alone, so all
methods with the same seed select the same clients (as far as the rule does not look at the model). p_k is a client's
share of the data.
"""

from ..registry import Registry

selections = Registry("select", "arno.client_selection", "selections.register")
