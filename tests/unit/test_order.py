"""The order of methods over a setting that varies."""

from __future__ import annotations

from arno.analysis.order import Order

SAME = {"a": [1, 1, 1], "b": [2, 2, 2], "c": [3, 3, 3]}
PLACES = ["alpha=0.1", "alpha=1", "alpha=10"]


def made(
    ranks: dict[str, list[int]], winners: dict[str, str] | None = None, sure: tuple[set[tuple[str, str]], ...] = ()
) -> Order:
    names = sorted(ranks, key=lambda name: sum(ranks[name]))
    return Order(PLACES, names, ranks, winners or {}, [frozenset(one) for one in sure])


def test_the_sentence_says_what_changes() -> None:
    assert made(SAME).sentence() == (
        "The order of the methods is the same in all 3 settings. No winner is marked: the differences may be chance."
    )
    best = made({"a": [1, 1, 1], "b": [2, 3, 2], "c": [3, 2, 3]}, {"alpha=1": "a"})
    assert best.sentence().startswith("a has the best mean in all 3 settings; the order of the others changes.")
    assert best.sentence().endswith("A winner is marked in 1 of them.")
    changes = made({"a": [1, 2, 2], "b": [2, 1, 1]})
    assert "changes with the setting: a in 1 (alpha=0.1), b in 2 (alpha=1; alpha=10)" in changes.sentence()


def test_a_reversal_with_two_certain_differences_is_named() -> None:
    sure = ({("a", "b")}, set[tuple[str, str]](), {("b", "a")})
    found = made({"a": [1, 2, 2], "b": [2, 1, 1]}, sure=sure)
    assert found.reversed_pairs() in ([("a", "b")], [("b", "a")])
    assert "each is better in at least one setting, where the 95 % interval" in found.sentence()
    assert made({"a": [1, 2, 2], "b": [2, 1, 1]}, sure=({("a", "b")}, set())).reversed_pairs() == []
