"""Who is selected: laws against exact enumeration of small cases, costs, state, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from arno import ArnoError, Federation, Local
from arno.client_selection import selections
from arno.core.method_part import Part
from arno.core.selection_draws import uniforms
from arno.problems.quadratic import Quadratic

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
ROUNDS = 2500


def problem(p: Sequence[float] = P, h: Sequence[float] | None = None) -> Quadratic:
    n = len(p)
    curvature = torch.arange(1, n + 1, dtype=torch.float64) if h is None else torch.tensor(h, dtype=torch.float64)
    return Quadratic(curvature, torch.ones(n, 2, dtype=torch.float64), torch.tensor(p, dtype=torch.float64))


def started(
    kind: str, m: int, rounds: int | None = ROUNDS, seed: int = 0, **settings: object
) -> tuple[Part, Federation]:
    q = problem()
    part = selections.get(kind)(m / q.clients.n, **settings)
    return part, Federation(q, [part], local=Local(lr=0.01), rounds=rounds, seed=seed)


def cohorts(part: Part, n: int = len(P), rounds: int = ROUNDS) -> list[list[int]]:
    return [torch.as_tensor(part.select(range(n), t)).tolist() for t in range(rounds)]


def successive(d: int) -> dict[frozenset[int], float]:
    """The exact law of d draws without replacement with probability P."""
    law: dict[frozenset[int], float] = {}
    for order in permutations(range(len(P)), d):
        chance, left = 1.0, 1.0
        for k in order:
            chance *= P[k] / left
            left -= P[k]
        law[frozenset(order)] = law.get(frozenset(order), 0.0) + chance
    return law


def agrees(found: Sequence[frozenset[int]], law: dict[frozenset[int], float]) -> None:
    """Every outcome as often as the law says, within four standard errors, and no other."""
    assert abs(sum(law.values()) - 1) < 1e-12
    assert set(found) <= law.keys()
    for outcome, chance in law.items():
        error = (max(chance * (1 - chance), 0.0) / len(found)) ** 0.5
        assert abs(sum(f == outcome for f in found) / len(found) - chance) < 4 * error + 1e-9, (set(outcome), chance)


def test_rand_draws_with_replacement_by_share() -> None:
    part, _ = started("rand", 2)
    drawn = cohorts(part)
    law = {(i, j): P[i] * P[j] for i in range(5) for j in range(5)}
    for pair, chance in law.items():
        share = sum(tuple(c) == pair for c in drawn) / ROUNDS
        assert abs(share - chance) < 4 * (chance * (1 - chance) / ROUNDS) ** 0.5, pair
    assert any(c[0] == c[1] for c in drawn)


def test_uniform_draws_every_pair_equally_often() -> None:
    part, _ = started("uniform", 2)
    pairs = {frozenset(pair): 0.1 for pair in combinations(range(5), 2)}
    agrees([frozenset(c) for c in cohorts(part)], pairs)


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_power_of_choice_keeps_the_largest_losses_among_candidates_drawn_by_share(d: int) -> None:
    part, fed = started("powd", 2, d=d)
    losses = fed.problem.losses(fed.w, torch.arange(5)).tolist()
    law: dict[frozenset[int], float] = {}
    for candidates, chance in successive(d).items():
        kept = frozenset(sorted(candidates, key=lambda k: -losses[k])[:2])
        law[kept] = law.get(kept, 0.0) + chance
    agrees([frozenset(c) for c in cohorts(part)], law)


def test_candidates_are_not_uniform() -> None:
    """The mistake to catch: with uniform candidates client 4 would be among two of five every 2.5th time."""
    part, _ = started("powd", 2, d=2)
    share = np.mean([4 in c for c in cohorts(part)])
    exact = sum(chance for outcome, chance in successive(2).items() if 4 in outcome)
    assert exact < 0.15
    assert abs(share - exact) < 0.02


def test_the_loss_is_that_of_the_current_model() -> None:
    part, fed = started("powd", 1, d=5)
    worst = set()
    for w in (torch.full((2,), 10.0), torch.ones(2) / 5, torch.full((2,), 1.0)):
        fed.w = w.double()
        chosen = int(part.select(range(5), 0)[0])
        assert chosen == int(fed.problem.losses(fed.w, torch.arange(5)).argmax())
        worst.add(chosen)
    assert len(worst) > 1


def test_cost_is_counted() -> None:
    for kind, d, cost in (("powd", 3, 3), ("cpowd", 4, 4), ("rpowd", 3, 0), ("powd", 2, 0)):
        _, fed = started(kind, 2, d=d)
        assert fed.round().numbers["loss_evaluations"] == cost, kind


def test_reported_losses_are_the_last_ones_and_unseen_clients_come_first() -> None:
    part, fed = started("rpowd", 2, d=5)
    seen: dict[int, float] = {}
    for t in range(8):
        chosen = set(torch.as_tensor(part.select(range(5), t)).tolist())
        known = sorted(range(5), key=lambda k: -seen.get(k, np.inf))
        assert len(chosen & (set(range(5)) - seen.keys())) == min(2, 5 - len(seen))
        if len(seen) == 5:
            assert chosen == set(known[:2])
        record = fed.round()
        seen |= dict(zip(record.clients["client"], record.clients["loss"], strict=True))
        assert {k: part.reported[k].item() for k in seen} == seen  # type: ignore[attr-defined]


def test_unseen_clients_are_taken_by_chance_not_by_number() -> None:
    firsts = [cohorts(started("rpowd", 1, d=5, seed=s)[0], rounds=1)[0][0] for s in range(400)]
    share = np.bincount(firsts, minlength=5) / 400
    assert np.abs(share - P).max() < 4 * (0.25 / 400) ** 0.5


def test_reported_losses_survive_a_checkpoint() -> None:
    _, a = started("rpowd", 2, d=4)
    for _ in range(3):
        a.round()
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in a.state().items()}
    _, b = started("rpowd", 2, d=4)
    b.restore(state)
    for _ in range(3):
        assert a.round().clients["client"] == b.round().clients["client"]
    assert torch.equal(a.w, b.w)


def test_adapowd_shrinks_to_the_cohort() -> None:
    _, fed = started("adapowd", 2, rounds=20, until=0.5)
    d = [fed.round().numbers["candidates"] for _ in range(20)]
    assert d[0] == 5
    assert d == sorted(d, reverse=True)
    assert d[10:] == [2] * 10
    with pytest.raises(ArnoError, match="without a number of rounds"):
        started("adapowd", 2, rounds=None)


def test_round_robin_visits_everybody_equally() -> None:
    part, _ = started("roundrobin", 2)
    drawn = cohorts(part, rounds=5)
    assert drawn[0] == [0, 1]
    assert drawn[2] == [4, 0]
    assert sorted(k for cohort in drawn for k in cohort) == sorted(list(range(5)) * 2)


def test_schedule_from_a_file(tmp_path) -> None:
    path = tmp_path / "cohorts.json"
    path.write_text(json.dumps([[0, 3], [1]]))
    part, _ = started("schedule", 2, path=str(path))
    assert cohorts(part, rounds=3) == [[0, 3], [1], [0, 3]]
    path.write_text(json.dumps([[9]]))
    with pytest.raises(ArnoError, match="ids run from 0 to 4"):
        started("schedule", 2, path=str(path))
    with pytest.raises(ArnoError, match="select=schedule: the file is not named"):
        started("schedule", 2)


@pytest.mark.parametrize("kind", ["powd", "cpowd", "rpowd", "adapowd"])
def test_too_few_or_too_many_candidates(kind: str) -> None:
    for d in (1, 6):
        rule = rf"select.d = {d}: it must be from 2 \(the cohort\) to 5 \(all clients\)"
        with pytest.raises(ArnoError, match=rule):
            started(kind, 2, d=d)


def test_selection_among_those_left_by_another_part() -> None:
    for kind in ("rand", "uniform", "powd", "rpowd", "roundrobin"):
        part, _ = started(kind, 2)
        for t in range(50):
            assert set(torch.as_tensor(part.select([1, 3, 4], t)).tolist()) <= {1, 3, 4}, kind


def test_a_selection_does_not_depend_on_the_order_of_rounds() -> None:
    for kind in ("rand", "uniform", "powd"):
        part, _ = started(kind, 2)
        forward = [torch.as_tensor(part.select(range(5), t)).tolist() for t in range(6)]
        backward = [torch.as_tensor(part.select(range(5), t)).tolist() for t in reversed(range(6))]
        assert forward == backward[::-1]


@pytest.mark.parametrize("kind", ["rand", "uniform", "powd", "rpowd", "cpowd", "adapowd", "roundrobin"])
def test_clients_are_selected_in_the_round_0_of_a_method(kind: str) -> None:
    """Lorenzo begins with t = −1; later rounds keep their draws."""
    part, _ = started(kind, 2)
    assert set(torch.as_tensor(part.select(range(5), -1)).tolist()) <= set(range(5))
    assert (uniforms(7, np.array([-1, 0, 1]), 3)[1:] == uniforms(7, np.array([0, 1]), 3)).all()


def test_a_million_clients_cost_no_more_than_the_cohort() -> None:
    n = 1_000_000
    q = Quadratic(torch.ones(n), torch.zeros(n, 1))
    part = selections.get("uniform")(5 / n)
    Federation(q, [part])
    assert len(part.select(range(n), 0)) == 5
    import tracemalloc

    tracemalloc.start()
    part.select(range(n), 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_mini_batch_losses_look_at_the_clients_own_samples() -> None:
    from arno.config import build
    from arno.config import settings as config

    torch.set_num_threads(1)
    settings = config.plain(config.compose(["clients=10", "partition.alpha=0.1", "model=softmax", "device=cpu"]))
    p = build.problems.build(settings["problem"], settings)
    w, everybody = p.init(0), torch.arange(10)
    huge = torch.full((10,), 10**6)
    assert torch.allclose(p.batch_losses(w, everybody, huge, 0, 0), p.losses(w, everybody), atol=1e-5)
    small = torch.full((10,), 4)
    draws = torch.stack([p.batch_losses(w, everybody, small, 0, t) for t in range(60)])
    assert torch.equal(draws.std(0) > 1e-3, p.clients.sizes > 4)  # a batch may be all that a client has
    assert ((draws.mean(0) - p.losses(w, everybody)).abs() < 4 * draws.std(0) / 60**0.5 + 1e-5).all()
    one = p.batch_losses(w, torch.tensor([3, 7]), torch.tensor([4, 4]), 0, 5)
    other = p.batch_losses(w, torch.tensor([7, 3]), torch.tensor([4, 4]), 0, 5)
    assert torch.equal(one, other.flip(0))
    fed = build.federation(config.plain(config.compose(
        ["clients=10", "select=cpowd", "select.d=6", "select.batch_size=3", "participation=0.2", "model=softmax"]
    )))  # fmt: skip
    numbers = fed.round().numbers
    assert numbers["loss_evaluations"] == 6
    assert numbers["loss_samples"] == 18
