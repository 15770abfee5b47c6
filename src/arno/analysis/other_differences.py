"""Differences between the groups of a comparison besides the method."""

from __future__ import annotations

from ..config.settings import written
from .comparison import Comparison
from .tuning import search_of


def other_differences(comparison: Comparison) -> list[str]:
    """One sentence for each method whose general settings differ from those of the first method.

    The effect of such settings is not an effect of the method. Searched settings are left out, because the search of
    each method chose them.
    """
    differing, lines, search = comparison.settings.differing, dict[str, None](), search_of(comparison)
    searched = {key for group in search.groups for key in group.space} if search else set[str]()
    for place in comparison.places:
        there = [g for g in comparison.members if g.setting == place and g.label in differing]
        for reference, group in ((there[0], group) for group in there[1:]):
            mine, first = differing[group.label], differing[reference.label]
            keys = [k for k in mine if not k.startswith(("method.", "engine.")) and mine[k] != first.get(k)]
            keys = [k for k in keys if k not in searched]
            words = [f"{k.removesuffix('.kind')}={written(mine[k])}" for k in keys]
            if listed := ", ".join(word for word in words if word not in group.label):
                lines[f"Unlike {reference.name}, {group.name} runs with {listed}."] = None
    return list(lines)
