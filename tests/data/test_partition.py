"""The laws of partitions: disjoint, complete, no client empty, the same for the same seed."""

from __future__ import annotations

import gzip
import json
import time

import numpy as np
import pytest
import torch

from arno.config.build import split
from arno.config.settings import compose, current, plain
from arno.data import Partition, partitions, split_validation
from arno.data.partition import as_partition
from arno.errors import ArnoError

Y = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 1293))

COMPLETE = [
    {"kind": "iid"},
    {"kind": "dirichlet", "alpha": 0.1},
    {"kind": "dirichlet", "alpha": 10.0, "min_size": 5},
    {"kind": "dirichlet", "alpha": 0.1, "equal": True},
    {"kind": "dirichlet", "alpha": 1e-6, "equal": True},
    {"kind": "shards"},
    {"kind": "shards", "shards": 5},
    {"kind": "classes"},
    {"kind": "classes", "classes": 7},
    {"kind": "dirichlet", "alpha": 0.3, "equal": True, "turns": "sample"},
    {"kind": "dirichlet", "alpha": 1e-6, "equal": True, "turns": "sample"},
    {"kind": "power_law"},
    {"kind": "power_law", "classes": 3, "sigma": 0.5, "least": 2},
    {"kind": "similar"},
    {"kind": "similar", "similarity": 0.0},
    {"kind": "similar", "similarity": 1.0},
    {"kind": "quantity"},
    {"kind": "quantity", "exponent": 3.0},
]


def same(a: Partition, b: Partition) -> bool:
    return torch.equal(a.indices, b.indices) and torch.equal(a.offsets, b.offsets)


@pytest.mark.parametrize("config", COMPLETE, ids=str)
@pytest.mark.parametrize("clients", [5, 10, 100])
def test_disjoint_complete_and_nobody_is_empty(config, clients):
    partition = partitions.build(config, Y, clients, 3)
    assert len(partition) == clients
    assert torch.equal(partition.indices.sort().values, torch.arange(len(Y)))
    assert int(partition.sizes.min()) >= config.get("min_size", 1)
    assert torch.equal(torch.cat([partition[k] for k in range(clients)]), partition.indices)


@pytest.mark.parametrize("config", [*COMPLETE, {"kind": "replace"}], ids=str)
def test_the_seed_decides(config):
    first, again, other = (partitions.build(config, Y, 20, seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    assert same(first, partitions.build(config, Y.numpy(), 20, 1))


def test_every_partition_is_tested_here():
    assert {c["kind"] for c in COMPLETE} | {"replace", "file", "natural"} == set(partitions.names())


def test_dirichlet_goes_from_one_class_each_to_iid():
    y = torch.arange(10).repeat(1000)
    distance = [
        partitions.build({"kind": "dirichlet", "alpha": a}, y, 10, 0).heterogeneity(y, 10) for a in (0.05, 0.5, 5, 1e6)
    ]
    assert distance == sorted(distance, reverse=True)
    assert distance[0] > 0.7
    assert distance[-1] < 0.01


def test_dirichlet_shares_have_the_moments_of_the_law():
    """A client's share of a class is Beta(α, (N − 1) α): mean 1/N, variance (N − 1) / (N² (N α + 1))."""
    clients, alpha, y = 8, 0.7, torch.zeros(4000, dtype=torch.int64)
    shares = torch.stack(
        [partitions.build({"kind": "dirichlet", "alpha": alpha}, y, clients, s).sizes / len(y) for s in range(400)]
    )
    # Clients with nothing are drawn again, which hardly matters: a share below 1/4000 has probability 0.02.
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert torch.allclose(shares.mean(0), torch.full((clients,), 1 / clients), atol=0.03)
    assert float(shares.var()) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
def test_equal_sizes_and_the_same_skew(alpha):
    y = torch.arange(10).repeat(500)
    even = partitions.build({"kind": "dirichlet", "alpha": alpha, "equal": True}, y, 50, 0)
    free = partitions.build({"kind": "dirichlet", "alpha": alpha}, y, 50, 0)
    assert even.sizes.unique().tolist() == [100]
    assert free.sizes.unique().numel() > 10
    assert even.heterogeneity(y, 10) == pytest.approx(free.heterogeneity(y, 10), abs=0.08)


def test_strong_skew_on_little_data_works_for_every_seed():
    """100 clients, 1,293 samples, α = 0.1: a plain draw leaves no client empty about once in a hundred times."""
    for seed in range(30):
        partition = partitions.build({"kind": "dirichlet", "alpha": 0.1}, Y, 100, seed)
        assert int(partition.sizes.min()) >= 1
        assert partition.heterogeneity(Y, 10) > 0.65


def test_rounding_favours_no_client():
    """With more clients than samples of a class, who goes without differs from class to class."""
    y = torch.arange(10).repeat(100)
    sizes = partitions.build({"kind": "dirichlet", "alpha": 1e9, "tries": 0}, y, 150, 0).sizes
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) <= 10


def test_what_dirichlet_cannot_reach_is_an_error_that_names_everything():
    with pytest.raises(ArnoError, match=r"alpha = 0\.01 with clients = 100, partition\.min_size = 5: 50 draws.*equal"):
        partitions.build({"kind": "dirichlet", "alpha": 0.01, "min_size": 5, "tries": 50}, Y, 100, 0)
    with pytest.raises(ArnoError, match=r"needs 2000 training samples and there are 1293.*min_size=12"):
        partitions.build({"kind": "dirichlet", "min_size": 20}, Y, 100, 0)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArnoError, match=r"partition\.alpha"):
            partitions.build({"kind": "dirichlet", "alpha": alpha}, Y, 10, 0)


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_classes_per_client_are_exact_and_every_class_is_held(each):
    counts = partitions.build({"kind": "classes", "classes": each}, Y, 37, 0).label_counts(Y, 10)
    assert (counts > 0).sum(1).unique().tolist() == [each]
    holders = (counts > 0).sum(0)
    assert int(holders.max() - holders.min()) <= 1
    for c in range(10):
        held = counts[:, c][counts[:, c] > 0]
        assert int(held.max() - held.min()) <= 1


