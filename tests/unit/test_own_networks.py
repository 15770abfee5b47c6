"""Networks that a Python program gives: they train, or one line says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import arno
from arno.errors import ArnoError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 6)).astype("float32")
DATA = arno.Data(X, (X[:, 0] > 0).astype(int), client=["a", "b", "c"] * 20)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Dictionary(Net):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(x)}


class Detached(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.head(x).detach().numpy()).requires_grad_()


class InPlace(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(x)).mul_(2).add_(1)


class Broken(Net):
    def __init__(self) -> None:
        raise ValueError("no weights\nhere")


def pruned() -> nn.Module:
    net = Net()
    prune.l1_unstructured(net.head, "weight", 0.5)
    return net


def run(model: object, *words: str) -> arno.RunResult:
    return arno.run("rounds=1", *words, model=model, data=DATA)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (Dictionary(), [], r"returned an object of type dict for 4 samples: .* \[4, 2\]; return the tensor alone$"),
        (Detached(), [], "no gradient of its outputs for its parameters, so none would be trained; remove det"),
        (
            InPlace(),
            [],
            "the network InPlace: autograd cannot compute its gradient: one of the .*; correct its forward$",
        ),
        (Broken, [], r"model=Broken: it cannot be made \(ValueError: no weights\); correct it"),
        (nn.Linear, [], "model=Linear: it cannot be made"),
        (torch.relu, [], "model=relu: it cannot be made"),
        (lambda: nn.LazyLinear(2), [], "a layer does not know its number of inputs yet; compute the outputs of one"),
        (nn.Linear(6, 2, device="meta"), [], "its weights are on the device meta and have no values"),
        (pruned(), [], r"it cannot be copied .*; make its weights parameters"),
        (pruned, [], r"it cannot be copied .*; make its weights parameters"),
        (
            nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()),
            ["task=binary"],
            "from 0 to 1, as after a sigmoid, and the task binary takes logits; leave out the sigmoid",
        ),
    ],
)
def test_a_network_that_cannot_be_used_is_one_line(model, words, said):
    with pytest.raises(ArnoError, match=said) as caught:
        run(model, *words)
    assert "\n" not in str(caught.value)


def test_probabilities_in_place_of_logits_are_said():
    notes = run(nn.Sequential(nn.Linear(6, 2), nn.Softmax(1))).problem.notes
    assert notes[-1].endswith("the loss takes logits: leave out the softmax at its end")
    assert "softmax" not in run(Net()).problem.notes[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_every_type_train_as_those_of_the_run(dtype):
    net = Net().bfloat16()
    assert torch.equal(run(net.to(dtype)).final, run(net.float()).final)


class Mean(Net):
    """Subtracts a running mean of its inputs, which it changes in place or replaces."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.how == "replaced":
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        elif self.training and self.how == "data":
            self.mean.data = 0.5 * self.mean + 0.5 * x.mean(0)
        elif self.training:
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        return self.head(x - self.mean)


class Remembers(Net):
    """Adds the mean of the outputs of the call before, and counts its calls."""

    before: torch.Tensor | None = None
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.head(x)
        self.calls += 1
        out = z if self.before is None else z + self.before / self.calls
        self.before = z.detach().mean(0)
        return out


class Counts(Net):
    """Divides by the number of its calls, a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.head(x) / self.calls


@pytest.mark.parametrize("how", ["replaced", "data"])
def test_a_buffer_that_is_replaced_is_averaged_as_one_that_is_changed_in_place(how):
    torch.manual_seed(0)
    net, replaced = Mean("in place"), Mean(how)
    replaced.load_state_dict(net.state_dict())
    found = run(replaced, "rounds=2").final
    assert found[-6:].abs().max() > 0
    assert torch.equal(found, run(net, "rounds=2").final)


@pytest.mark.parametrize(
    "net",
    [nn.Sequential(nn.BatchNorm1d(6, momentum=None), Net()), Remembers(), Counts()],
    ids=["norm", "kept", "count"],
)
def test_what_a_network_keeps_between_calls_begins_anew_for_each_client(net):
    whole = run(net, "engine=serial", "rounds=3")
    run(net, "engine=serial", "rounds=1", "out=stopped")
    resumed = arno.resume("stopped", "rounds=3", model=net, data=DATA)
    assert torch.equal(whole.final, resumed.final)
    assert torch.equal(whole.final, run(net, "engine=processes", "engine.workers=2", "rounds=3").final)
    assert whole.rows[-1]["test_loss"] == resumed.rows[-1]["test_loss"]
