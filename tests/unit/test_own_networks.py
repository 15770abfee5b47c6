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


class Broken(Net):
    def __init__(self) -> None:
        raise ValueError("no weights\nhere")


def pruned() -> nn.Module:
    net = Net()
    prune.l1_unstructured(net.head, "weight", 0.5)
    return net


def run(model: object, *words: str) -> arno.RunResult:
    return arno.run(*words, model=model, data=DATA, rounds=1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (Dictionary(), [], r"returned an object of type dict for 4 samples: .* \[4, 2\]; return the tensor alone$"),
        (Detached(), [], "no gradient of its outputs for its parameters, so none would be trained; remove det"),
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