def test_a_rare_class_gets_no_more_holders_than_samples():
    y = torch.tensor([0] * 100 + [1] * 100 + [4] * 3)
    counts = partitions.build({"kind": "classes", "classes": 2}, y, 30, 0).label_counts(y, 5)
    assert (counts > 0).sum(1).unique().tolist() == [2]
    assert int((counts[:, 4] > 0).sum()) == 3


@pytest.mark.parametrize(("clients", "each", "said"), [(4, 2, "no holder"), (10, 11, "there are 10"), (10, 0, "1 to")])
def test_impossible_classes_are_errors(clients, each, said):
    with pytest.raises(ArnoError, match=said):
        partitions.build({"kind": "classes", "classes": each}, Y, clients, 0)
    with pytest.raises(ArnoError, match="are too few"):
        partitions.build({"kind": "classes", "classes": 3}, torch.arange(10).repeat(3), 11, 0)


def test_shards_leave_few_classes_and_even_sizes():
    y = torch.arange(10).repeat(600)
    partition = partitions.build({"kind": "shards", "shards": 2}, y, 100, 0)
    assert partition.sizes.unique().tolist() == [60]
    assert int((partition.label_counts(y, 10) > 0).sum(1).max()) == 2
    with pytest.raises(ArnoError, match=r"shards = 20 with clients = 100.*shards=12"):
        partitions.build({"kind": "shards", "shards": 20}, Y, 100, 0)


def test_quantity_follows_the_power_law_and_keeps_labels_mixed():
    y = torch.arange(10).repeat(10_000)
    sizes = partitions.build({"kind": "quantity", "exponent": 1.0}, y, 10, 0).sizes.sort(descending=True).values
    ranks = torch.arange(1, 11)
    assert torch.allclose(sizes / sizes[0], 1 / ranks, rtol=1e-3)
    even = partitions.build({"kind": "quantity", "exponent": 0.0}, y, 10, 0)
    assert int(even.sizes.max() - even.sizes.min()) <= 1
    assert even.heterogeneity(y, 10) < 0.05


