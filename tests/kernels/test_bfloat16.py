"""model.bfloat16: products in bfloat16, everything else in float32."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from arno import ArnoError, run
from arno.kernels.bfloat16 import BFloat16, refuse_bfloat16
from arno.kernels.choose_kernel import choose, for_training
from arno.kernels.kernel import Autograd
from arno.tasks.classification import Classification

WORDS = ("data=digits", "clients=4", "participation=0.5", "rounds=2", "local.epochs=1", "model.hidden=[16]")


@pytest.fixture(autouse=True)
def processor(monkeypatch):
    """Every processor computes bfloat16; some are slow."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)]
    return nn.Sequential(*layers)


def test_its_gradient_is_that_of_float32_to_the_precision_of_bfloat16():
    task, x, y = Classification(5), torch.randn(16, 1, 8, 8), torch.arange(16) % 5
    found = {}
    for kernel in (Autograd(network(), task), BFloat16(network(), task)):
        kernel.w.copy_(torch.nn.utils.parameters_to_vector(network().parameters()).detach())
        loss = kernel.gradient(x, y)
        assert loss.dtype == kernel.g.dtype == kernel.outputs(x).dtype == torch.float32
        found[kernel.name] = loss, kernel.g.clone()
    (loss, g), (low_loss, low_g) = found["autograd"], found["bfloat16"]
    assert 0 < (g - low_g).norm() < 0.05 * g.norm()
    assert 0 < (loss - low_loss).abs() < 0.02 * loss


def test_it_is_taken_for_any_network_that_asks_for_it():
    for net in (network(), nn.Sequential(nn.Flatten(), nn.Linear(64, 5))):
        choice = choose(net, (1, 8, 8), None, bfloat16=True)
        assert (choice.name, choice.reason, choice.small) == ("bfloat16", "model.bfloat16 = true", False)
        assert type(for_training(net, (1, 8, 8), Classification(5), False, bfloat16=True)) is BFloat16


def test_engines_agree_and_the_manifest_names_it(tmp_path):
    serial, processes, auto = (
        run(*WORDS, "model.bfloat16=true", f"engine={engine}", out=str(tmp_path / engine))
        for engine in ("serial", "processes", "auto")
    )
    plain = run(*WORDS, "engine=serial", out=str(tmp_path / "plain"))
    assert torch.equal(serial.final, processes.final)
    assert torch.equal(serial.final, auto.final)
    assert not torch.equal(serial.final, plain.final)
    assert (serial.final - plain.final).norm() < 0.05 * plain.final.norm()
    manifest = json.loads((tmp_path / "auto" / "manifest.json").read_text())
    assert "bfloat16" in json.dumps(manifest["kernel"])


@pytest.mark.parametrize("method", ["fedrcl", "moon", "fedntd", "per_fedavg"])
def test_methods_that_change_the_loss_run_with_it(method, tmp_path):
    made = run(*WORDS, "model.bfloat16=true", f"method={method}", "engine=serial", out=str(tmp_path / "it"))
    assert made.final.isfinite().all()


def test_batched_refuses_it_by_name(tmp_path):
    with pytest.raises(ArnoError, match=r"model\.bfloat16 = true computes one model at a time"):
        run(*WORDS, "model.bfloat16=true", "engine=batched", out=str(tmp_path / "it"))


def test_it_is_refused_where_it_makes_no_sense(monkeypatch):
    with pytest.raises(ArnoError, match=r"model\.bfloat16 = true: the model is of type float64"):
        refuse_bfloat16(torch.device("cpu"), torch.float64)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.raises(ArnoError, match="this processor has no instructions for it"):
        refuse_bfloat16(torch.device("cpu"), torch.float32)
