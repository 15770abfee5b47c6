"""The budgets of the compared methods; a comparison names unequal budgets next to its verdict."""

from __future__ import annotations

from collections.abc import Mapping

from .comparison import Comparison
from .tuning import Tuning

#: The budgets, by their names in records: rounds, local steps and uploads. Seconds depend on the machine.
SPENT = {"rounds": ("rounds", 1.0), "local_steps": ("local steps", 1.0), "uploaded_bytes": ("MB uploaded", 1e6)}
#: Budgets count as equal if their ratio is at most this.
EQUAL = 1.05
#: The largest number of methods with the same budget that are named; for more methods, their number is shown.
NAMED = 4


def unequal(comparison: Comparison) -> list[str]:
    """One sentence for each setting in which the runs of the methods had unequal budgets."""
    lines = []
    for place in comparison.places:
        spent: dict[str, dict[str, float]] = {name: {} for name in SPENT}
        for group in (group for group in comparison.members if group.setting == place and group.runs):
            rows = [run.rows for run in group.runs.values()]
            spent["rounds"][group.name] = _mean([len(each) for each in rows])
            for name in ("local_steps", "uploaded_bytes"):
                if all(name in each[-1] for each in rows):
                    spent[name][group.name] = _mean([float(each[-1][name]) for each in rows])
        if told := differing(spent):
            lines.append(f"{f'{place}: ' if place else ''}Unequal budgets, per run: {told}.")
    return lines


def unequal_searches(tuning: Tuning) -> list[str]:
    """One sentence for each setting in which the searches had unequal budgets."""
    lines = []
    for place in dict.fromkeys(group.setting for group in tuning.groups):
        there = [group for group in tuning.groups if group.setting == place]
        if told := differing({name: {group.name: group.cost(name) for group in there} for name in SPENT}):
            lines.append(f"{f'{place}: ' if place else ''}Unequal budgets of the searches: {told}.")
    return lines


def differing(spent: Mapping[str, Mapping[str, float]]) -> str:
    """The budgets that differ between methods, in words; empty if all are equal.

    spent: the budgets, by the name of the budget and the name of the method.

    >>> differing({"rounds": {"a": 40, "b": 40}, "local_steps": {"a": 100, "b": 100, "c": 250}})
    'local steps c 250, a and b 100'
    """
    told = []
    for name, each in spent.items():
        if each and max(each.values()) > EQUAL * min(each.values()):
            label, unit = SPENT[name]
            told.append(f"{label} {_listed({method: value / unit for method, value in each.items()})}")
    return "; ".join(told)


def _listed(each: Mapping[str, float]) -> str:
    """Methods with their budgets, the largest first; methods with about the same budget are named together."""
    together: list[tuple[list[str], float]] = []
    for name, value in sorted(each.items(), key=lambda item: -item[1]):
        if together and together[-1][1] <= EQUAL * value:
            together[-1][0].append(name)
        else:
            together.append(([name], value))
    words = [f"{_names(names)} {_number(value)}" for names, value in together]
    return ", ".join(words)


def _names(names: list[str]) -> str:
    if len(names) > NAMED:
        return f"{len(names)} methods"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)