def test_iid_is_as_mixed_as_chance_allows():
    y = torch.arange(10).repeat(1000)
    partition = partitions.build({"kind": "iid"}, y, 10, 0)
    assert partition.heterogeneity(y, 10) < 0.06
    assert partition.sizes.unique().tolist() == [1000]


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "classes", "quantity"])
@pytest.mark.parametrize("clients", [0, -3, 1294])
def test_too_few_or_too_many_clients(kind, clients):
    with pytest.raises(ArnoError, match=f"clients = {clients}"):
        partitions.build({"kind": kind}, Y, clients, 0)


def test_a_million_clients_with_replacement_are_cheap():
    start = time.perf_counter()
    partition = partitions.build({"kind": "replace", "size": 20}, Y, 1_000_000, 0)
    assert time.perf_counter() - start < 2
    assert partition.indices.dtype == torch.int32
    assert partition[999_999].dtype == torch.int64
    assert partition[123_456].shape == (20,)
    assert (int(partition.indices.min()), int(partition.indices.max())) == (0, len(Y) - 1)
    uses = torch.bincount(partition.indices)
    assert float(uses.float().std() / uses.float().mean()) < 0.02  # uniform: 1/√15,468 = 0.008


def write(tmp_path, rows):
    path = tmp_path / "clients.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
    return {"kind": "file", "path": str(path)}


def test_a_partition_from_a_file(tmp_path):
    partition = partitions.build(write(tmp_path, [[5, 3], [0], [1, 2, 9]]), Y, 3, 0)
    assert [partition[k].tolist() for k in range(3)] == [[5, 3], [0], [1, 2, 9]]
    assert partition.names is None


def test_a_partition_from_a_file_with_names(tmp_path):
    partition = partitions.build(write(tmp_path, {"rome": [5, 3], "bern": [0]}), Y, None, 0)
    assert [partition[k].tolist() for k in range(2)] == [[5, 3], [0]]
    assert partition.names == ("rome", "bern")


def rows_of(y, k: int) -> list[int]:
    return np.flatnonzero(y == k).tolist()


@pytest.fixture
def labelled(tmp_path):
    """400 samples of 4 classes in an .npz file with test data, and the same without; client k holds class k."""
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 400)
    x = random.normal(size=(400, 3)).astype(np.float32)
    np.savez(tmp_path / "with.npz", x=x, y=y, x_test=x[:40], y_test=y[:40])
    np.savez(tmp_path / "without.npz", x=x, y=y)
    return y, write(tmp_path, [rows_of(y, k) for k in range(4)])["path"]


def counted(path, who: str, *more: str):
    words = ["data=npz", f"data.path={path}", "partition=file", f"partition.path={who}", *more]
    dataset, train, held, partition = split(plain(compose(words)))
    return dataset, train, held, partition, partition.label_counts(dataset.y[train], 4)


@pytest.mark.parametrize("name", ["with", "without"])
def test_a_file_addresses_the_data_as_given(tmp_path, labelled, name):
    y, who = labelled
    dataset, _, held, _, counts = counted(tmp_path / f"{name}.npz", who)
    assert torch.equal(counts, counts.diag().diag()), "client k holds class k alone"
    assert len(held) == round(0.1 * len(dataset.y))
    assert counts.sum() + len(held) == len(dataset.y)
    inside = torch.bincount(dataset.y[held], minlength=4) / torch.bincount(dataset.y, minlength=4)
    assert inside.sub(0.1).abs().max() < 0.02, "validation samples are taken inside each client"
    given = np.arange(400) if dataset.rows is None else dataset.rows.numpy()
    assert np.array_equal(y[given], dataset.y)


def test_samples_that_no_client_has_are_not_used(tmp_path, labelled):
    y, _ = labelled
    who = write(tmp_path, [rows_of(y, k)[:20] for k in range(4)])["path"]
    _, train, held, _, counts = counted(tmp_path / "with.npz", who, "data.val=0.25")
    assert counts.tolist() == (15 * torch.eye(4, dtype=torch.int64)).tolist()
    assert sorted([*train.tolist(), *held.tolist()]) == sorted(i for k in range(4) for i in rows_of(y, k)[:20])


