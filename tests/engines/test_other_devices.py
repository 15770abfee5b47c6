"""Nothing but the kernels assumes a CPU: rounds on a device whose tensors have no values (torch's `meta`).

A device like a GPU is imitated: every operation must get tensors of one device, except numbers without dimensions and
indices; a copy to the CPU, and a read of a single number, give ones. What a network computes on a real GPU is not
tested: no machine with a GPU was at hand.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training import words

from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation
from arno.methods import methods
from arno.methods.scaffold import Scaffold

aten = torch.ops.aten
GIVEN = (
    "engine=serial",
    "clients=7",
    "participation=0.5",
    "model.hidden=[8]",
    "local.epochs=1",
    "local.batch_size=8",
    "data.limit=200",
)
#: Operations whose indices may be on the CPU.
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
#: Operations that copy between devices.
COPIES = {aten._to_copy.default, aten.copy_.default}


def without_values(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation whose result depends on values, as if every value were one; None for any other."""
    x = args[0]
    if func in (aten.item.default, aten._local_scalar_dense.default):
        return torch.ones((), dtype=x.dtype).item()
    if func is aten.equal.default:
        return True
    if func is aten.nonzero.default:
        return x.new_zeros(x.numel(), x.dim(), dtype=torch.int64)
    if func is aten.bincount.default:
        return x.new_zeros(max(2, kwargs.get("minlength", args[2] if len(args) > 2 else 0)), dtype=torch.int64)
    masks = [i for i, at in enumerate(args[1]) if at is not None and at.dtype == torch.bool] if func in INDEXED else []
    if masks and func is aten.index.Tensor:
        return x.flatten(masks[0], masks[0] + args[1][masks[0]].dim() - 1)
    if func is aten._to_copy.default and str(kwargs.get("device", "meta")) == "cpu":
        return torch.ones(x.shape, dtype=kwargs.get("dtype") or x.dtype)
    return None


class OtherDevice(TorchDispatchMode):
    """A device without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            devices = {tensor.device.type for tensor in tensors if tensor.dim()}
            assert len(devices) <= 1 or func in INDEXED | COPIES, f"{func} got tensors of {sorted(devices)}"
            if func is aten.copy_.default and not args[0].is_meta:
                return args[0].fill_(1)
            found = without_values(func, args, kwargs) if args and isinstance(args[0], Tensor) else None
            if found is not None:
                return found
            with self:  # under inference mode, operations arrive that consist of others
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        return func(*args, **kwargs)


#: Methods whose shapes depend on values (they count true entries of a mask), and methods with settings of their own.
COUNTS = {"fedntd", "qrmix"}
OWN = {"lorenzo": ["participation=1"]}


@pytest.mark.parametrize("method", sorted({*methods.names()} - COUNTS))
def test_rounds_run_on_a_device_without_values(method, monkeypatch):
    monkeypatch.setattr(build, "device", lambda name: torch.device("meta"))
    config = plain(compose([*words(method), "data=digits", *GIVEN, *OWN.get(method, [])]))
    with OtherDevice():
        fed = build.federation(config)
        for _ in range(2):
            fed.round()
    assert fed.w.is_meta


def test_a_tensor_on_another_device_is_seen(monkeypatch):
    monkeypatch.setattr(build, "device", lambda name: torch.device("meta"))
    plain_start = Scaffold.start

    def start(part: Scaffold, fed: Federation) -> None:
        plain_start(part, fed)
        part.c = torch.zeros(fed.layout.size)

    monkeypatch.setattr(Scaffold, "start", start)
    with OtherDevice(), pytest.raises(AssertionError, match=r"got tensors of \['cpu', 'meta'\]"):
        build.federation(plain(compose(["method=scaffold", "data=digits", *GIVEN]))).round()
