"""A rule of client selection in one file: clients that have waited longest take part more often.

    arno run select=custom select.target=examples/my_selection.py:factory select.power=2 participation=0.3

p_k ∝ (rounds since client k last took part)^power, m clients without replacement. Arno calls the factory with the
participation and the settings. The rule is a part: `start` sets its state, which checkpoints save, and `select` returns
the ids of the cohort. Draw from the streams of `arno.core.seeds`, keyed by the round.
"""

from dataclasses import dataclass

import torch

from arno import ArnoError
from arno.client_selection.selection import Selection, take
from arno.core.federation import Federation
from arno.core.method_part import Ids
from arno.core.seeds import stream


def factory(participation: float, *, power: float = 1.0) -> Selection:
    """power: 0 selects all clients with the same probability."""
    if power < 0:
        raise ArnoError(f"select.power = {power:g}", "it must not be negative", "try select.power=1")
    return LongestWait(participation, power)


@dataclass
class LongestWait(Selection):
    """m clients without replacement, with probabilities that grow with the time since they last took part."""

    participation: float
    power: float

    def start(self, fed: Federation) -> None:
        """No client has taken part yet."""
        self._seed, self._m = fed.seed, self.cohort(fed.n)
        self.last = torch.full((fed.n,), -1, dtype=torch.int64)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw the cohort, and note that it takes part in round t."""
        ids = torch.as_tensor(ids)
        weights = (t - self.last[ids]).double() ** self.power
        cohort = take(ids, weights.multinomial(min(self._m, len(ids)), generator=stream(self._seed, "select", t)))
        self.last[cohort] = t
        return cohort
