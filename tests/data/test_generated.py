"""Data sets that papers generate: the laws in their descriptions, checked on many clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arno.config.build import split
from arno.config.settings import compose, plain
from arno.data import load
from arno.errors import ArnoError


def whole(**settings: object):
    """Samples, labels and the client of each, test samples included."""
    return load({"kind": "synthetic", **settings})


def test_synthetic_has_the_sizes_of_the_published_generator():
    data = whole(clients=400)
    sizes = data.client.bincount().double() / 0.9
    logs = (sizes - 50).clamp(min=1).log()
    assert int(sizes.min()) >= 44
    assert float(logs.median()) == pytest.approx(4, abs=0.4)
    assert (len(data.clients), data.shape, data.n_classes) == (400, (60,), 10)
    assert len(data.y_test) == pytest.approx(0.1 * (len(data.y) + len(data.y_test)), abs=1)


@pytest.mark.parametrize(
    ("beta", "spread", "expected"), [(0.0, "deviation", 0), (4, "deviation", 4), (4, "variance", 2)]
)
def test_synthetic_inputs_have_the_announced_moments(beta, spread, expected):
    """x ~ N(v_k, Σ), v_k ~ N(B_k, 1), B_k ~ N(0, β): the mean of a client's means over its features is B_k."""
    data = whole(beta=beta, spread=spread, clients=300)
    means = torch.stack([data.x[data.client == k].mean(0) for k in range(300)])
    centers = means.mean(1)
    assert float(centers.std()) == pytest.approx(np.hypot(expected, 60**-0.5), rel=0.15)
    assert float((means - centers[:, None]).std()) == pytest.approx(1, rel=0.05)
    inside = torch.stack([data.x[data.client == k].var(0) for k in range(300)]).mean(0)
    assert torch.allclose(inside, torch.arange(1, 61) ** -1.2, rtol=0.15)


def test_synthetic_labels_are_those_of_a_linear_model():
    """Every client's labels are fitted by a linear model of its own; the same model for all only if `iid`."""
    from sklearn.linear_model import LogisticRegression

    data, same = whole(clients=3, features=5, classes=3), whole(clients=8, features=5, classes=3, iid=True)
    for k in range(3):
        rows = data.client == k
        model = LogisticRegression(C=1e4, max_iter=5000).fit(data.x[rows], data.y[rows])
        assert model.score(data.x[rows], data.y[rows]) > 0.97
    assert LogisticRegression(C=1e4, max_iter=5000).fit(same.x, same.y).score(same.x, same.y) > 0.97


def test_beta_is_a_deviation_or_a_variance():
    assert whole(beta=4.0, spread="variance").fingerprint() == whole(beta=2.0).fingerprint()
    assert whole(beta=4.0).fingerprint() != whole(beta=4.0, spread="variance").fingerprint()
    assert whole().fingerprint() == whole(spread="variance").fingerprint()
    assert whole(seed=1).fingerprint() != whole().fingerprint()


def test_alpha_changes_no_label():
    """u_k is added to the scores of all classes alike: W_kᵀx + b_k grows by u_k (Σ_j x_j + 1) in every class."""
    assert whole(alpha=0.0).fingerprint() == whole(alpha=1.0).fingerprint()


def test_their_clients_are_the_default_partition():
    dataset, train, held, partition = split(plain(compose(["data=synthetic", "data.clients=6"])))
    assert len(partition) == 6
    for k in range(6):
        assert set(dataset.client[train][partition[k]].tolist()) == {k}
    assert len(held) == round(0.1 * len(dataset.y))


def test_the_linear_regression_of_fedexp_has_one_solution_for_all():
    data = load({"kind": "linear"})
    assert data.x.shape == (600, 1000)
    assert data.client.bincount().tolist() == [30] * 20
    assert torch.allclose(data.x.norm(dim=1), torch.ones(600), atol=1e-5)
    norms = torch.stack([data.y[data.client == k].norm() for k in range(20)])
    assert torch.allclose(norms, torch.ones(20), atol=1e-5)
    w = torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution
    assert float((data.x.double() @ w - data.y[:, None]).abs().max()) < 1e-8
    assert torch.equal(data.x, data.x_test), "the paper shows the training loss"
    assert data.val == 0
    assert len(load({"kind": "linear", "test": 0.2}).y_test) == 120


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "synthetic", "alpha": -1.0}, r"^data.alpha = -1: it must not be negative"),
        ({"kind": "synthetic", "classes": 1}, r"^data.classes = 1: at least 2 are needed"),
        ({"kind": "linear", "clients": 0}, r"^data.clients = 0: at least 1 are needed"),
        ({"kind": "linear", "test": 1.0}, r"^data.test = 1.0: it must be a share"),
        ({"kind": "linear", "features": 10**9, "samples": 10**6}, r"^data=linear: .* bytes: at most"),
    ],
)
def test_settings_without_a_meaning_are_errors(settings, said):
    with pytest.raises(ArnoError, match=said):
        load(settings)
