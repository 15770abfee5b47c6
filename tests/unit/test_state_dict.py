"""A .pth state dict as the start of a run; anything else in such a file is refused in one line."""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from arno.core.layout import Layout
from arno.errors import ArnoError
from arno.runs.state_dict import read


class Bomb:
    """Leaves a trace if it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def flat(module):
    layout = Layout.of(module)
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    return torch.cat([known[slot.name].detach().reshape(-1) for slot in layout.slots]).double()


@pytest.mark.parametrize("wrap", ["plain", "inside", "module.", "half"])
def test_a_state_dict_is_the_model(wrap):
    module = net()
    stored = module.state_dict()
    wanted, done = flat(module), 0
    if wrap == "inside":
        stored, done = {"model_state_dict": stored, "epoch": 7, "acc": 0.5}, 7
    elif wrap == "module.":
        stored = OrderedDict((f"module.{name}", tensor) for name, tensor in stored.items())
    elif wrap == "half":
        stored = {name: t.half() if t.is_floating_point() else t for name, t in stored.items()}
        wanted = wanted.half().double()
    torch.save(stored, "m.pth")
    w, rounds = read(Path("m.pth"), Layout.of(module))
    assert torch.equal(w, wanted)
    assert rounds == done


def test_the_name_of_the_file_counts_the_rounds():
    for stored in (net().state_dict(), {"model_state_dict": net().state_dict(), "epoch": 199}):
        torch.save(stored, "model_e200.pth")
        assert read(Path("model_e200.pth"), Layout.of(net()))[1] == 200


def test_a_network_may_have_a_part_called_module():
    inner = net()
    outer = nn.ModuleDict({"module": inner})
    torch.save(outer.state_dict(), "m.pth")
    assert torch.equal(read(Path("m.pth"), Layout.of(outer))[0], flat(inner))


def changed(**changes):
    return {name: tensor for name, tensor in (net().state_dict() | changes).items() if tensor is not None}


BAD = {
    "a name too few": (changed(**{"0.bias": None}), "lacks 0.bias"),
    "a name too many": (changed(more=torch.zeros(1)), "has no more"),
    "other names": (
        {f"model.{name}": t for name, t in net().state_dict().items()},
        "it lacks .*, and the network has no model",
    ),
    "the prefix on one name": (changed(**{"0.bias": None, "module.0.bias": torch.zeros(3)}), "has no module.0.bias"),
    "under another key": ({"net": net().state_dict()}, r"has no net; save it with torch.save\(model.state_dict"),
    "nothing": ({}, "it lacks 0.bias and"),
    "another shape": (changed(**{"0.bias": torch.zeros(4)}), r"0.bias is \[4\]"),
    "a huge view": (changed(**{"0.bias": torch.zeros(1).expand(10**12)}), "0.bias is"),
    "not a tensor": (changed(**{"0.bias": [1.0, 2.0, 3.0]}), "0.bias is list"),
    "NaN": (changed(**{"0.bias": torch.full((3,), float("nan"))}), "finite"),
    "integers": (changed(**{"0.bias": torch.zeros(3, dtype=torch.int64)}), "finite"),
    "sparse": (changed(**{"0.bias": torch.zeros(3).to_sparse()}), "finite"),
    "a list": ([1, 2], "no state dict"),
    "a tensor": (torch.zeros(3), "no state dict"),
    "a network": (net(), r"weights-only reader refuses it \(it holds torch.nn.modules.container.Sequential\)"),
    "code": ({"w": Bomb()}, r"weights-only reader refuses it \(it holds \S+\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_anything_else_is_refused_in_one_line(case):
    stored, words = BAD[case]
    torch.save(stored, "bad.pth")
    with pytest.raises(ArnoError, match=words) as caught:
        read(Path("bad.pth"), Layout.of(net()))
    assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()


def test_files_that_are_no_archive_of_torch():
    Path("pickle.pth").write_bytes(pickle.dumps({"w": Bomb()}))
    torch.save(net().state_dict(), "old.pth", _use_new_zipfile_serialization=False)
    whole = io.BytesIO()
    torch.save(net().state_dict(), whole)
    Path("torn.pth").write_bytes(whole.getvalue()[:-200])
    Path("flipped.pth").write_bytes(whole.getvalue().replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_vX"))
    with zipfile.ZipFile("packed.pth", "w", zipfile.ZIP_DEFLATED) as archive, zipfile.ZipFile(whole) as original:
        for name in original.namelist():
            archive.writestr(name, original.read(name))
    for name in ("pickle", "old", "torn", "flipped", "packed"):
        with pytest.raises(ArnoError, match=r"^load = ") as caught:
            read(Path(f"{name}.pth"), Layout.of(net()))
        assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()
