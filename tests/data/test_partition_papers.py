"""Partitions that papers name, and splits that stay the same over seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from arno.config.build import split, supervised
from arno.config.settings import as_overrides, compose, plain
from arno.data import partitions
from arno.errors import ArnoError

Y = torch.arange(10).repeat(600)


def built(kind: str, clients: int, seed: int = 0, y: torch.Tensor = Y, **settings: object):
    return partitions.build({"kind": kind, **settings}, y, clients, seed)


@pytest.mark.parametrize("similarity", [0.0, 0.1, 0.5, 1.0])
def test_similar_has_equal_sizes_and_the_share_of_random_samples(similarity):
    """Of the sorted part a client has one class; the random part adds similarity / 10 of every class."""
    partition = built("similar", 10, similarity=similarity)
    assert partition.sizes.unique().tolist() == [600]
    counts = partition.label_counts(Y, 10).double() / 600
    own, others = counts.diag(), counts - counts.diag().diag()
    assert float(own.mean()) == pytest.approx(1 - 0.9 * similarity, abs=0.02)
    assert float(others.sum() / 90) == pytest.approx(similarity / 10, abs=0.005)
    assert partition.heterogeneity(Y, 10) == pytest.approx(0.9 * (1 - similarity), abs=0.06)


def test_similar_without_similarity_is_sorted_data():
    y = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(4), [5, 9, 3, 8])))
    partition = built("similar", 5, y=y, similarity=0.0)
    assert torch.cat([y[partition[k]].sort().values for k in range(5)]).tolist() == sorted(y.tolist())


def test_similar_sizes_differ_by_one_at_most():
    for clients in (3, 7, 11):
        for similarity in (0.0, 0.13, 0.77, 1.0):
            sizes = built("similar", clients, y=torch.arange(100) % 4, similarity=similarity).sizes
            assert int(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize("similarity", [-0.1, 1.5, float("nan")])
def test_a_wrong_similarity_is_an_error(similarity):
    with pytest.raises(ArnoError, match=r"^partition\.similarity = .*: it must be from 0 .* to 1"):
        built("similar", 3, similarity=similarity)


def test_power_law_has_k_classes_each_and_sizes_with_a_long_tail():
    partition = built("power_law", 100, classes=2, sigma=2.0, least=5)
    counts = partition.label_counts(Y, 10)
    assert (counts > 0).sum(1).unique().tolist() == [2]
    assert int(counts[counts > 0].min()) >= 5
    sizes = partition.sizes.double().sort(descending=True).values
    assert float(sizes[:10].sum() / sizes.sum()) > 0.4, "a tenth of the clients has much of the data"
    assert float(sizes[0] / sizes.median()) > 10
    even = built("power_law", 100, classes=2, sigma=0.0).sizes
    assert int(even.max() - even.min()) <= 4


def test_power_law_says_what_does_not_fit():
    with pytest.raises(ArnoError, match=r"^partition\.least = 40: with 100 clients and 2 classes each .* 1 to 30"):
        built("power_law", 100, least=40)
    with pytest.raises(ArnoError, match=r"^partition\.sigma = -1\.0: it must be from 0 to 10"):
        built("power_law", 100, sigma=-1.0)
    with pytest.raises(ArnoError, match=r"^partition\.classes = 11 with clients = 100: there are 10 classes"):
        built("power_law", 100, classes=11)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 10.0])
def test_turns_sample_by_sample_give_equal_sizes(alpha):
    partition = built("dirichlet", 60, alpha=alpha, equal=True, turns="sample")
    assert partition.sizes.unique().tolist() == [100]
    assert torch.equal(partition.indices.sort().values, torch.arange(6000))


def test_turns_sample_by_sample_follow_a_plain_loop():
    """The same law as FedDyn's loop: a client with room draws a class, again if it is used up."""
    y, clients, alpha = torch.arange(4).repeat(25), 5, 0.5
    fast = [built("dirichlet", clients, s, y, alpha=alpha, equal=True, turns="sample") for s in range(400)]
    slow = []
    for s in range(400):
        random = np.random.default_rng(s)
        wish, left, room = random.dirichlet([alpha] * 4, clients), [25] * 4, [20] * clients
        counts = np.zeros((clients, 4))
        while sum(room):
            k = random.choice(clients, p=np.array(room) / sum(room))
            share = wish[k] * (np.array(left) > 0)
            c = random.choice(4, p=share / share.sum())
            counts[k, c] += 1
            left[c] -= 1
            room[k] -= 1
        own = counts / counts.sum(1, keepdims=True)
        slow.append(np.abs(own - 0.25).sum(1).mean() / 2)
    found = np.array([partition.heterogeneity(y, 4) for partition in fast])
    assert found.mean() == pytest.approx(np.mean(slow), abs=0.01)
    assert found.std() == pytest.approx(np.std(slow), rel=0.2)


