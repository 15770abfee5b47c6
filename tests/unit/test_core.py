"""Layout, tables, values, sub-networks and what parts may return."""

from math import isnan

import pytest
import torch
from torch import nn

from arno.core import average
from arno.core.average import added_up
from arno.core.federation import Federation, Local
from arno.core.layout import Layout, bind, flatten
from arno.core.method_part import Part, in_order
from arno.core.per_client import Values
from arno.core.table import ClientTable, refuse_if_too_large
from arno.core.work import SubModel
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.methods.sub_models import Window
from arno.models import models
from arno.models.network import narrow
from arno.problems.quadratic import Quadratic
from arno.problems.supervised import Supervised
from arno.tasks.classification import Classification, weighted_f1

SHAPES = {
    "softmax": (1, 8, 8),
    "mlp": (1, 8, 8),
    "lenet5": (1, 28, 28),
    "simple5layercnn": (3, 32, 32),
    "resnet18": (3, 16, 16),
}


def build(name):
    settings = {"width": 8} if name == "resnet18" else {}
    return models.get(name)(SHAPES[name], 10, **settings)


@pytest.mark.parametrize("name", SHAPES)
def test_the_vector_is_the_network_in_the_order_of_its_parameters(name):
    net = build(name)
    vector = flatten(net)
    assert torch.equal(vector, torch.cat([p.detach().flatten() for p in net.parameters()]))
    x = torch.randn(2, *SHAPES[name])
    expected = net(x)
    buffer, gradient = vector.clone(), torch.zeros_like(vector)
    bind(net, buffer, gradient)
    net(x).sum().backward()
    assert torch.equal(net(x), expected)
    assert gradient.abs().sum() > 0
    buffer.zero_()
    assert not net(x).abs().sum().item()


@pytest.mark.parametrize("name", SHAPES)
def test_levels_and_head(name):
    net, levels = build(name), []
    logits = net(torch.randn(3, *SHAPES[name]), levels)
    assert logits.shape == (3, 10)
    assert all(level.ndim == 2 and len(level) == 3 for level in levels)
    assert len(levels) == {"softmax": 0, "mlp": 1, "lenet5": 4, "simple5layercnn": 4, "resnet18": 5}[name]
    assert isinstance(net.head, nn.Linear)


def test_simple5layercnn_is_the_one_of_the_specification():
    shapes = [tuple(p.shape) for p in build("simple5layercnn").parameters() if p.ndim > 1]
    assert shapes == [(32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 2048), (10, 256)]


@pytest.mark.parametrize("beta", [0.25, 0.5, 0.3])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "simple5layercnn", "resnet18"])
def test_a_sub_network_is_valid_and_is_the_network_where_the_rest_is_zero(name, beta):
    net = build(name).double()
    layout = Layout.of(net, net.units())
    kept = {g: torch.arange(max(1, int(beta * n + 1e-9))) for g, n in layout.units.items()}
    window = SubModel(layout.index(kept), tuple((g, len(u)) for g, u in kept.items()))
    small = narrow(net, layout, window)
    assert sum(p.numel() for p in small.parameters()) == len(window.index) < layout.d
    vector = flatten(net)
    bind(small, vector[window.index].clone())
    x = torch.randn(2, *SHAPES[name], dtype=torch.float64)
    assert torch.isfinite(small(x)).all()
    if name != "resnet18":  # GroupNorm mixes channels: there the sub-network is a network of its own
        inside = torch.zeros_like(vector)
        inside[window.index] = vector[window.index]
        bind(net, inside)
        assert torch.allclose(net(x), small(x), atol=1e-12)


@pytest.mark.parametrize("name", ["lenet5", "simple5layercnn", "resnet18"])
@pytest.mark.parametrize("rule", ["rolling", "random", "static"])
def test_every_network_trains_in_windows(name, rule):
    x = torch.randint(0, 255, (12, *SHAPES[name]), dtype=torch.uint8)
    problem = Supervised(
        x,
        torch.arange(12) % 10,
        Partition(torch.arange(12), torch.tensor([0, 6, 12])),
        lambda: build(name),
        task=Classification(10),
    )
    fed = Federation(problem, [Window([0.3, 0.5], rule)], local=Local(lr=0.01, batch_size=6))
    before = fed.w.clone()
    for _ in range(2):
        record = fed.round()
    assert torch.isfinite(fed.w).all()
    assert not torch.equal(before, fed.w)
    small, large = record.clients["uploaded"]
    assert small < large < fed.layout.d


