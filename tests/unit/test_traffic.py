"""What is sent to and from each client, for every method: the formulas of the papers on a small network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation, Local
from arno.core.work import SGD
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.methods import methods
from arno.methods.compose import compose
from arno.methods.finetune import FineTune
from arno.models.linear import MLP
from arno.problems.supervised import Supervised

#: Inputs, hidden units, classes.
F, H, C = 5, 6, 3
#: Numbers in the layers of the network.
FIRST, NORM, HEAD = H * F + H, 2 * H, C * H + C
BUFFERS = 2 * H
D = FIRST + HEAD
#: Of a window with half of the hidden units.
HALF = (H // 2) * F + H // 2 + C * (H // 2) + C
#: Downloaded and uploaded numbers of each client, on a network without buffers.
SENT: dict[str, tuple[int, int]] = {
    "fedavg": (D, D),
    "fedprox": (D, D),
    "fednova": (D, D),
    "fedavgm": (D, D),
    "fedadam": (D, D),
    "fedyogi": (D, D),
    "fedadagrad": (D, D),
    "fedavg_schedule": (D, D),
    "fedvarp": (D, D),
    "cluster_fedvarp": (D, D),
    "feddyn": (D, D),
    "moon": (D, D),
    "fedrcl": (D, D),
    "lorenzo": (D, D),
    "scaffold": (2 * D, 2 * D),
    "fedrolex": (HALF, HALF),
    "federated_dropout": (HALF, HALF),
    "heterofl": (HALF, HALF),
    "fedscavar": (2 * HALF, 2 * HALF),
    "fedlc": (D, D),
    "fedntd": (D, D),
    "feddecorr": (D, D),
    "fedsam": (D, D),
    "fedacg": (D, D),
    "fedexp": (D, D + 1),
    "fedcm": (2 * D, D),
    "feddc": (2 * D, 2 * D),
    "mime": (3 * D, 2 * D),
    "mimelite": (2 * D, 2 * D),
    "local": (0, 0),
    "fedper": (FIRST, FIRST),
    "lg_fedavg": (HEAD, HEAD),
    "fedrep": (FIRST, FIRST),
    "fedbabu": (FIRST, FIRST),
    "fedbn": (D, D),
    "ditto": (D, D),
    "apfl": (D, D),
    "pfedme": (D, D),
    "per_fedavg": (D, D),
    "fedala": (D, D),
    "qrmix": (D, D + 2 * (1 + HEAD)),  # two eigenpairs of the last layer
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cluster_fedvarp": {"clusters": 2},
    "fedscavar": {"clusters": 2},
    "fedavg_schedule": {"schedule": "inverse"},
    "lorenzo": {"min_batches": 0},
    "qrmix": {"rank_k": 2, "oversampling": 1},
}
#: The same on a network with batch normalisation: vectors beside the model have no running statistics.
NORMED: dict[str, tuple[int, int]] = {
    "fedavg": (D + NORM + BUFFERS, D + NORM + BUFFERS),
    "scaffold": (2 * (D + NORM) + BUFFERS, 2 * (D + NORM) + BUFFERS),
    "fedcm": (2 * (D + NORM) + BUFFERS, D + NORM + BUFFERS),
    "feddc": (2 * (D + NORM) + BUFFERS, 2 * (D + NORM) + BUFFERS),
    "mime": (3 * (D + NORM) + BUFFERS, 2 * (D + NORM) + BUFFERS),
    "mimelite": (2 * (D + NORM) + BUFFERS, 2 * (D + NORM) + BUFFERS),
    "fedexp": (D + NORM + BUFFERS, D + NORM + BUFFERS + 1),
    "fedbn": (D, D),
    "fedper": (FIRST + NORM + BUFFERS, FIRST + NORM + BUFFERS),
    "fedrep": (FIRST + NORM + BUFFERS, FIRST + NORM + BUFFERS),
    "fedbabu": (FIRST + NORM + BUFFERS, FIRST + NORM + BUFFERS),
    "lg_fedavg": (HEAD, HEAD),
    "ditto": (D + NORM + BUFFERS, D + NORM + BUFFERS),
    "local": (0, 0),
}


def problem(normed: bool = False) -> Supervised:
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0, 6, 10, 12, 8]).cumsum(0)
    x, y = torch.randn(36, F, generator=g), torch.arange(36) % C
    layers = (nn.Linear(F, H), nn.BatchNorm1d(H), nn.Tanh(), nn.Linear(H, C))
    held = {"val": (x[:10], y[:10])}
    return Supervised(
        x, y, Partition(torch.arange(36), sizes), lambda: nn.Sequential(*layers) if normed else MLP(F, (H,), C, "tanh"),
        transform=Transform((0.0,), (1.0,), 1.0), splits=held,
    )  # fmt: skip


def sent(parts: list[Any], normed: bool = False, draws: tuple[int, ...] = (0, 2)) -> set[tuple[int, int]]:
    """Downloaded and uploaded numbers of every client in two rounds."""
    fed = Federation(problem(normed), [Fixed([list(draws)]), *parts], local=Local(batch_size=4, sgd=SGD()), rounds=2)
    rows = [fed.round().clients for _ in range(2)]
    assert all(row["client"] == sorted(set(draws)) for row in rows)
    return {pair for row in rows for pair in zip(row["downloaded"], row["uploaded"], strict=True)}


@pytest.mark.parametrize("name", [name for name in methods.names() if name != "compose"])
def test_every_method_sends_what_its_paper_sends(name):
    draws = (0, 1, 2, 3) if name == "lorenzo" else (0, 2)
    assert sent(methods.get(name)(**SETTINGS.get(name, {})), draws=draws) == {SENT[name]}


@pytest.mark.parametrize("name", NORMED)
def test_running_statistics_are_sent_with_the_model_alone(name):
    assert sent(methods.get(name)(), normed=True) == {NORMED[name]}


def test_parts_of_one_method_add_up():
    inside = HALF - (C * (H // 2) + C)  # the head stays
    assert sent(compose(parts=("window", "keep", "scaffold"))) == {(2 * inside, 2 * inside)}
    assert sent(compose(parts=("scaffold", "extrapolation"))) == {(2 * D, 2 * D + 1)}
    assert sent(compose(parts=("window", "client_momentum"))) == {(2 * HALF, HALF)}
    assert sent(compose(parts=("window", "mime"))) == {(3 * HALF, 2 * HALF)}
    assert sent(compose(parts=("window", "mimelite", "extrapolation"))) == {(2 * HALF, 2 * HALF + 1)}
    assert sent(compose(parts=("keep", "drift_correction"))) == {(2 * FIRST, 2 * FIRST)}
    assert sent(compose(parts=("fixed_head", "look_ahead"))) == {(FIRST, FIRST)}
    shared = FIRST + NORM  # parameters; the head stays, and vectors beside the model have no running statistics
    assert sent(compose(parts=("keep", "scaffold")), normed=True) == {(2 * shared + BUFFERS,) * 2}
    assert sent(compose(parts=("keep", "scaffold"), keep={"group": "norm"}), normed=True) == {(2 * D, 2 * D)}
    assert sent(compose(parts=("keep", "extrapolation"), keep={"group": "0.*"}), normed=True) == {
        (HEAD + NORM + BUFFERS, HEAD + NORM + BUFFERS + 1)
    }


def test_fine_tuning_for_a_score_sends_nothing():
    fed = Federation(problem(), [tuned := FineTune(2)], local=Local(batch_size=4))
    before = fed.round().clients["uploaded"]
    assert tuned.personal(torch.arange(4)).shape == (4, D)
    assert fed.round().clients["uploaded"] == before == [D] * 4


def test_a_client_drawn_twice_is_counted_once():
    assert sent(methods.get("scaffold")(), draws=(0, 2, 2)) == {(2 * D, 2 * D)}


def test_a_batch_of_one_sample_is_refused_where_batch_normalisation_has_no_variance():
    for batch, client in ((5, "client 0 with 6 samples"), (1, "client 0 with 6"), (9, "client 1 with 10")):
        with pytest.raises(ArnoError, match=f"{client}.*batches of {batch}: .*BatchNorm cannot compute a variance"):
            Federation(problem(normed=True), local=Local(batch_size=batch))
    Federation(problem(), local=Local(batch_size=1)).round()
