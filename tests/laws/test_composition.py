"""Every pair of parts that makes sense runs; the others are refused with the reason."""

from itertools import combinations

import pytest
import torch

from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation, Local, refuse_conflicts
from arno.core.work import SGD
from arno.errors import ArnoError
from arno.methods import parts
from arno.selection import Uniform

PARTS = parts.names()
REFUSED = {
    "cluster_varp+dyn",
    "cluster_varp+nova",
    "cluster_varp+varp",
    "dyn+nova",
    "dyn+scaffold",
    "dyn+varp",
    "nova+varp",
    "cluster_varp+qrmix",
    "dyn+qrmix",
    "nova+qrmix",
    "qrmix+varp",
    "qrmix+window",
    "server_adaptive+server_momentum",
}


@pytest.fixture(scope="module")
def digits():
    config = plain(compose(["clients=8", "partition.alpha=0.3", "model.hidden=[12]", "data.limit=300"]))
    return build.classification(config)


def runs(problem, chosen, **settings):
    fed = Federation(problem, [Uniform(0.5), *chosen], local=Local(epochs=1, lr=0.05), rounds=3, **settings)
    for _ in range(3):
        fed.round()
    assert torch.isfinite(fed.w).all()
    assert float((fed.w - problem.init(0)).norm()) > 0


@pytest.mark.parametrize("pair", ["+".join(pair) for pair in combinations(PARTS, 2)])
def test_every_pair_runs_or_is_refused(digits, pair):
    a, b = pair.split("+")
    chosen = [parts.get(name)() for name in (a, b)]
    for part in chosen:
        if hasattr(part, "clusters"):
            part.clusters = 3
    settings = {"server_lr": 0.01} if "server_adaptive" in (a, b) else {}
    if any("schedule" in part.roles for part in chosen):
        pytest.skip("sequential parts have tests of their own")
    if pair in REFUSED:
        with pytest.raises(ArnoError, match=r"leave one (of them )?out"):
            Federation(digits, chosen)
        return
    runs(digits, chosen, **settings)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_stands_in_a_method_once(name):
    with pytest.raises(ArnoError, match="once"):
        refuse_conflicts([parts.get(name)(), parts.get(name)()])


def test_all_the_parts_of_fedscavar_by_name(digits):
    from arno.methods.compose import compose as by_name

    named = by_name(parts=("window", "proximal", "scaffold", "cluster_varp"), cluster_varp={"clusters": 3})
    runs(digits, named)


def test_scaffold_refuses_momentum(digits):
    with pytest.raises(ArnoError, match=r"momentum = 0\.9.*plain SGD"):
        Federation(digits, [parts.get("scaffold")()], local=Local(sgd=SGD(momentum=0.9)))


def test_compose_refuses_settings_of_parts_that_are_not_there():
    from arno.methods.compose import compose as by_name

    with pytest.raises(ArnoError, match=r"method\.window is set"):
        by_name(parts=("scaffold",), window={"beta": 0.25})