def test_windows_need_to_know_the_units():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

        def forward(self, x):
            return self.body(x)

    problem = Supervised(
        torch.randn(4, 4), torch.tensor([0, 1, 0, 1]), Partition(torch.arange(4), torch.tensor([0, 4])), Plain
    )
    with pytest.raises(ArnoError, match="does not say what its units are"):
        Federation(problem, [Window(0.5)])
    Federation(problem, [Window(1.0)]).round()


def test_buffers_are_averaged_plainly_and_untouched_by_the_server():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.norm(x))

    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)) + torch.arange(12)[:, None]
    problem = Supervised(
        x, torch.arange(12) % 2, Partition(torch.arange(12), torch.tensor([0, 6, 12])), Normed, dtype=torch.float64
    )
    assert problem.layout.size - problem.layout.d == 6
    fed = Federation(problem, local=Local(lr=0.1, batch_size=6), weighting="uniform", server_lr=0.25)
    before, taken = fed.w[: fed.layout.d].clone(), fed.round().clients
    mean = fed.layout.views(fed.w)["norm.running_mean"]
    clients = problem.transform.normalise(problem.x, torch.float64).view(2, 6, 3).mean(1)
    assert torch.allclose(mean, 0.1 * clients.mean(0))  # momentum 0.1 of BatchNorm, not the server's 0.25
    [a, b], [c, same] = taken["delta_norm"], taken["delta_cosine"]
    step = (fed.w[: fed.layout.d] - before) / 0.25  # ½ Δ_0 + ½ Δ_1, without buffers
    assert c == pytest.approx((4 * float(step @ step) - a * a - b * b) / (2 * a * b))  # the law of cosines
    assert c == pytest.approx(same)


@pytest.mark.parametrize("cached", [2**20, 12, 1], ids=["at once", "three columns", "one column"])
def test_a_client_alone_has_no_cosine_and_weights_count(cached, monkeypatch):
    monkeypatch.setattr(average, "CACHED", cached)
    alone, p = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)), torch.tensor([0.3])
    assert isnan(*added_up(p, alone, 1000)[1]["delta_cosine"])
    rows, p = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)), torch.tensor([0.1, 0.2, 0.3, 0.4])
    rows[3] = 0
    mean, notes = added_up(p, torch.cat([rows, torch.ones(4, 2)], 1), 50)  # and two buffers
    assert torch.allclose(mean, torch.cat([p @ rows, torch.ones(2)]))
    assert torch.allclose(notes["delta_norm"], rows.norm(dim=1))
    found = notes["delta_cosine"].tolist()
    others = torch.stack([p @ rows - p[k] * rows[k] for k in range(3)])
    assert found[:3] == pytest.approx(torch.cosine_similarity(rows[:3], others).tolist(), abs=1e-6)
    assert isnan(found[3])


def test_a_table_on_disk_is_the_table_in_memory(tmp_path):
    g = torch.Generator().manual_seed(0)
    tables = [ClientTable(1000, torch.zeros(5)), ClientTable(1000, torch.zeros(5), tmp_path)]
    for _ in range(20):
        ids, rows = torch.randperm(1000, generator=g)[:30], torch.randn(30, 5, generator=g)
        for table in tables:
            table[ids] = rows
    everybody = torch.arange(1000)
    assert torch.equal(tables[0][everybody], tables[1][everybody])
    assert torch.equal(tables[0].mean(), tables[1].mean())
    assert torch.allclose(tables[0].mean(), tables[0][everybody].mean(0), atol=1e-6)
    copy = ClientTable(1000, torch.zeros(5), tmp_path)
    copy.restore(tables[0].tensors())
    assert torch.equal(copy[everybody], tables[0][everybody])
    assert copy.seen == tables[0].seen < 1000


