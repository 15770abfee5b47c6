"""Hostile inputs of every kind: texts from hypothesis, and valid files that are changed at random."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

Random = random.Random
#: The file that any executed code creates, in the folder where the inputs are read.
CANARY = "canary"


class Bomb:
    """Creates the canary when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (CANARY, "w"))


# --- changes of bytes ---


def mutate(rng: Random, content: bytes) -> bytes:
    """One to four random changes: flipped bits, cuts, insertions, repetitions, extreme numbers."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(CHANGES)(rng, bytearray(content))
    return content


def _flip(rng: Random, b: bytearray) -> bytes:
    for _ in range(rng.choice((1, 1, 8))):
        if b:
            b[rng.randrange(len(b))] ^= 1 << rng.randrange(8)
    return bytes(b)


def _early(rng: Random, b: bytearray) -> bytes:
    """A change in the first bytes, where headers are."""
    if b:
        b[rng.randrange(min(len(b), 128))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(b)


def _late(rng: Random, b: bytearray) -> bytes:
    """A change in the last bytes, where the directories of zip and Parquet files are."""
    if b:
        b[-1 - rng.randrange(min(len(b), 256))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(b)


def _cut(rng: Random, b: bytearray) -> bytes:
    return bytes(b[: rng.randrange(len(b) + 1)])


def _delete(rng: Random, b: bytearray) -> bytes:
    start = rng.randrange(len(b) + 1)
    del b[start : start + rng.randrange(64)]
    return bytes(b)


def _insert(rng: Random, b: bytearray) -> bytes:
    start = rng.randrange(len(b) + 1)
    b[start:start] = rng.randbytes(rng.randrange(1, 32))
    return bytes(b)


def _repeat(rng: Random, b: bytearray) -> bytes:
    start = rng.randrange(len(b) + 1)
    part = b[start : start + rng.randrange(1, 128)]
    b[start:start] = part * rng.randrange(1, 8)
    return bytes(b)


def _extreme(rng: Random, b: bytearray) -> bytes:
    number = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1))
    packed = struct.pack(rng.choice("<>") + "Q", number)
    packed = packed[: rng.choice((4, 8))] if rng.random() < 0.5 else packed[-4:]
    start = rng.randrange(max(1, min(len(b), rng.choice((64, 10**9)))))
    b[start : start + len(packed)] = packed
    return bytes(b)


CHANGES: tuple[Callable[[Random, bytearray], bytes], ...] = (
    _flip, _early, _late, _cut, _delete, _insert, _repeat, _extreme,
)  # fmt: skip


# --- changes of values ---

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 10**300,
    1e308, -1e308, float("nan"), float("inf"), "",
    "x", "\0", "é" * 300, "a" * 5000, [], [[]], {}, {"a": 1}, [None], [-1], ["0"], [[0, 0]], [[2**70]], "${seed}",
    "${oc.env:HOME}", "0x10", "1_000", "~", "../..", "/dev/zero", "custom", "os:system",
)  # fmt: skip


def twist(rng: Random, value: Any) -> Any:
    """A copy of a JSON value with some parts replaced, removed, repeated or renamed."""
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            luck = rng.random()
            if luck < 0.05:
                continue
            out["x" + key if luck < 0.08 else key] = twist(rng, item)
        return out if rng.random() > 0.02 else rng.choice(ODD)
    if isinstance(value, list):
        out_list = [twist(rng, item) for item in value if rng.random() > 0.03]
        return out_list * rng.choice((1, 1, 1, 2)) if rng.random() > 0.03 else rng.choice(ODD)
    return rng.choice(ODD) if rng.random() < 0.08 else value


def twist_one(rng: Random, value: Any) -> Any:
    """A copy of a JSON value with one part of it replaced or removed."""
    if isinstance(value, dict | list) and value and rng.random() > 0.1:
        at = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        if rng.random() < 0.1:
            del copy[at]
        else:
            copy[at] = twist_one(rng, value[at])
        return copy
    return rng.choice(ODD)


# --- texts ---

KEYS = (
    "method", "problem", "data", "task", "partition", "model", "select", "engine", "clients", "participation", "rounds",
    "weighting", "server_lr", "local.epochs", "local.batch_size", "local.lr", "local.clip", "local", "eval.every",
    "checkpoint.every", "on_divergence", "state", "seed", "device", "dtype", "load", "track", "out", "method.mu",
    "method.target", "model.target", "data.target", "data.path", "data.root", "data.val", "data.test", "model.hidden",
    "partition.alpha", "partition.path", "select.path", "select.d", "engine.workers", "engine.cores",
    "method.kind", "a.b",
)  # fmt: skip
VALUES = (
    "fedavg", "fedprox", "scaffold", "fedavgm", "lorenzo", "qrmix", "custom", "npz", "folder", "hub", "schedule",
    "file",
    "mlp", "softmax", "serial", "processes", "null", "true", "-1", "0", "1", "3", "1e400", ".inf", ".nan", "2.5",
    "1e-3",
    "9" * 400, "9" * 5000, "0x" + "f" * 4000, "1:" * 2000 + "1", "[" * 200, "[" * 200 + "]" * 200, "{a: {b: 1}}",
    "[1, 2", "${oc.env:HOME}", "${oc.env:NO_SUCH_NAME}", "${seed}", "${clients}", "${nowhere}", "${", "${a:b:c}",
    "${oc.decode:'[1'}", "${oc.${seed}:HOME}", "${oc.create:{a: 1}}", "${oc.dict.keys:local}", "${oc.select:local}",
    "$",
    "&a [1, *a]", "*a", "!!python/object/apply:os.system ['touch canary']", "!!int x", "os:system", "builtins:eval",
    "subprocess:run", "a" * 300, "a" * 5000, "x/" * 3000,
    "x/" * 2040, "\0", "\ud800", "é", "~nobody/x", "choice(1, 2)",
    "uniform(a)",
    "loguniform(0, 1)", "normal(1e308, 1e308)", "choice()", "[0.1] * 3", "?", "? a", "- - -", "|", ">", "%x", "@", "`",
)  # fmt: skip


def overrides() -> st.SearchStrategy[list[str]]:
    """Words of a command line."""
    text = st.text(max_size=30)
    numbers = st.one_of(st.integers().map(str), st.floats().map(str))
    value = st.one_of(st.sampled_from(VALUES), st.sampled_from(VALUES), text, numbers)
    key = st.one_of(st.sampled_from(KEYS), st.sampled_from(KEYS), st.sampled_from(KEYS), text)
    word = st.builds("{}={}".format, key, value)
    return st.lists(st.one_of(word, word, word, text), min_size=1, max_size=3)


def targets() -> st.SearchStrategy[str]:
    """Names of factories."""
    module = st.sampled_from((
        "os", "builtins", "subprocess", "sys", "posix", "shutil", "importlib", "runpy", "ctypes", "numpy", "torch",
        "arno",
        "os.path", ".os", "..", "", "a b", "torch.os", "nowhere.py", "/dev/null.py", "\0.py", "x" * 5000 + ".py",
        "fifo.py",
        "~nobody/x.py", "folder.py", "text.py", "torch.nn",
    ))  # fmt: skip
    name = st.sampled_from(
        ("system", "eval", "exec", "run", "exit", "rmtree", "import_module", "Linear", "path", "", "__class__", "x")
    )
    return st.one_of(
        st.builds("{}:{}".format, module, name),
        st.builds("{}:{}".format, st.text(max_size=12), name),
        st.text(max_size=20),
    )


def documents() -> st.SearchStrategy[Any]:
    """JSON values of any shape."""
    leaf = st.one_of(st.sampled_from(ODD), st.integers(-3, 30), st.integers(), st.text(max_size=8))
    return st.one_of(
        st.recursive(leaf, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=4), inner))),
        st.lists(st.lists(st.integers(-1, 12), max_size=5), max_size=8),
    )


def yaml_bombs(rng: Random) -> str:
    """Aliases that multiply, deep nesting, tags that would run code, long numbers."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, rng.randrange(2, 12))]
    deep = rng.choice((20, 100, 10_000, 200_000))
    return rng.choice((
        "\n".join(lines), "a: " + "[" * deep, "a: " + "[" * deep + "]" * deep, "{" * deep, "- " * deep,
        "a: &a\n  <<: *a\n",
        "rounds: !!python/object/apply:os.system ['touch canary']", "rounds: " + "9" * deep, "seed: 0x" + "f" * deep,
        "rounds: " + "1:" * deep + "1", "a: " + "x" * 2_000_000, "? " * deep, "method: ${oc.env:HOME}",
        "rounds: ${rounds}",
    ))  # fmt: skip


