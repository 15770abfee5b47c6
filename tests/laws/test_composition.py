"""Every pair of parts gives the same bits in both orders, or is refused in both with the same reason."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from lorenzo_laws import problem as drawn
from part_laws import reason

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation, Local
from arno.core.method_part import Part, in_order
from arno.core.work import SGD
from arno.errors import ArnoError
from arno.methods import parts
from arno.methods.compose import compose

PARTS = parts.names()
problem = cache(drawn)  # runs do not change it
#: Pairs that make no sense, and a word of the reason.
REFUSED = {
    "client_momentum+drift_correction": "control vectors",
    "client_momentum+dyn": "control vectors",
    "client_momentum+envelope": "its local step is defined without such a part",
    "client_momentum+fixed_head": "the server has no momentum for layers that stay with the clients",
    "client_momentum+head_then_body": "steps of the head do not change the body",
    "client_momentum+keep": "the server has no momentum for layers that stay with the clients",
    "client_momentum+local_aggregation": "contains its mixture",
    "client_momentum+look_ahead": "changes the size of the updates from which FedCM computes M",
    "client_momentum+meta_step": "its local step is defined without such a part",
    "client_momentum+mime": "control vectors",
    "client_momentum+mimelite": "control vectors",
    "client_momentum+mixture": "its local step is defined without such a part",
    "client_momentum+nova": "changes the size of the updates from which FedCM computes M",
    "client_momentum+scaffold": "control vectors",
    "cluster_varp+drift_correction": "averaged",
    "cluster_varp+dyn": "averaged",
    "cluster_varp+extrapolation": "FedExP needs the plain mean of the updates",
    "cluster_varp+lorenzo": "averaged",
    "cluster_varp+nova": "averaged",
    "cluster_varp+qrmix": "averaged",
    "cluster_varp+varp": "averaged",
    "drift_correction+dyn": "control vectors",
    "drift_correction+envelope": "its local step is defined without such a part",
    "drift_correction+extrapolation": "a server optimiser would count the drift again in every round",
    "drift_correction+head_then_body": "steps of the head do not change the body",
    "drift_correction+local_aggregation": "contains its mixture",
    "drift_correction+look_ahead": "a server optimiser would count the drift again in every round",
    "drift_correction+lorenzo": "averaged",
    "drift_correction+meta_step": "its local step is defined without such a part",
    "drift_correction+mime": "control vectors",
    "drift_correction+mimelite": "control vectors",
    "drift_correction+mixture": "its local step is defined without such a part",
    "drift_correction+nova": "averaged",
    "drift_correction+qrmix": "averaged",
    "drift_correction+scaffold": "control vectors",
    "drift_correction+server_adaptive": "a server optimiser would count the drift again in every round",
    "drift_correction+server_momentum": "a server optimiser would count the drift again in every round",
    "drift_correction+varp": "averaged",
    "drift_correction+window": "a drift belongs to the whole model",
    "dyn+envelope": "its local step is defined without such a part",
    "dyn+extrapolation": "FedExP needs the plain mean of the updates",
    "dyn+head_then_body": "steps of the head do not change the body",
    "dyn+local_aggregation": "contains its mixture",
    "dyn+lorenzo": "averaged",
    "dyn+meta_step": "its local step is defined without such a part",
    "dyn+mime": "control vectors",
    "dyn+mimelite": "control vectors",
    "dyn+mixture": "its local step is defined without such a part",
    "dyn+nova": "averaged",
    "dyn+qrmix": "averaged",
    "dyn+scaffold": "control vectors",
    "dyn+varp": "averaged",
    "envelope+finetune": "gives every client a personal model",
    "envelope+fixed_head": "gives every client a personal model",
    "envelope+head_then_body": "gives every client a personal model",
    "envelope+keep": "gives every client a personal model",
    "envelope+local_aggregation": "gives every client a personal model",
    "envelope+lorenzo": "trains one global model",
    "envelope+meta_step": "gives every client a personal model",
    "envelope+mime": "both change the step of local training",
    "envelope+mimelite": "its local step is defined without such a part",
    "envelope+mixture": "gives every client a personal model",
    "envelope+personal_model": "gives every client a personal model",
    "envelope+proximal": "its local step is defined without such a part",
    "envelope+qrmix": "averages the last layer",
    "envelope+sam": "local step",
    "envelope+scaffold": "its local step is defined without such a part",
    "envelope+window": "its local step is defined without such a part",
    "extrapolation+look_ahead": "optimiser",
    "extrapolation+lorenzo": "optimiser",
    "extrapolation+nova": "FedExP needs the plain mean of the updates",
    "extrapolation+qrmix": "FedExP needs the plain mean of the updates",
    "extrapolation+server_adaptive": "optimiser",
    "extrapolation+server_momentum": "optimiser",
    "extrapolation+varp": "FedExP needs the plain mean of the updates",
    "finetune+fixed_head": "gives every client a personal model",
    "finetune+head_then_body": "gives every client a personal model",
    "finetune+keep": "gives every client a personal model",
    "finetune+local_aggregation": "gives every client a personal model",
    "finetune+meta_step": "gives every client a personal model",
    "finetune+mixture": "gives every client a personal model",
    "finetune+personal_model": "gives every client a personal model",
    "fixed_head+head_then_body": "gives every client a personal model",
    "fixed_head+keep": "gives every client a personal model",
    "fixed_head+local_aggregation": "gives every client a personal model",
    "fixed_head+lorenzo": "trains one global model",
    "fixed_head+meta_step": "gives every client a personal model",
    "fixed_head+mime": "both change the step of local training",
    "fixed_head+mimelite": "the server has no momentum for layers that stay with the clients",
    "fixed_head+mixture": "gives every client a personal model",
    "fixed_head+personal_model": "gives every client a personal model",
    "fixed_head+qrmix": "averages the last layer",
    "fixed_head+sam": "local step",
    "head_then_body+keep": "gives every client a personal model",
    "head_then_body+local_aggregation": "gives every client a personal model",
    "head_then_body+lorenzo": "trains one global model",
    "head_then_body+meta_step": "gives every client a personal model",
    "head_then_body+mime": "both change the step of local training",
    "head_then_body+mimelite": "the server has no momentum for layers that stay with the clients",
    "head_then_body+mixture": "gives every client a personal model",
    "head_then_body+nova": "steps of the head do not change the body",
    "head_then_body+personal_model": "gives every client a personal model",
    "head_then_body+qrmix": "averages the last layer",
    "head_then_body+sam": "local step",
    "head_then_body+scaffold": "steps of the head do not change the body",
    "keep+local_aggregation": "gives every client a personal model",
    "keep+lorenzo": "trains one global model",
    "keep+meta_step": "gives every client a personal model",
    "keep+mime": "the server has no momentum for layers that stay with the clients",
    "keep+mimelite": "the server has no momentum for layers that stay with the clients",
    "keep+mixture": "gives every client a personal model",
    "keep+personal_model": "gives every client a personal model",
    "keep+qrmix": "averages the last layer",
    "local_aggregation+lorenzo": "trains one global model",
    "local_aggregation+meta_step": "gives every client a personal model",
    "local_aggregation+mime": "both change the step of local training",
    "local_aggregation+mimelite": "contains its mixture",
    "local_aggregation+mixture": "gives every client a personal model",
    "local_aggregation+personal_model": "gives every client a personal model",
    "local_aggregation+qrmix": "averages the last layer",
    "local_aggregation+sam": "local step",
    "local_aggregation+scaffold": "contains its mixture",
    "local_aggregation+window": "the layers of the whole model",
    "look_ahead+lorenzo": "optimiser",
    "look_ahead+mime": "both keep a momentum on the server",
    "look_ahead+mimelite": "both keep a momentum on the server",
    "look_ahead+server_adaptive": "optimiser",
    "look_ahead+server_momentum": "optimiser",
    "look_ahead+server_schedule": "different rates",
    "lorenzo+meta_step": "trains one global model",
    "lorenzo+mime": "order",
    "lorenzo+mimelite": "order",
    "lorenzo+mixture": "trains one global model",
    "lorenzo+nova": "averaged",
    "lorenzo+personal_model": "trains one global model",
    "lorenzo+qrmix": "averaged",
    "lorenzo+server_adaptive": "optimiser",
    "lorenzo+server_momentum": "optimiser",
    "lorenzo+server_schedule": "a mean, not a step",
    "lorenzo+varp": "averaged",
    "meta_step+mime": "both change the step of local training",
    "meta_step+mimelite": "its local step is defined without such a part",
    "meta_step+mixture": "gives every client a personal model",
    "meta_step+personal_model": "gives every client a personal model",
    "meta_step+proximal": "its local step is defined without such a part",
    "meta_step+qrmix": "averages the last layer",
    "meta_step+sam": "local step",
    "meta_step+scaffold": "its local step is defined without such a part",
    "meta_step+window": "its local step is defined without such a part",
    "mime+mimelite": "control vectors",
    "mime+mixture": "both change the step of local training",
    "mime+personal_model": "both change the step of local training",
    "mime+sam": "both change the step of local training",
    "mime+scaffold": "control vectors",
    "mime+server_adaptive": "both keep a momentum on the server",
    "mime+server_momentum": "both keep a momentum on the server",
    "mimelite+mixture": "its local step is defined without such a part",
    "mimelite+scaffold": "control vectors",
    "mimelite+server_adaptive": "both keep a momentum on the server",
    "mimelite+server_momentum": "both keep a momentum on the server",
    "mixture+personal_model": "gives every client a personal model",
    "mixture+proximal": "its local step is defined without such a part",
    "mixture+qrmix": "averages the last layer",
    "mixture+sam": "local step",
    "mixture+scaffold": "its local step is defined without such a part",
    "mixture+window": "its local step is defined without such a part",
    "nova+qrmix": "averaged",
    "nova+varp": "averaged",
    "personal_model+qrmix": "averages the last layer",
    "personal_model+sam": "local step",
    "qrmix+varp": "averaged",
    "qrmix+window": "different last layers",
    "server_adaptive+server_momentum": "optimiser",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cluster_varp": {"clusters": 3},
    "dyn": {"alpha": 0.1},
    "qrmix": {"rank_k": 3, "oversampling": 3},
    "server_schedule": {"schedule": "inverse"},
}


def make(names: Sequence[str]) -> list[Part]:
    return [parts.get(name)(**SETTINGS.get(name, {})) for name in names]


def federation(names: Sequence[str]) -> Federation:
    """A problem that suits every part; half of the clients take part where the parts allow it."""
    cohorts = [] if "lorenzo" in names else [Fixed([[0, 2], [1, 3], [2, 3]])]
    local = Local(epochs=[1, 2, 1, 3], batch_size=4, lr=0.05)
    chosen = [*make(names), *cohorts]
    return Federation(problem(), chosen, local=local, rounds=3, server_lr=0.01 if "server_adaptive" in names else 1)


@pytest.mark.parametrize("pair", ["+".join(pair) for pair in combinations(PARTS, 2)])
def test_the_order_in_which_two_parts_are_listed_does_not_matter(pair: str) -> None:
    names = pair.split("+")
    if pair in REFUSED:
        why = reason(lambda: federation(names))
        assert REFUSED[pair] in why
        assert "leave" in why
        assert reason(lambda: federation(names[::-1])) == why
        return
    one, other = federation(names), federation(names[::-1])
    records = [(one.round(), other.round()) for _ in range(3)]
    assert torch.isfinite(one.w).all()
    assert float((one.w - problem().init(0)).norm()) > 0
    assert torch.equal(one.w, other.w)
    for a, b in records:
        assert a.clients["client"] == b.clients["client"]
        assert a.clients["delta_norm"] == b.clients["delta_norm"]
    for (name, a), (same, b) in zip(one.state().items(), other.state().items(), strict=True):
        assert name == same
        assert not isinstance(a, torch.Tensor) or torch.equal(a, b), name


@pytest.mark.parametrize("name", PARTS)
def test_a_part_stands_in_a_method_once(name: str) -> None:
    with pytest.raises(ArnoError, match="once"):
        in_order(make([name, name]))


def test_all_the_parts_of_fedscavar_by_name() -> None:
    named = compose(parts=("cluster_varp", "scaffold", "proximal", "window"), cluster_varp={"clusters": 3})
    assert [type(part).__name__ for part in in_order(named)] == ["Window", "Proximal", "Scaffold", "ClusterVarp"]
    fed = Federation(problem(), named, local=Local(lr=0.05))
    fed.round()
    assert torch.isfinite(fed.w).all()


def test_scaffold_refuses_momentum() -> None:
    with pytest.raises(ArnoError, match=r"momentum = 0\.9.*plain SGD"):
        Federation(problem(), make(["scaffold"]), local=Local(sgd=SGD(momentum=0.9)))


def test_compose_refuses_settings_of_parts_that_are_not_there() -> None:
    with pytest.raises(ArnoError, match=r"method\.window is set"):
        compose(parts=("scaffold",), window={"beta": 0.25})


def test_a_part_without_a_role_chooses_among_the_clients_that_the_selection_left() -> None:
    class First(Part):
        def select(self, ids: Any, t: int) -> Any:
            return ids[:1]

    for listed in ([First(), Fixed([[2, 3]])], [Fixed([[2, 3]]), First()]):
        fed = Federation(problem(), listed, local=Local(lr=0.05))
        assert fed.round().clients["client"] == [2]
