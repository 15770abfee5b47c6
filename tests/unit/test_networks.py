"""Networks for text and tables: causal, deterministic, in both precisions, alike in all engines; users' own modules."""

from contextlib import closing

import numpy as np
import pytest
import torch
from torch import nn

from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation, Local
from arno.core.serial import Serial
from arno.engines.batched import Batched, batched
from arno.engines.processes import processes
from arno.errors import ArnoError
from arno.methods import methods
from arno.models import models
from arno.models.network import Shape

SMALL = {"lstm": {"embedding": 4, "hidden": 6, "layers": 2}, "transformer": {"width": 8, "layers": 2, "heads": 2}}
TOKENS = Shape((5,), vocabulary=7, padding=0, positions=True)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "play.txt").write_text(
        "".join(f"ANN:\nTo be, or not!\n\nBEN:\nSpeak, {i}.\n\nEVE:\nNo.\n\n" for i in range(30))
    )
    return [f"data.path={tmp_path / 'play.txt'}", "data=text", "data.sequence=8", "data.min_chars=20"]


def problem(text, name, *words):
    small = [f"model.{key}={value}" for key, value in SMALL.get(name, {}).items()]
    return build.supervised(plain(compose([*text, f"model={name}", *small, *words])))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_depend_on_earlier_tokens_alone(name, dtype):
    torch.manual_seed(0)
    net = models.get(name)(TOKENS, 7, **SMALL[name]).to(dtype)
    x = torch.randint(1, 7, (3, 5))
    outputs = net(x)
    assert (outputs.shape, outputs.dtype) == ((3, 5, 7), dtype)
    later = x.clone()
    later[:, 3] = 1 + x[:, 3] % 6
    torch.testing.assert_close(net(later)[:, :3], outputs[:, :3])
    assert not torch.allclose(net(later)[:, 3], outputs[:, 3])


@pytest.mark.parametrize("name", SMALL)
def test_the_last_token_that_is_no_padding_decides(name):
    torch.manual_seed(0)
    net = models.get(name)(Shape((5,), vocabulary=7, padding=0), 2, **SMALL[name])
    short, long = torch.tensor([[3, 4, 5, 0, 0]]), torch.tensor([[3, 4, 5, 6, 2]])
    assert net(short).shape == (1, 2)
    torch.testing.assert_close(net(short), net.head(net_states(net, long)[:, 2]))
    torch.testing.assert_close(net(long), net.head(net_states(net, long)[:, 4]))


def net_states(net, x):
    net.positions = True
    try:
        return net.embed(x)
    finally:
        net.positions = False


def trained(whole, engine):
    with closing(engine):
        fed = Federation(whole, methods.get("fedavg")(), engine=engine, local=Local(epochs=1, batch_size=4, lr=0.1))
        fed.round()
        return fed.w


@pytest.mark.parametrize("name", SMALL)
def test_engines_agree(text, name):
    whole = problem(text, name, "dtype=float64")
    assert whole.x.dtype == torch.int64
    expected = trained(whole, Serial(whole))
    assert torch.equal(trained(whole, processes(whole, workers=2)), expected)
    if name == "lstm":
        with pytest.raises(ArnoError, match="LSTM"):
            trained(whole, batched(whole, workers=1))
    else:
        torch.testing.assert_close(trained(whole, Batched(whole)), expected, rtol=1e-9, atol=1e-12)


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    rows = [
        f"{random.normal():.3f},{'abc'[i % 3]},{random.normal():.3f},{['yes', 'no', ''][i % 3]},{i % 2}"
        for i in range(60)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["u,kind,v,smokes,y", *rows, "0.5,z,1,no,1"]))
    return [f"data.path={tmp_path / 't.csv'}", "data=table", "data.label=y", "clients=3", "partition=iid", "data.val=0"]