# --- valid files ---


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def image(rng: Random, kind: str = "PNG", size: int = 6) -> bytes:
    out = io.BytesIO()
    Image.frombytes("RGB", (size, size), rng.randbytes(3 * size * size)).save(out, kind)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def zipped(members: dict[str, bytes], compress: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def header(rng: Random, content: bytes) -> bytes:
    """An array whose header announces another shape or type, of the same length."""
    shapes = (
        "(10**12,)", "(99999999999, 4)", "(-1, 4)", "(2**62, 2**62)", "()", "(0, 0)", "(20, 4, 1, 1, 1, 1, 1, 1, 1, 1)",
        "(1e9,)", "('a',)", "((((((((", "(True,)",
    )  # fmt: skip
    kinds = (
        "'|O'",
        "'|V9'",
        "'<U0'",
        "'|S0'",
        "'<U99999999'",
        "'<f8'",
        "'<M8[s]'",
        "[('a', '<f8')]",
        "'x'",
        "__import__('os')",
    )
    kind, order, shape = rng.choice(kinds), rng.choice(("False", "True", "3")), rng.choice(shapes)
    said = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    length = struct.unpack("<H", content[8:10])[0]
    text = said.encode().ljust(length - 1)[: length - 1] + b"\n"
    return content[:10] + text + content[10 + length :]


def hostile_npz(rng: Random, members: dict[str, bytes]) -> bytes:
    """An .npz file with one damaged array, with a pickle, with a false size, or damaged as a whole."""
    members, name = dict(members), rng.choice(list(members))
    luck = rng.random()
    if luck < 0.35:
        members[name] = mutate(rng, members[name])
    elif luck < 0.6:
        members[name] = header(rng, members[name])
    elif luck < 0.7:
        members[name] = npy(np.array([Bomb()], dtype=object))
    elif luck < 0.72:
        return pickle.dumps(Bomb())
    elif luck < 0.74:
        members[name] = bytes(2**28 + rng.randrange(2**26))
        return zipped(members, True)
    content = zipped(members, rng.random() < 0.3)
    return content if 0.35 <= luck < 0.74 else mutate(rng, content)


def tarred(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def gz(rng: Random, content: bytes) -> bytes:
    """A gzip file of changed content, or a changed gzip file."""
    if rng.random() < 0.6:
        return gzip.compress(mutate(rng, content), 1)
    return mutate(rng, gzip.compress(content, 1))


def text(rng: Random, content: str) -> bytes:
    return mutate(rng, content.encode())


def dumps(value: Any) -> str:
    return json.dumps(value, default=str)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