def test_a_table_that_cannot_fit_is_refused_early(tmp_path):
    with pytest.raises(ArnoError, match=r"1,000,000 clients × 10,000,000 parameters.*state=disk"):
        refuse_if_too_large(1_000_000, torch.zeros(1).expand(10_000_000), None)
    with pytest.raises(ArnoError, match="free disk"):
        refuse_if_too_large(1_000_000, torch.zeros(1).expand(10_000_000), tmp_path)
    refuse_if_too_large(10, torch.zeros(10), None)


def test_values_follow_their_law_and_are_drawn_once():
    ids = torch.arange(20_000)
    uniform = Values("uniform(0.001, 0.1)", len(ids), seed=1, name="lr")
    assert torch.equal(uniform[ids], Values("uniform(0.001, 0.1)", len(ids), seed=1, name="lr")[ids])
    assert not torch.equal(uniform[ids], Values("uniform(0.001, 0.1)", len(ids), seed=2, name="lr")[ids])
    assert not torch.equal(uniform[ids], Values("uniform(0.001, 0.1)", len(ids), seed=1, name="mu")[ids])
    assert 0.001 <= uniform.smallest < 0.0012
    assert 0.0995 < uniform.largest <= 0.1
    assert abs(float(uniform[ids].mean()) - 0.0505) < 0.001
    logs = Values("loguniform(0.01, 1)", len(ids), seed=1)[ids].log10()
    assert abs(float(logs.mean()) + 1) < 0.02
    picked = Values("choice(1, 5, 10)", len(ids), seed=1)[ids]
    assert [abs(float((picked == v).double().mean()) - 1 / 3) < 0.02 for v in (1, 5, 10)] == [True] * 3


def test_values_of_each_round_depend_on_seed_name_round_and_client_only():
    law, ids = "each_round(mix(0.9, integers(1, 20), 20))", torch.arange(20_000)
    values = Values(law, len(ids), seed=1, name="local.epochs", least=1, whole=True)
    now = values.at(ids, 5)
    assert torch.equal(now[[7, 3]], values.at(torch.tensor([7, 3]), 5)), (
        "a client's value has nothing to do with others"
    )
    assert torch.equal(now, Values(law, len(ids), seed=1, name="local.epochs").at(ids, 5))
    others = (values.at(ids, 6), Values(law, len(ids), seed=2, name="local.epochs").at(ids, 5))
    assert not any(torch.equal(now, other) for other in (*others, Values(law, len(ids), seed=1, name="x").at(ids, 5)))
    counts = torch.bincount(now.long(), minlength=21)[1:]
    assert abs(float(counts[-1]) / 20_000 - 0.145) < 0.01, "0.1 + 0.9/20"
    assert all(abs(float(count) / 20_000 - 0.045) < 0.006 for count in counts[:-1])
    assert (values.smallest, values.largest, values.varies) == (1, 20, True)
    assert abs(float(torch.corrcoef(torch.stack([now, others[0]]))[0, 1])) < 0.03
    with pytest.raises(ArnoError, match="change in every round"):
        values[ids]
    once = Values("mix(0.5, 1, uniform(2, 3))", len(ids), seed=1)[ids]
    assert abs(float((once == 1).double().mean()) - 0.5) < 0.02
    assert torch.equal(once, Values("mix(0.5, 1, uniform(2, 3))", len(ids), seed=1).at(ids, 9)), "drawn once"


