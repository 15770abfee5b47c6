"""The readers that are attacked: each kind makes an input from a random generator or hypothesis and reads it."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import Any

import inputs
import numpy as np
import torch
from hypothesis import strategies as st
from inputs import Random

from arno import conform
from arno.cli import dispatch
from arno.client_selection.schedule import schedule
from arno.config import settings
from arno.data import datasets, load, partitions
from arno.errors import ArnoError
from arno.records import checkpoint, checksummed, damage, metrics_file
from arno.records.folder import RunFolder
from arno.registry import load_target

SMALL = ("clients=3", "rounds=1", "model=softmax", "data=digits", "engine=serial")


def overrides(words: list[str]) -> None:
    settings.plain(settings.compose(words))


def runs(words: list[str]) -> None:
    """A whole run; without words that start processes, or that ask for work of days."""
    shutil.rmtree("run", ignore_errors=True)
    left_out = ("processes", "ray", "rounds", "epochs")
    dispatch(["run", *SMALL, "out=run", *(word for word in words if not any(name in word for name in left_out))])


def configs(content: bytes) -> None:
    settings.plain(settings.compose((), settings.read(inputs.write(Path("config.yaml"), content))))


def targets(target: str) -> None:
    load_target(target)


def cohorts(content: bytes) -> None:
    schedule(0.5, path=str(inputs.write(Path("cohorts.json"), content)))


def partition(content: bytes) -> None:
    path = str(inputs.write(Path("partition.json"), content))
    partitions.get("file")(torch.arange(12) % 3, 3, 0, path=path)


def npz(content: bytes) -> None:
    load({"kind": "npz", "path": str(inputs.write(Path("data.npz"), content))})


def case(content: bytes) -> None:
    conform.replay(inputs.write(Path("case.npz"), content))


def saved(content: bytes) -> None:
    checkpoint.load(inputs.write(Path("00001.safetensors"), content))


def folder_of(kind: str) -> Callable[[dict[str, bytes]], None]:
    """Reads a data set from a folder of these files."""

    def read(files: dict[str, bytes]) -> None:
        shutil.rmtree("data", ignore_errors=True)
        for name, content in files.items():
            inputs.write(Path("data") / name, content)
        load({"kind": kind, "root": "data"})

    return read


def table(content: bytes) -> None:
    load({"kind": "table", "path": str(inputs.write(Path("data.csv"), content)), "label": "label"})


# --- the inputs ---


@cache
def arrays() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    made = {
        "x": rng.normal(size=(20, 4)),
        "y": np.arange(20) % 3,
        "x_test": rng.normal(size=(6, 4)),
        "y_test": np.arange(6) % 3,
    }
    return {f"{name}.npy": inputs.npy(array) for name, array in made.items()}


@cache
def idx_files() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    made = {}
    for name, n in (("train", 20), ("t10k", 5)):
        made[f"{name}-images-idx3-ubyte"] = inputs.idx(rng.integers(256, size=(n, 28, 28), dtype=np.uint8))
        made[f"{name}-labels-idx1-ubyte"] = inputs.idx((np.arange(n) % 10).astype(np.uint8))
    return made


@cache
def zeros() -> bytes:
    """A gzip member of 16 MiB of zeros; many of them in a row are a bomb."""
    return gzip.compress(bytes(2**24), 1)


def hostile_idx(rng: Random) -> dict[str, bytes]:
    files = dict(idx_files())
    name = rng.choice(list(files))
    if rng.random() < 0.5:
        files[name] = inputs.mutate(rng, files[name])
        return files
    packed = {f"{key}.gz": gzip.compress(value, 1) for key, value in files.items()}
    if rng.random() < 0.02:
        sizes = rng.choice(((2**32 - 1,) * 3, (2**8, 2**12, 2**12)))
        start = bytes([0, 0, 8, 3]) + np.array(sizes, ">u4").tobytes()
        packed[f"{name}.gz"] = gzip.compress(start) + zeros() * rng.choice((1, 16, 300))
    else:
        packed[f"{name}.gz"] = inputs.gz(rng, files[name])
    return packed


def hostile_images(rng: Random) -> dict[str, bytes]:
    kinds = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}
    files = {f"{c}/{i}.png": inputs.image(rng) for c in "ab" for i in range(3)}
    suffix = rng.choice(list(kinds))
    good = inputs.image(rng, kinds[suffix])
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n(canary) (w) file closefile\nshowpage\n"
    files[f"a/bad.{suffix}"] = postscript if rng.random() < 0.02 else inputs.mutate(rng, good)
    return files


@cache
def parquet_file() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet as pq

    rng, out = Random(0), io.BytesIO()
    table = pa.table({"img": [{"bytes": inputs.image(rng)} for _ in range(12)], "label": [i % 3 for i in range(12)]})
    pq.write_table(table.replace_schema_metadata({"huggingface": '{"info": {"features": {}}}'}), out, row_group_size=5)
    return out.getvalue()


@cache
def cifar_members() -> dict[str, bytes]:
    rng = Random(0)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return {f"cifar-10-batches-bin/{n}": b"".join(bytes([k]) + rng.randbytes(3072) for k in (1, 2)) for n in names}


@cache
def tiny_members() -> dict[str, bytes]:
    rng, top = Random(0), "tiny-imagenet-200"
    made = {f"{top}/words.txt": b"n1\tcat\nn2\tdog\n"}
    for name in ("n1", "n2"):
        made[f"{top}/train/{name}/images/{name}_0.JPEG"] = inputs.image(rng, "JPEG", 64)
        made[f"{top}/val/images/v_{name}.JPEG"] = inputs.image(rng, "JPEG", 64)
    made[f"{top}/val/val_annotations.txt"] = b"v_n1.JPEG\tn1\t0\nv_n2.JPEG\tn2\t0\n"
    return made


def hostile_tiny(rng: Random) -> dict[str, bytes]:
    members = dict(tiny_members())
    name = rng.choice(list(members))
    whole = rng.random() < 0.5
    if not whole:
        members[name] = inputs.mutate(rng, members[name])
    content = inputs.zipped(members, rng.random() < 0.5)
    return {"tiny-imagenet-200.zip": inputs.mutate(rng, content) if whole else content}


@cache
def cases() -> list[dict[str, np.ndarray]]:
    from arno.data.archives import read_npz

    return [read_npz(path) for path in sorted(conform.PACKAGED.glob("*.npz"))]


def hostile_case(rng: Random) -> bytes:
    made = dict(rng.choice(cases()))
    members = {f"{name}.npy": inputs.npy(array) for name, array in made.items()}
    if rng.random() < 0.3:
        return inputs.hostile_npz(rng, members)
    spec = inputs.twist(rng, json.loads(str(made["spec"])))
    members["spec.npy"] = inputs.npy(np.array(inputs.dumps(spec)))
    if rng.random() < 0.3:
        members[rng.choice(list(members))] = inputs.npy(np.zeros(rng.choice(((), (0,), (3,), (2, 2), (1, 0, 4)))))
    return inputs.zipped(members)


@cache
def checkpoint_file() -> bytes:
    path = Path("valid.safetensors")
    state = {"w": torch.arange(6.0), "t": 3, "rng": [1, 2]}
    checkpoint.save(
        path, checkpoint.Checkpoint(3, state, {"best": torch.zeros(6), "rounds": 3}, {"model": {"kind": "mlp"}})
    )
    return path.read_bytes()


def hostile_checkpoint(rng: Random) -> bytes:
    """A changed file, or a whole one with a valid checksum and odd values."""
    if rng.random() < 0.6:
        return inputs.mutate(rng, checkpoint_file())
    odd = inputs.twist(
        rng, {"federation": {"t": 3}, "run": {"rounds": 3}, "config": {"model": {"kind": "mlp"}}, "round": 3}
    )
    names = rng.choice(
        (["federation/w"], ["w"], ["federation/w", "federation/w/x"], ["a/b/c/d"], ["run/best", "other/x"])
    )
    tensors = {name: torch.zeros(rng.choice((0, 1, 6))) for name in names}
    write_checkpoint(Path("odd.safetensors"), tensors, odd)
    return Path("odd.safetensors").read_bytes()


def write_checkpoint(path: Path, tensors: dict[str, torch.Tensor], values: Any) -> None:
    """A file with these tensors and values, and a checksum that holds."""
    plain = inputs.dumps(values)
    header = {"format": checkpoint.FORMAT, "checksum": checksum(tensors, checkpoint.FORMAT + plain), "plain": plain}
    checkpoint.write_tensors(path, tensors, {"arno": inputs.dumps(header)})


def checksum(tensors: dict[str, torch.Tensor], text: str) -> str:
    """The checksum of a checkpoint, as an attacker computes it."""
    digest = blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


@cache
def base() -> Path:
    """A finished run."""
    dispatch(["run", *SMALL, "data.limit=100", "rounds=2", "checkpoint.every=1", "seed=0", "out=base", "--quiet"])
    return Path("base")


#: Files of a run and of a comparison that hold JSON behind a checksum, each with a whole value.
RECORDS: dict[str, dict[str, Any]] = {
    "failure.json": {"reason": "a reason", "diverged": False, "config": {"seed": 0}},
    "tags.json": {"tags": ["one"]},
    "compare.json": {
        "command": "arno compare seed=0 out=run",
        "seconds": 1.0,
        "metric": "test_f1",
        "cells": [{"folder": "method=fedavg", "name": "fedavg", "setting": "", "seed": 0}],
    },
    "track/tensorboard.json": {"sent": 1, "began": 0.0, "finished": "", "uri": "", "run": "", "error": ""},
}


def hostile_run(rng: Random) -> tuple[str, bytes]:
    """A file of a run with odd values and a checksum that holds: the author of a folder knows how to compute it."""
    folder = RunFolder(base())
    name = rng.choice(("config.yaml", "manifest.json", "metrics.jsonl", "panels.json", "checkpoint", *RECORDS))
    if name == "config.yaml":
        text = inputs.dumps(inputs.twist_one(rng, folder.config()))
        head = f"# arno configuration of run {folder.mark}, crc32 {damage.checksum((folder.mark + text).encode())}"
        return name, f"{head}\n{text}".encode()
    if name == "metrics.jsonl":
        rows = inputs.twist_one(rng, folder.rows())
        good = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return name, "".join(metrics_file.line(row, folder.mark) for row in good).encode()
    if name == "panels.json":
        panel = {"title": "t", "text": "x", "kind": "lines", "x": [1], "lines": [{"name": "a", "y": [1.0]}]}
        return name, inputs.dumps(inputs.twist_one(rng, [panel])).encode()
    if name == "checkpoint":
        tensors, header = checkpoint.read_tensors(folder.saved()[-1])
        plain = json.loads(json.loads(header["arno"])["plain"])
        write_checkpoint(Path("odd.safetensors"), tensors, inputs.twist_one(rng, plain))
        return "checkpoints/00000002.safetensors", Path("odd.safetensors").read_bytes()
    plain = RECORDS.get(name) or {key: value for key, value in folder.manifest().items() if key != "checksums"}
    odd = inputs.twist_one(rng, plain)
    return name, checksummed.text(odd if isinstance(odd, dict) else {}).encode()


def crafted(value: tuple[str, bytes]) -> None:
    """Use the folder with every command that opens one; each may refuse it."""
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree(base(), "run")
    inputs.write(Path("run") / value[0], value[1])
    refused: list[ArnoError] = []
    for words in USES:
        try:
            dispatch(words)
        except ArnoError as error:
            refused.append(error)
        if (Path("run") / ".arno-index.json").exists():
            (Path("run") / ".arno-index.json").unlink()
    if refused:
        raise max(refused, key=lambda error: len(str(error)))


#: The commands that open the folder of a run.
USES = (
    ["runs", "."],
    ["runs", "show", "run"],
    ["runs", "diff", "run", "base"],
    ["runs", "tag", "two", "run"],
    ["report", "run", "--out", "report.html"],
    ["track", "run", "--to", "tensorboard"],
    ["watch", "run"],
    ["resume", "run", "rounds=3", "--quiet"],
    ["repair", "run"],
    ["resume", "run", "rounds=3", "--quiet"],
    ["runs", "rm", "run", "--yes"],
)


def hostile_config(rng: Random) -> bytes:
    from omegaconf import OmegaConf

    luck = rng.random()
    if luck < 0.1:
        return inputs.yaml_bombs(rng).encode()
    plain = settings.plain(settings.compose(["method=fedprox", "model.hidden=[8, 8]"]))
    if luck < 0.5:
        return inputs.text(rng, OmegaConf.to_yaml(OmegaConf.create(plain)))
    return inputs.dumps(inputs.twist(rng, plain)).encode()


def hostile_json(rng: Random) -> bytes:
    deep = rng.choice((50, 1000, 100_000))
    ids = rng.sample(range(12), 12)
    lists = [ids[:2], ids[2:6], ids[6:7]]
    odd = inputs.twist(rng, lists)
    return rng.choice((
        inputs.text(rng, inputs.dumps(lists)), inputs.dumps(odd).encode(), b"[" * deep, b"[" * deep + b"]" * deep,
        b'{"a":' * deep, b"[[" + b"9" * deep + b"]]", b"{0: [0], 1: " + b"(" * deep,
    ))  # fmt: skip


@cache
def binary_table(kind: str) -> bytes:
    import pyarrow as pa
    from pyarrow import feather, parquet

    out = io.BytesIO()
    made = pa.table({"a": list(range(20)), "b": [i / 3 for i in range(20)], "label": ["xyz"[i % 3] for i in range(20)]})
    (parquet.write_table if kind == "parquet" else feather.write_feather)(made, out)
    return out.getvalue()


def hostile_binary_table(rng: Random) -> tuple[str, bytes]:
    kind = rng.choice(("parquet", "feather"))
    return kind, inputs.mutate(rng, binary_table(kind))


def binary(content: tuple[str, bytes]) -> None:
    load({"kind": "table", "path": str(inputs.write(Path(f"data.{content[0]}"), content[1])), "label": "label"})


def hostile_table(rng: Random) -> bytes:
    rows = "a,b,label\n" + "".join(f"{i},{i / 3},{'xyz'[i % 3]}\n" for i in range(20))
    return inputs.text(rng, rows) if rng.random() < 0.8 else rng.randbytes(rng.randrange(400))


@cache
def sources() -> dict[str, str]:
    """Every registered source that reads files of the user: its name, and the setting that names the files."""
    keys = {name: signature(datasets.get(name)).parameters for name in datasets.names()}
    return {name: key for name, known in keys.items() for key in ("root", "path") if key in known}


def hostile_source(rng: Random) -> tuple[str, dict[str, bytes]]:
    """A source, and files of all kinds: whole ones of another kind, or changed ones."""
    rows = json.dumps({"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1, 2], [3, 4]], "y": [0, 1]}}})
    files = {
        **{f"{name}.gz": gzip.compress(content, 1) for name, content in idx_files().items()},
        **arrays(),
        "data.npz": inputs.zipped(arrays()),
        "data.csv": b"a,b,label\n1,2,x\n3,4,y\n",
        "data.txt": b"It was the best of times.\nIt was the worst of times.\n",
        "train/data.json": rows.encode(),
        "test/data.json": rows.encode(),
        "train-0.parquet": parquet_file(),
        "a/0.png": inputs.image(rng),
        "b/0.png": inputs.image(rng),
    }
    chosen = {name: files[name] for name in rng.sample(list(files), rng.randint(1, len(files)))}
    name = rng.choice(list(chosen))
    chosen[name] = inputs.mutate(rng, chosen[name])
    return rng.choice(list(sources())), chosen


def source(value: tuple[str, dict[str, bytes]]) -> None:
    name, files = value
    shutil.rmtree("data", ignore_errors=True)
    for file, content in files.items():
        inputs.write(Path("data") / file, content)
    place = "data" if sources()[name] == "root" else str(Path("data") / next(iter(files)))
    load({"kind": name, sources()[name]: place, **({"label": "label"} if name == "table" else {})})


#: Every kind: how an input is made (by hypothesis, or from a random generator), what reads it, and its share.
KINDS: dict[str, tuple[st.SearchStrategy[Any] | Callable[[Random], Any], Callable[[Any], None], float]] = {
    "overrides": (inputs.overrides(), overrides, 0.20),
    "runs": (inputs.overrides(), runs, 0.03),
    "configuration files": (hostile_config, configs, 0.10),
    "targets": (inputs.targets(), targets, 0.05),
    "cohort lists": (st.one_of(inputs.documents().map(lambda v: inputs.dumps(v).encode()), st.binary()), cohorts, 0.05),
    "cohort lists, changed": (hostile_json, cohorts, 0.04),
    "partition files": (
        st.one_of(inputs.documents().map(lambda v: inputs.dumps(v).encode()), st.binary()),
        partition,
        0.05,
    ),
    "partition files, changed": (hostile_json, partition, 0.04),
    "npz": (lambda rng: inputs.hostile_npz(rng, arrays()), npz, 0.10),
    "IDX": (hostile_idx, folder_of("mnist"), 0.07),
    "images": (hostile_images, folder_of("folder"), 0.07),
    "Parquet": (lambda rng: {"train-0.parquet": inputs.mutate(rng, parquet_file())}, folder_of("hub"), 0.05),
    "tar": (
        lambda rng: {"cifar-10-binary.tar.gz": inputs.gz(rng, inputs.tarred(cifar_members()))},
        folder_of("cifar10"),
        0.02,
    ),
    "zip": (hostile_tiny, folder_of("tinyimagenet"), 0.03),
    "tables": (hostile_table, table, 0.03),
    "tables, binary": (hostile_binary_table, binary, 0.03),
    "all sources": (hostile_source, source, 0.08),
    "conformance cases": (hostile_case, case, 0.05),
    "checkpoints": (hostile_checkpoint, saved, 0.05),
    "run folders": (hostile_run, crafted, 0.01),
}


def prepare() -> None:
    """Files that inputs name: a pipe, a folder and a text where a Python file is expected."""
    os.environ["ARNO_DATA"] = str(Path("store").resolve())
    if not Path("fifo.py").exists():
        os.mkfifo("fifo.py")
        Path("folder.py").mkdir()
        Path("text.py").write_text("x = 3\n")