def test_a_client_of_test_samples_alone_is_an_error(tmp_path, labelled):
    _, who = labelled
    dataset = counted(tmp_path / "without.npz", who)[0]
    tested = sorted({*range(400)} - {*dataset.rows.tolist()})
    who = write(tmp_path, [tested[:3], dataset.rows[:50].tolist()])["path"]
    with pytest.raises(ArnoError, match="client 0: its 3 samples are all test samples or were left out"):
        counted(tmp_path / "without.npz", who)


def test_without_validation_the_order_of_the_file_is_kept(tmp_path, labelled):
    who = write(tmp_path, [[7, 3, 5], [2, 0]])["path"]
    _, train, _, partition, _ = counted(tmp_path / "with.npz", who, "data.val=0")
    assert [train[partition[k]].tolist() for k in range(2)] == [[7, 3, 5], [2, 0]]


def test_a_run_of_release_0_1_keeps_the_meaning_of_its_file(tmp_path, labelled):
    y, _ = labelled
    who = write(tmp_path, [[0, 1, 2], [3, 4]])["path"]
    old = {"method": {"kind": "fedavg"}, "problem": {"kind": "classification"}, "clients": 2}
    old |= {"data": {"kind": "npz", "path": str(tmp_path / "with.npz")}, "partition": {"kind": "file", "path": who}}
    _, train, _, partition = split(current(old))
    assert torch.equal(train, split_validation(y, 0.1, 0)[0])
    assert [partition[k].tolist() for k in range(2)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("packed", [True, False])
def test_the_split_files_of_fedrcl_are_read_as_they_are(tmp_path, labelled, packed):
    """A Python dictionary from client to sample numbers, in any order of the clients, compressed."""
    y, _ = labelled
    shuffled = np.random.default_rng(1).permutation(400).reshape(8, 50)
    text = str({k: shuffled[k].tolist() for k in (0, 2, 1, 3, 4, 5, 7, 6)}).encode()
    path = tmp_path / f"dirichlet0.3_clients8.txt{'.gz' * packed}"
    path.write_bytes(gzip.compress(text) if packed else text)
    *_, partition, counts = counted(tmp_path / "with.npz", str(path), "data.val=0")
    by_hand = [np.bincount(y[rows], minlength=4).tolist() for rows in shuffled]
    assert counts.tolist() == by_hand
    assert partition.names is None


def test_the_published_split_files_of_fedrcl(shared):
    folder = shared / "fedrcl-splits"
    if not folder.is_dir():
        pytest.skip("the split files of FedRCL are not here")
    for path in sorted(folder.glob("*.gz")):
        partition = partitions.build({"kind": "file", "path": str(path)}, torch.zeros(50_000), None, 0)
        assert partition.sizes.tolist() == [500] * 100
        assert len(partition.indices.unique()) == 50_000


def test_compressed_text_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b" " * (65 * 2**20)))
    with pytest.raises(ArnoError, match="at most"):
        partitions.build({"kind": "file", "path": str(path)}, Y, 2, 0)
    path.write_bytes(gzip.compress(b"{0: [1]}")[:-6])
    with pytest.raises(ArnoError, match="cannot be read"):
        partitions.build({"kind": "file", "path": str(path)}, Y, 2, 0)


def test_natural_gives_clients_the_samples_that_the_data_say():
    partition = partitions.build({"kind": "natural"}, Y, None, 0)
    for k in range(10):
        assert partition[k].tolist() == rows_of(Y.numpy(), k)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0], [1293]], "client 1 .* from 0 to 1292"),
        ([[0], [-1]], "client 1 "),
        ([[0], [1.5]], "whole numbers"),
        ([[0], [True]], "whole numbers"),
        ([[0, 1], [1]], "client 1 .* shares one"),
        ([[0, 0], [1]], "client 0 .* twice"),
        ([[0], []], "client 1 .* no samples"),
        ([[0]], "lists for 1 clients, the run has 2; set clients=1"),
        ({"0": [1]}, "lists for 1 clients, the run has 2; set clients=1"),
        ({"a": [1], "b": 2}, "a list of sample numbers per client"),
        ("{0: [1], 1: __import__('os')}", "cannot be read"),
        ("[[0], [1", "JSON"),
    ],
)
def test_a_bad_file_is_an_error(tmp_path, rows, said):
    with pytest.raises(ArnoError, match=said):
        partitions.build(write(tmp_path, rows), Y, 2, 0)
    with pytest.raises(ArnoError, match="partition=file"):
        partitions.build({"kind": "file"}, Y, 2, 0)


