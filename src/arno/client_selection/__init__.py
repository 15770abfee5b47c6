"""Client selection: which clients take part in a round. One rule, one file. A rule works with every method and problem.

A rule is a part with the role `select`. Its factory takes the participation, and its settings as keyword parameters.
The key of the random numbers is the run's seed and the round, so all methods with the same seed select the same clients
(if the rule does not read the model). p_k is a client's share of the data.
"""

from ..registry import Registry

selections = Registry("select", "arno.client_selection", "selections.register")
