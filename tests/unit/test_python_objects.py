"""Networks and data that a Python program gives as objects: runs, comparisons, continuations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import arno
from arno.core.layout import flatten
from arno.data.sources import python as data_source
from arno.errors import ArnoError
from arno.models import python as given
from arno.models.python import fingerprint, give

SMALL = ("clients=3", "data.limit=90", "engine=serial")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(given, "_GIVEN", {})
    monkeypatch.setattr(data_source, "_MADE", {})
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)


class Net(nn.Module):
    """Without arguments."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z


class Shaped(nn.Module):
    """With the shape of a sample and the number of outputs, under other names."""

    def __init__(self, sample: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(int(np.prod(sample)), classes)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(x.flatten(1))
        return z


def function(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def test_the_weights_of_a_module_are_the_start_of_every_seed() -> None:
    torch.manual_seed(3)
    net = Net()
    before = flatten(net).clone()
    for seed in (0, 1):
        run = arno.run(*SMALL, model=net, rounds=1, seed=seed, out=f"seed{seed}")
        assert torch.equal(run.problem.init(seed), before)
        assert torch.equal(run.start, before)
        assert any("are the initial model for every seed" in note for note in run.folder.manifest()["data_notes"])
    assert torch.equal(flatten(net), before)  # the user's network does not train
    assert not torch.equal(run.final, before)
    assert isinstance(run.model(), Net)


@pytest.mark.parametrize("network", [Net, Shaped, function, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
def test_a_class_or_a_function_is_made_with_the_seed(network) -> None:
    one, same, other = (
        arno.run(*SMALL, model=network, rounds=1, seed=seed, out=name)
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert torch.equal(one.start, same.start)
    assert torch.equal(one.final, same.final)
    assert not torch.equal(one.start, other.start)
    assert one.folder.manifest()["command"] is None


def test_a_run_continues_with_the_same_network_only(capsys) -> None:
    torch.manual_seed(0)
    net = Net()
    whole = arno.run(*SMALL, model=net, rounds=3, out="whole")
    arno.run(*SMALL, model=net, rounds=1, out="it")
    given._GIVEN.clear()
    with pytest.raises(ArnoError, match=r"its model was an object .*; continue it in Python .*model=net"):
        arno.resume("it", "rounds=3")
    with pytest.raises(
        ArnoError, match=r"model of it: the run was started with model Net-\w+, and the given model differs"
    ):
        arno.resume("it", "rounds=3", model=Net(width=9))
    with pytest.raises(ArnoError, match="data of it: the run was started with data=digits"):
        arno.resume("it", "rounds=3", model=net, data=arno.Data(np.eye(4), [0, 1, 0, 1]))
    assert torch.equal(arno.resume("it", "rounds=3", model=net).final, whole.final)
    given._GIVEN.clear()
    assert isinstance(arno.RunResult("it", network=net).model("final"), Net)


def test_fingerprints_change_with_weights_layers_and_source_but_not_with_comments() -> None:
    torch.manual_seed(0)
    net = Net()
    assert fingerprint(net) == fingerprint(net)
    other = Net()
    assert fingerprint(other) != fingerprint(net)
    other.load_state_dict(net.state_dict())
    assert fingerprint(other) == fingerprint(net)
    relu, tanh = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    assert fingerprint(relu) != fingerprint(tanh)
    made = {}
    for name, body in (("a", "return 1"), ("b", "return 1  # one"), ("c", "return 2")):
        Path(f"{name}.py").write_text(f"def build():\n    {body}\n")
        scope: dict[str, object] = {}
        exec(compile(Path(f"{name}.py").read_text(), str(Path(f"{name}.py").resolve()), "exec"), scope)
        made[name] = fingerprint(scope["build"])  # type: ignore[arg-type]
    assert made["a"] == made["b"] != made["c"]


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda width: nn.Linear(64, 10), "its argument width: a network is made without arguments, or with the shape"),
        (lambda: 3, "it returned an object of type int, not a torch.nn.Module"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "a layer does not know its number of inputs yet"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), r"Sequential returned a tensor of shape \[4, 4\]"),
        (nn.Sequential(nn.Flatten(), nn.Linear(63, 10)), "Sequential"),
    ],
)
def test_networks_that_do_not_fit_are_one_line(network, said) -> None:
    with pytest.raises(ArnoError, match=said) as caught:
        arno.run(*SMALL, model=network, rounds=1)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


def test_workers_train_a_network_of_this_process() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))  # of an importable class
    serial = arno.run(*SMALL, model=net, rounds=2, out="serial")
    for start in ("fork", "spawn"):
        words = (*SMALL, "engine=processes", "engine.workers=2", f"engine.start={start}")
        assert torch.equal(arno.run(*words, model=net, rounds=2, out=start).final, serial.final)


def test_a_comparison_of_objects(monkeypatch) -> None:
    random = np.random.default_rng(0)
    x, who = random.normal(size=(120, 4)), np.repeat(["bern & co", "oslo", "rome"], 40)
    y = x @ [1.0, -2.0, 0.5, 3.0] + np.repeat([0.0, 1.0, 5.0], 40)
    data = arno.Data(x, y, client=who)
    torch.manual_seed(0)
    wide, deep = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    again = {"data": data, "model": [wide, deep], "seed": [0, 1], "rounds": 2, "out": "both"}
    found = arno.compare(method=["fedavg", "scaffold"], **again)
    assert len(found.table()) == 4
    assert {group.setting for group in found.members} == {
        f"model.network={give(net)['network']}" for net in (wide, deep)
    }
    scores = found.client_scores()
    assert len(scores) == 4 * 2 * 3
    assert set(scores["client"]) == {"bern & co", "oslo", "rome"}
    monkeypatch.setattr("arno.grids.this_process.run_cell", None)  # all cells are done
    assert arno.compare(method=["fedavg", "scaffold"], **again).table().equals(found.table())
    arno.write_report(found, "both.html")
    page = Path("both.html").read_text()
    assert "bern &amp; co" in page
    assert "bern & co" not in page.replace("bern \\u0026 co", "")
    with pytest.raises(ArnoError, match="jobs = 2: data and networks that are Python objects train in this process"):
        arno.compare(data=data, jobs=2, seed=[0, 1], out="two")
    with pytest.raises(ArnoError, match="names and networks cannot be mixed"):
        arno.compare(data=data, model=[wide, "mlp"], out="three")


def test_a_run_with_a_relative_path_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = arno.run(*SMALL, rounds=1, out="run")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    assert len(result.history) == 1
    assert len(result.clients) == 3
    assert len(result.final) == result.problem.layout.size
    assert str(result.path) == "run"


def test_a_model_that_a_run_does_not_have() -> None:
    result = arno.run(*SMALL, rounds=1, out="run")
    with pytest.raises(ArnoError, match=r"model\('last'\): there are the models best and final"):
        result.model("last")


def test_the_report_of_a_run() -> None:
    result = arno.run(*SMALL, rounds=1, out="run")
    arno.write_report(result, "report.html")
    assert "fedavg" in Path("report.html").read_text()
    with pytest.raises(ArnoError, match=r"arno.write_report: an object of type str is no comparison and no run"):
        arno.write_report("run", "report.html")  # type: ignore[arg-type]