def test_turns_need_equal_sizes():
    with pytest.raises(ArnoError, match=r"^partition\.turns = sample: it is for equal sizes; add partition\.equal"):
        built("dirichlet", 5, turns="sample")


def composed(*words: str) -> dict:
    return plain(compose(words))


def test_a_split_that_stays_the_same_over_seeds():
    words = ("clients=7", "data.val=0.2", "data.limit=700", "data.client_test=0.2")
    fixed = [supervised(composed(*words, "partition.seed=3", f"seed={seed}")) for seed in (0, 1)]
    usual = [supervised(composed(*words, f"seed={seed}")) for seed in (0, 3)]
    for one in fixed:
        assert torch.equal(one.x, usual[1].x)
        assert torch.equal(one.partition.offsets, usual[1].partition.offsets)
        assert torch.equal(one.own_test.indices, usual[1].own_test.indices)
        assert torch.equal(one.held_out["val"][0], usual[1].held_out["val"][0])
        assert torch.equal(one.split("balanced")[0], usual[1].split("balanced")[0])
    assert not torch.equal(fixed[0].x, usual[0].x)


def test_the_seed_of_a_split_is_no_choice_of_a_partition(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y,who\n" + "".join(f"{i},{i % 2},{'ab'[i % 3 == 0]}\n" for i in range(40)))
    config = composed("data=table", f"data.path={path}", "data.label=y", "data.client=who", "partition.seed=2")
    assert config["partition"] == {"kind": "natural", "seed": 2}
    assert composed(*as_overrides(config)) == config


@pytest.mark.parametrize("words", [("partition=similar",), ("partition=power_law", "partition.classes=3")])
def test_a_regression_is_divided_by_the_deciles_of_its_target(words):
    dataset, train, _, partition = split(composed("data=sklearn", "data.name=diabetes", "clients=5", *words))
    assert torch.equal(partition.indices.sort().values, torch.arange(len(train)))
    means = torch.stack([dataset.y[train][partition[k]].mean() for k in range(5)])
    assert float(means.std()) > 0.3 * float(dataset.y.std())


@pytest.mark.parametrize("kind", ["json", "txt", "csv", "numbers"])
def test_a_file_may_name_the_client_of_each_sample(tmp_path, kind):
    names = ["rome", None, "bern", "rome", "bern", "oslo"]
    path = tmp_path / f"who.{'json' if kind == 'numbers' else kind}"
    if kind in ("json", "numbers"):
        ids = {"bern": 1, "oslo": 0, "rome": 10}
        path.write_text(json.dumps(names if kind == "json" else [one and ids[one] for one in names]))
    else:
        path.write_text("hospital\n" * (kind == "csv") + "".join(f"{one or ''}\n" for one in names))
    partition = built("file", None, y=torch.zeros(6), path=str(path))
    if kind == "numbers":
        assert partition.names == ("0", "1", "10")
        assert [partition[k].tolist() for k in range(3)] == [[5], [2, 4], [0, 3]]
    else:
        assert partition.names == ("bern", "oslo", "rome")
        assert [partition[k].tolist() for k in range(3)] == [[2, 4], [5], [0, 3]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["a", "b"]', "it names the clients of 2 samples, and the data as given have 6; name the client of every"),
        ("[0, 1, 0, 1, 0.5, 1]", "0.5: a client is a name or a whole number"),
        ("[0, 1, 0, 1, false, 1]", "False: a client is a name or a whole number"),
        ("[null, null, null, null, null, null]", "it names no client"),
        ("[]", "a list of sample numbers per client"),
    ],
)
def test_a_bad_column_of_clients_is_an_error(tmp_path, text, said):
    (tmp_path / "who.json").write_text(text)
    with pytest.raises(ArnoError, match=said):
        built("file", None, y=torch.zeros(6), path=str(tmp_path / "who.json"))