def test_tabular_learns_a_vector_for_each_category(table):
    whole = problem(table, "tabular", "model.hidden=[6]")
    onehot = problem(table, "mlp", "model.hidden=[6]")
    assert whole.fingerprint() == onehot.fingerprint()
    assert whole.shape == (4,)
    sizes = [tuple(layer.weight.shape) for layer in whole.module.embeddings]
    assert [size[1] for size in sizes] == [(size[0]) // 2 for size in sizes]
    numbers = onehot.x[:, [0]]
    torch.testing.assert_close(whole.x[:, [0]], numbers)
    kinds = onehot.x[:, 1 : sizes[0][0]]
    codes = whole.x[:, 1].long()
    assert torch.equal((kinds * torch.arange(1, sizes[0][0])).sum(1).long(), codes)
    missing = onehot.x[:, -2:].sum(1) == 0
    assert missing.any()
    assert (whole.x[missing, 3] == 0).all()
    inputs = whole.inputs(whole.x)
    assert torch.equal(inputs[:, [1, 3]], whole.x[:, [1, 3]])
    torch.testing.assert_close(inputs[:, 0].std(correction=0), torch.tensor(1.0), atol=0.2, rtol=0)
    expected = trained(whole, Serial(whole))
    torch.testing.assert_close(trained(whole, Batched(whole)), expected, rtol=1e-4, atol=1e-6)


def test_tabular_without_categories_reads_numbers():
    whole = build.supervised(plain(compose(["model=tabular", "data.limit=200", "clients=3"])))
    assert len(whole.module.embeddings) == 0
    assert whole.module.hidden[0].in_features == 64


NETS = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))

class Sized(Plain):
    def __init__(self, inputs=64, classes=10):
        super().__init__()

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(63, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(self.words(x).mean(1))

class Taught(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, 4)
        self.layer = nn.Linear(4, outputs)
    def forward(self, x):
        return self.layer(self.words(x).mean(1))

torch.manual_seed(7)
ready = Plain()
text = "no network"
"""


@pytest.fixture
def nets(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path / "nets.py"


def own(nets, name, *words):
    return build.supervised(plain(compose(["model=custom", f"model.target={nets}:{name}", "clients=3", *words])))


@pytest.mark.parametrize("name", ["Plain", "Sized"])
def test_a_class_without_arguments_is_taken_as_it_is(nets, name):
    whole = own(nets, name)
    assert whole.layout.d == 650
    assert not torch.equal(whole.init(0), whole.init(1))


def test_an_instance_keeps_its_weights(nets):
    whole = own(nets, "ready")
    torch.manual_seed(7)
    expected = nn.Linear(64, 10)
    assert torch.equal(whole.init(0)[:640].view(10, 64), expected.weight)
    assert torch.equal(whole.init(0), whole.init(1))
    whole.init(0).zero_()
    assert whole.init(0).any()


@pytest.mark.parametrize(("name", "said"), [("Wrong", "cannot compute them"), ("text", "which cannot be called")])
def test_a_network_that_does_not_fit_is_one_line(nets, name, said):
    with pytest.raises(ArnoError) as error:
        own(nets, name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["Words", "Taught"])
def test_whole_numbers_are_tokens_for_a_network_that_needs_them(nets, tmp_path, name):
    random = np.random.default_rng(0)
    np.savez(tmp_path / "words.npz", x=random.integers(0, 9, (80, 6)), y=random.integers(0, 2, 80))
    whole = own(nets, name, "data=npz", f"data.path={tmp_path / 'words.npz'}")
    assert whole.x.dtype == torch.int64
    assert "as tokens" in whole.notes[-1]
    assert torch.equal(whole.inputs(whole.x), whole.x)


def test_npz_tokens_with_a_target_for_each_position(tmp_path):
    random = np.random.default_rng(0)
    x = random.integers(0, 9, (80, 6))
    np.savez(tmp_path / "words.npz", x=x, y=np.roll(x, -1, 1))
    whole = build.supervised(
        plain(compose(["data=npz", f"data.path={tmp_path / 'words.npz'}", "model=lstm", "clients=3"]))
    )
    assert (whole.task.name, whole.task.outputs, whole.task.positions) == ("tokens", 9, True)
    np.savez(tmp_path / "labels.npz", x=random.normal(size=(80, 6)), y=random.integers(0, 2, (80, 3)))
    labels = build.supervised(plain(compose(["data=npz", f"data.path={tmp_path / 'labels.npz'}", "clients=3"])))
    assert (labels.task.name, labels.task.outputs) == ("multilabel", 3)
    np.savez(tmp_path / "numbers.npz", x=random.normal(size=(80, 6)), y=random.integers(0, 2, 80))
    with pytest.raises(ArnoError, match="sequences of tokens"):
        build.supervised(
            plain(compose(["data=npz", f"data.path={tmp_path / 'numbers.npz'}", "model=lstm", "clients=3"]))
        )


@pytest.mark.parametrize(
    ("name", "word"), [("lstm", "hidden=0"), ("transformer", "heads=3"), ("tabular", "embedding=0")]
)
def test_sizes_of_networks_are_checked(text, name, word):
    with pytest.raises(ArnoError, match=f"model.{word.partition('=')[0]}"):
        build.supervised(plain(compose([*text, f"model={name}", f"model.{word}"])))
