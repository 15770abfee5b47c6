"""The order of the compared methods in several settings. It shows whether the order depends on the setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from .comparison import Comparison
from .statistics import differences, summary


@dataclass(frozen=True)
class Order:
    """The ranks of the methods in every setting, by their mean final score; equal means have the same rank.

    places: the settings. names: the methods with a result in every setting, the best mean rank first. ranks: for each
    method, its ranks in the order of `places`. winners: for each setting with a winner, the method that is the winner.
    sure: for each setting, the pairs (better, worse) of methods whose paired 95 % interval excludes zero.
    """

    places: Sequence[str]
    names: Sequence[str]
    ranks: Mapping[str, Sequence[int]]
    winners: Mapping[str, str]
    sure: Sequence[frozenset[tuple[str, str]]]

    def leaders(self) -> dict[str, list[str]]:
        """The settings in which each method has the first rank."""
        found: dict[str, list[str]] = {}
        for i, place in enumerate(self.places):
            for name in self.names:
                if self.ranks[name][i] == 1:
                    found.setdefault(name, []).append(place)
        return found

    def reversed_pairs(self) -> list[tuple[str, str]]:
        """Pairs of methods in which each method is better in one setting, with a paired interval that excludes zero."""
        both = set().union(*self.sure)
        return [(a, b) for a, b in combinations(self.names, 2) if (a, b) in both and (b, a) in both]

    def sentence(self) -> str:
        """Sentences that say how the order depends on the setting."""
        count, leaders = len(self.places), self.leaders()
        if len({tuple(self.ranks[name][i] for name in self.names) for i in range(count)}) == 1:
            text = f"The order of the methods is the same in all {count} settings"
        elif any(len(where) == count for where in leaders.values()):
            first = next(name for name, where in leaders.items() if len(where) == count)
            text = f"{first} has the best mean in all {count} settings; the order of the others changes"
        else:
            each = ", ".join(f"{name} in {len(where)} ({'; '.join(where)})" for name, where in leaders.items())
            text = f"The method with the best mean changes with the setting: {each}"
        odd = [f"{a} and {b}" for a, b in self.reversed_pairs()]
        if odd:
            which = f"The order of {', '.join(odd)} depends on the setting"
            certain = "the 95 % interval of the paired differences excludes 0 (not corrected for the number of pairs)"
            return f"{text}. {which}: each is better in at least one setting, where {certain}."
        won = len(self.winners)
        return f"{text}. " + (
            f"A winner is marked in {won} of them." if won else "No winner is marked: the differences may be chance."
        )


def order(comparison: Comparison) -> Order | None:
    """The order over the settings; None if there is one setting, or only one method with a result in all of them."""
    finals, sign = comparison.finals(), comparison.declared().sign
    by_place = {
        place: {g.name: finals[g.label] for g in comparison.members if g.setting == place and finals[g.label]}
        for place in comparison.places
    }
    known = dict.fromkeys(group.name for group in comparison.members)
    names = [name for name in known if all(name in there for there in by_place.values())]
    if len(by_place) < 2 or len(names) < 2:
        return None
    ranks: dict[str, list[int]] = {name: [] for name in names}
    for there in by_place.values():
        means = {name: sign * summary(list(there[name].values())).mean for name in names}
        for name in names:
            ranks[name].append(1 + sum(other > means[name] for other in means.values()))
    won = comparison.winners()
    winners = {g.setting: g.name for g in comparison.members if g.label in won}
    sure = [frozenset(_sure(there, names, sign)) for there in by_place.values()]
    names.sort(key=lambda name: sum(ranks[name]))
    return Order(list(by_place), names, ranks, winners, sure)


def _sure(there: Mapping[str, Mapping[int, float]], names: Sequence[str], sign: int) -> list[tuple[str, str]]:
    """The pairs (better, worse) whose paired 95 % interval excludes zero."""
    found = []
    for a, b in combinations(names, 2):
        gap = summary([sign * x for x in differences(there[a], there[b])])
        if gap.low > 0:
            found.append((a, b))
        elif gap.high < 0:
            found.append((b, a))
    return found