@pytest.mark.parametrize(
    ("spec", "rules", "words"),
    [
        (0, {"least": 1}, "at least 1"),
        (-0.1, {"above": 0}, "above 0"),
        (1.5, {"most": 1}, "at most 1"),
        (1.5, {"whole": True}, "whole number"),
        (float("nan"), {}, "finite"),
        ([1, 2], {}, "there are 3 clients"),
        ("normal(0, 1)", {}, "uniform"),
        ("uniform(2, 1)", {}, "the first bound of uniform must be smaller than the second; change the bounds"),
        ("loguniform(0, 1)", {}, "positive"),
        ("uniform(1)", {}, "uniform"),
        ("uniform(1, 5)", {"whole": True}, "integers"),
        ("each_round(uniform(1, 5))", {"whole": True}, "integers"),
        ("each_round(integers(0, 5))", {"least": 1}, "at least 1"),
        ("integers(1.5, 3)", {}, "whole numbers"),
        ("mix(2, 1, 3)", {}, "probability"),
        ("mix(0.5, 1)", {}, "mix"),
        ("mix(0.5, each_round(integers(1, 3)), 1)", {}, r"outermost distribution; write each_round\(mix"),
        ("each_round(1, 2)", {}, "each_round"),
        ("each_round()", {}, "each_round"),
        ("uniform(1, 2", {}, "a distribution; write uniform"),
    ],
)
def test_wrong_values_are_refused(spec, rules, words):
    with pytest.raises(ArnoError, match=words):
        Values(spec, 3, name="x", **rules)


def test_state_must_be_saved_or_say_that_it_is_derived():
    class Forgetful(Part):
        def start(self, fed):
            self.notes = {}

    class Careful(Part):
        def start(self, fed):
            self._notes, self.count = {}, 1

    for part, good in ((Forgetful(), False), (Careful(), True)):
        part.start(None)
        if good:
            assert part.state() == {"count": 1}
        else:
            with pytest.raises(ArnoError, match=r"Forgetful\.notes is a dict: state is tensors"):
                part.state()


def test_weighted_f1_is_that_of_scikit_learn():
    from sklearn.metrics import f1_score

    g = torch.Generator().manual_seed(0)
    for classes in (2, 5, 10):
        truth, guess = (torch.randint(0, classes, (50,), generator=g) for _ in range(2))
        guess[guess == classes - 1] = 0  # a class that is never predicted
        confusion = torch.bincount(truth * classes + guess, minlength=classes**2).view(classes, classes)
        expected = f1_score(truth.numpy(), guess.numpy(), average="weighted", zero_division=0)
        assert weighted_f1(confusion) == pytest.approx(expected, abs=1e-12)


def test_channels_last_is_taken_where_it_is_safe():
    """GroupNorm in that layout corrupts memory in torch's backward pass: never by default, and not when asked for."""
    part = Partition(torch.arange(4), torch.tensor([0, 4]))

    def problem(name, **settings):
        x = torch.zeros(4, *SHAPES[name], dtype=torch.uint8)
        return Supervised(x, torch.arange(4), part, lambda: build(name), task=Classification(10), **settings)

    assert problem("lenet5").channels_last
    assert not problem("lenet5", channels_last=False).channels_last
    assert not problem("mlp").channels_last
    assert not problem("resnet18").channels_last
    with pytest.raises(ArnoError, match=r"channels_last = true with GroupNorm"):
        problem("resnet18", channels_last=True)


class Returns(Part):
    """Returns, from one moment, what a test gives it."""

    def __init__(self, moment, value):
        setattr(self, moment, lambda *arguments: value)


@pytest.mark.parametrize(
    ("moment", "value", "words"),
    [
        ("finish", None, r"Returns\.finish returned None: it must return a vector of 2 numbers"),
        ("receive", torch.zeros(1), r"Returns\.receive returned a tensor of shape \[1\]"),
        ("record", {"name": "a word"}, r"Returns\.record returned 'name': 'a word': a record holds plain numbers"),
    ],
    ids=["nothing", "another shape", "no number"],
)
def test_what_a_part_must_not_return_is_refused(moment, value, words):
    problem = Quadratic(h=torch.tensor([1.0, 3.0]), e=torch.tensor([[2.0, 1.0], [0.0, 1.0]]))
    fed = Federation(problem, [Returns(moment, value)])
    with pytest.raises(ArnoError, match=words):
        fed.round()


@pytest.mark.parametrize("roles", [frozenset({"schedule"}), "server"], ids=["unknown", "no set"])
def test_roles_that_do_not_exist_are_refused(roles):
    part = type("Mine", (Part,), {"roles": roles})()
    with pytest.raises(ArnoError, match=r"Mine\.roles = .*roles are a frozenset of names from select, order"):
        in_order([part])