def test_counts_and_distance_against_a_plain_loop():
    partition = partitions.build({"kind": "dirichlet", "alpha": 0.3}, Y, 12, 0)
    counts = torch.stack([torch.bincount(Y[partition[k]], minlength=11) for k in range(12)])
    assert torch.equal(partition.label_counts(Y, 11), counts)
    pooled = torch.bincount(Y, minlength=11) / len(Y)
    plain = sum(float((c / c.sum() - pooled).abs().sum()) / 2 for c in counts) / 12
    assert partition.heterogeneity(Y, 11) == pytest.approx(plain, abs=1e-6)


def test_a_partition_of_a_part_points_into_the_whole():
    part = torch.arange(100, 200)
    inner = partitions.build({"kind": "iid"}, Y[part], 4, 0)
    outer = inner.within(part)
    assert torch.equal(outer[2], inner[2] + 100)
    with pytest.raises(IndexError):
        outer[4]
    with pytest.raises(IndexError):
        outer[-1]


@pytest.mark.parametrize("kind", ["dirichlet", "replace"])
def test_clients_keep_their_samples_when_these_are_lined_up(kind):
    x, y = torch.arange(100, 200), torch.arange(100) % 5
    made = partitions.build({"kind": kind}, y, 4, 0)
    index, lined = made.lined_up(torch.arange(100))
    for k in range(4):
        assert torch.equal(x[index][lined[k]], x[made[k]])
    assert (lined is made) == (kind == "replace")  # a sample in several hands stays where it is


@pytest.mark.parametrize(
    "rows",
    [[[0, 2], [1]], ((0, 2), (1,)), [np.array([0, 2]), np.array([1])], [torch.tensor([0, 2]), range(1, 2)]],
    ids=["lists", "tuples", "arrays", "tensors"],
)
def test_lists_of_indices_are_a_partition(rows):
    made = as_partition(rows, "custom", 3, 2)
    assert [made[k].tolist() for k in range(2)] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (3, "partition=custom returned an object of type int: it must return a Partition, or a list"),
        ({0: [1]}, "returned an object of type dict"),
        (None, "returned an object of type NoneType"),
        ([[0, 1]], "lists for 1 clients, the run has 2; set clients=1"),
        ([[0], [3]], "client 1 in partition=custom: its samples must be whole numbers from 0 to 2"),
        ([[0], [-1]], "whole numbers from 0"),
        ([[0], [1.0]], "whole numbers from 0"),
        ([[0], np.array([True])], "whole numbers from 0"),
        ([[0], "ab"], "whole numbers from 0"),
        ([[0], 1], "whole numbers from 0"),
        ([[0], [[1], [2, 3]]], "whole numbers from 0"),
        ([[0], []], "client 1 in partition=custom: it has no samples"),
        ([[0], [0]], "shares one with an earlier client"),
        (Partition(torch.arange(3), torch.tensor([0, 3])), "partition=custom for 1 clients: the run has 2"),
        (Partition(torch.arange(3), torch.tensor([0, 3, 3])), "client 1 has none"),
        (Partition(torch.arange(4), torch.tensor([0, 2, 4])), "index 3: indices must be 0 to 2"),
        (Partition(torch.arange(2), torch.tensor([0, 1, 3])), "2 indices: its offsets end at 3"),
    ],
    ids=str,
)
def test_anything_else_is_no_partition(made, said):
    with pytest.raises(ArnoError, match=said):
        as_partition(made, "custom", 3, 2)


def test_clients_of_a_file_keep_their_names_and_are_named_once(tmp_path):
    path = tmp_path / "who.json"
    path.write_text('{"00": [0], "01": [1]}')
    assert partitions.build({"kind": "file", "path": str(path)}, Y, None, 0).names == ("00", "01")
    for text in ('{"bern": [0], "rome": [1], "bern": [2]}', "{0: [0], 1: [1], 0: [2]}"):
        path.write_text(text)
        with pytest.raises(ArnoError, match=r"it names the client '.*' twice, and one list of samples would be lost"):
            partitions.build({"kind": "file", "path": str(path)}, Y, None, 0)
