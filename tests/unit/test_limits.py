"""Limits on input. A test named `test_attack_…` repeats an attack that once succeeded."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import feather, parquet

from arno import conform, limits
from arno.cli import main
from arno.client_selection.schedule import schedule
from arno.config import settings
from arno.data import load
from arno.data.archives import read_npy, read_npz, read_tar
from arno.errors import ArnoError
from arno.registry import load_target


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "store"))


@pytest.fixture
def little_memory():
    """The test may allocate 64 MB."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6


def images(root: str = "data") -> Path:
    for name in ("cat", "dog"):
        (Path(root) / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(Path(root) / name / f"{i}.png")
    return Path(root)


def refused(words: str, read, *arguments, **named) -> str:
    with pytest.raises(ArnoError, match=words) as caught:
        read(*arguments, **named)
    assert "allow_pickle" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


# --- files and links ---


def test_attack_a_fifo_among_images_is_refused_unopened():
    root = images()
    assert len(load({"kind": "folder", "root": str(root)}).y) > 0
    os.mkfifo(root / "cat" / "pipe.png")
    refused("pipe.png: is a device, pipe or socket; give a regular file", load, {"kind": "folder", "root": str(root)})


@pytest.mark.parametrize("read", [limits.read_text, limits.read_bytes, limits.read_json, read_npz, settings.read])
def test_a_fifo_a_folder_and_a_missing_file_are_refused(read):
    os.mkfifo("pipe")
    refused("pipe: is a device, pipe or socket", read, Path("pipe"))
    refused("is a folder", read, Path("."))
    refused("cannot be read", read, Path("nowhere"))
    refused("File name too long", read, Path("a" * 300))
    refused("null", read, Path("a\0b"))


@pytest.mark.parametrize("link", ["cat/secret.png", "bird"])
def test_a_link_out_of_a_folder_of_images_is_not_followed(link):
    root, other = images(), images("other")
    (root / link).symlink_to((other / "cat" / "0.png" if "." in link else other / "cat").resolve())
    refused(f"{link}: is a link that leaves data", load, {"kind": "folder", "root": str(root)})


def test_a_link_inside_a_folder_of_images_is_followed():
    root = images()
    before = len(load({"kind": "folder", "root": str(root), "test": 0.5}).y)
    (root / "cat" / "9.png").symlink_to("0.png")
    (root / "cat" / "8.png").symlink_to("1.png")
    assert len(load({"kind": "folder", "root": str(root), "test": 0.5}).y) == before + 1


def test_a_link_to_itself_is_refused():
    root = images()
    (root / "cat" / "9.png").symlink_to("9.png")
    refused("is a link that leaves|cannot be read", load, {"kind": "folder", "root": str(root)})


def test_a_link_out_of_a_folder_of_parquet_files_is_not_followed():
    Path("data").mkdir()
    Path("secret").write_bytes(b"x")
    Path("data/train-0.parquet").symlink_to(Path("secret").resolve())
    refused("is a link that leaves data", load, {"kind": "hub", "root": "data"})


# --- archives and arrays ---


def test_attack_a_zip_bomb_is_refused_before_it_is_unpacked(little_memory):
    bomb = zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with bomb as archive, archive.open("x.npy", "w") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (300 << 20,)})
        for _ in range(300):
            out.write(bytes(1 << 20))
    assert os.path.getsize("bomb.npz") < 4e6
    refused("bomb.npz: 314,57.* bytes: from .* packed bytes at most", read_npz, Path("bomb.npz"))


def test_attack_a_1_mb_gzip_of_3_gb_is_refused_before_it_is_unpacked(little_memory):
    Path("data").mkdir()
    block = gzip.compress(bytes(1 << 24))
    header = gzip.compress(bytes([0, 0, 8, 3]) + np.array((200, 1 << 12, 1 << 12), ">u4").tobytes())
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        Path(f"data/{name}-ubyte.gz").write_bytes(header + block * 200)
    refused("3,355,443,200 bytes: from .* packed bytes at most", load, {"kind": "mnist", "root": "data"})


def test_a_tar_bomb_is_refused_while_it_is_unpacked(little_memory):
    """The member that is not wanted would unpack to 3.3 GB."""
    info = tarfile.TarInfo("other")
    info.size = 200 << 24
    Path("bomb.tar.gz").write_bytes(gzip.compress(info.tobuf()) + gzip.compress(bytes(1 << 24)) * 200)
    refused("member 'other': 3,355,443,200 bytes", read_tar, Path("bomb.tar.gz"), ["wanted"])


def test_a_header_of_a_tar_that_claims_too_much_is_refused(monkeypatch, little_memory):
    monkeypatch.setattr(limits, "FLOOR", 1 << 20)
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 4 << 24
    blocks = gzip.compress(bytes(1 << 24)) * 4
    Path("bomb.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + blocks)
    refused("packed bytes at most", read_tar, Path("bomb.tar.gz"), ["wanted"])


def npz_of(header: bytes, body: bytes = b"") -> Path:
    out = io.BytesIO()
    out.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body)
    with zipfile.ZipFile("it.npz", "w") as archive:
        archive.writestr("x.npy", out.getvalue())
    return Path("it.npz")


@pytest.mark.parametrize(
    ("descr", "shape", "said"),
    [
        ("'<f8'", "(1000000000000,)", "announces 8,000,000,000,000 bytes and 0 follow"),
        ("'<U99999999'", "(100,)", "announces"),
        ("'<f8'", "(-1, -1)", "cannot be read"),
        ("'|S0'", "(1000000000000,)", "cannot be read"),
        ("'<f8'", "(1,) * 3", "header cannot be read"),
        ("'<f8'", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "cannot be read"),
        ("'|O'", "(1,)", "Python objects"),
        ("[('a', '|O')]", "(1,)", "Python objects"),
        ("'<f8'", "((((((", "header cannot be read"),
    ],
)
def test_an_array_that_claims_what_does_not_follow_is_refused(descr, shape, said, little_memory):
    refused(said, read_npz, npz_of(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()))


def test_a_single_array_is_read_under_the_same_rules(little_memory):
    np.save("one.npy", np.arange(6).reshape(2, 3))
    assert read_npy(Path("one.npy")).tolist() == [[0, 1, 2], [3, 4, 5]]
    content = Path("one.npy").read_bytes()
    Path("one.npy").write_bytes(content[:-1])
    refused("announces 48 bytes and 47 follow", read_npy, Path("one.npy"))
    Path("one.npy").write_bytes(content.replace(b"(2, 3)", b"(9**9)"))
    refused("header cannot be read", read_npy, Path("one.npy"))


class Bomb:
    def __reduce__(self):
        return (open, ("canary", "w"))


def test_attack_no_pickle_is_executed_and_no_message_advises_it():
    np.savez("objects.npz", x=np.array([Bomb()], dtype=object), y=np.arange(3))
    Path("pickle.npz").write_bytes(pickle.dumps(Bomb()))
    np.save("one.npy", np.arange(3))
    for name in ("objects.npz", "pickle.npz", "one.npy"):
        refused("Python objects|not an .npz file|cannot be read", load, {"kind": "npz", "path": name})
        refused("is not a conformance case", conform.read, Path(name), "serial")
    assert not Path("canary").exists()


def test_labels_that_would_make_too_many_classes_are_refused(little_memory):
    np.savez("data.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 2**40, 1]))
    refused("label 1099511627776: at most 1,000,000 classes", load, {"kind": "npz", "path": "data.npz"})


# --- images ---


def test_an_image_of_another_format_is_not_handed_to_another_program():
    """Pillow passes PostScript to Ghostscript, which is a language that can write files."""
    root = images()
    (root / "cat" / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n(canary) (w) file\n")
    refused("0.png: it cannot be decoded as an image", load, {"kind": "folder", "root": str(root)})


def test_an_image_of_too_many_pixels_is_refused(little_memory):
    root = images()
    Image.new("1", (9000, 9000)).save(root / "cat" / "0.png")
    refused("9000x9000 pixels are more than 64,000,000", load, {"kind": "folder", "root": str(root)})


# --- YAML and JSON ---


def bomb(levels: int = 9) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    return "\n".join(lines + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)])


def test_attack_a_yaml_alias_bomb_is_refused_before_it_is_built(little_memory):
    Path("bomb.yaml").write_text(bomb())
    refused(r"bomb.yaml': it uses the alias \*a0; write the value out", settings.read, Path("bomb.yaml"))
    refused(r"it uses the alias \*a", settings.parse, "local.lr=[&a [1], *a]")


def test_attack_a_yaml_alias_bomb_in_a_run_folder_costs_report_nothing(little_memory, capsys):
    from arno.records.folder import RunFolder

    Path("run").mkdir()
    Path("run/config.yaml").write_text(bomb())
    Path("run/manifest.json").write_text("{}")
    refused("alias", RunFolder.open(Path("run")).config)
    with pytest.raises(SystemExit, match="2"):
        main(["report", "run"])
    error = capsys.readouterr().err
    assert error == "error: config run/config.yaml: it uses the alias *a0; write the value out\n"


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "a: " + "[" * 500 + "]" * 500, "- " * 1000 + "1"])
def test_yaml_that_is_nested_too_deeply_is_refused(text):
    Path("deep.yaml").write_text(text)
    refused("levels deep|valid YAML", settings.read, Path("deep.yaml"))


def test_a_configuration_that_is_too_large_is_refused():
    Path("large.yaml").write_text("a: 1\n" * 300_000)
    refused("1,500,000 bytes: at most 1,048,576 are read", settings.read, Path("large.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[[0], [1.5]]", "list of lists of client ids"),
        ("[[0], [true]]", "list of lists of client ids"),
        ('{"a": [0]}', "list of lists of client ids"),
        ("[]", "list of lists of client ids"),
        ("[[0], 3]", "list of lists of client ids"),
        (f"[[{2**64}]]", "more than 64 bits"),
        ("[[" + "9" * 5000 + "]]", "cannot be read as JSON"),
        ("[[0], [1", "cannot be read as JSON"),
        ("\udcff", "is no UTF-8 text"),
    ],
)
def test_attack_bad_cohort_lists(text, said):
    Path("cohorts.json").write_text(text, errors="surrogateescape")
    refused(said, schedule, 0.5, path="cohorts.json")


def test_json_of_too_many_lists_is_refused_before_it_is_built():
    refused("at most .* lists are read", limits.parse_json, "[" + "[]," * (limits.CONTAINERS + 1) + "[]]", "it")


# --- settings ---


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("clients=${oc.env:HOME}", "clients: .* it must be a whole number"),
        ("clients=${oc.env:NO_SUCH_NAME}", "clients: .*NO_SUCH_NAME"),
        ("clients=${nowhere}", "clients: .*'nowhere' not found"),
        ("clients=${clients}", "clients: .*[Rr]ecursive"),
        ("local.lr=${", "cannot be read"),
        ("rounds=${oc.decode:'[1'}", "rounds: .*cannot be resolved"),
        ("rounds=${no.such.resolver:1}", "rounds: .*cannot be resolved"),
    ],
)
def test_attack_an_interpolation_that_fails_is_one_line(word, said, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert "\n" not in refused(said, settings.compose, [word])


def test_an_interpolation_that_resolves_is_replaced(monkeypatch):
    monkeypatch.setenv("COUNT", "7")
    config = settings.compose(["seed=3", "clients=${oc.env:COUNT}", "rounds=${seed}"])
    assert (config.clients, config.rounds) == (7, 3)


def test_a_stored_configuration_reads_no_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    stored = {"out": "${oc.env:SECRET}"}
    refused(r"a stored value '\$\{oc\.env:SECRET\}'", settings.compose, [], stored)
    refused("a stored value", settings.compose, [], {"out": "${oc.${on_divergence}:SECRET}"})
    Path("config.yaml").write_text("out: ${oc.env:SECRET}\n")
    assert settings.read(Path("config.yaml")) == {"out": "word"}, "a file of the user may"
    Path("manifest.json").write_text("{}")
    refused("a stored value", settings.read, Path("config.yaml"))


@pytest.mark.parametrize("out", ["a" * 256, "é" * 200, "x/" * 3000, "x/" * 2000, "a\0b"])
def test_attack_an_over_long_out_is_one_line(out):
    refused("at most|null|cannot be read", settings.compose, [f"out={out}"])


@pytest.mark.parametrize("value", ["9" * 400, "0x" + "f" * 4000, "1:" * 1000 + "1", str(2**63), "9" * 5000])
def test_a_whole_number_of_more_than_64_bits_is_refused(value):
    refused("64 bits|characters", settings.compose, [f"seed={value}"])


@pytest.mark.parametrize("value", ["1.5", "3", "true", "[1]", "{a: 1}"])
def test_a_tracker_that_is_no_name_is_refused(value):
    refused("trackers are given by name|unknown key", settings.compose, [f"track={value}"])


def test_a_long_word_that_is_no_setting_is_shortened():
    refused("settings are written key=value", settings.compose, ["=" + "x" * 4000])


def test_a_negative_seed_is_refused():
    refused("seed = -1: it must be at least 0", settings.compose, ["seed=-1"])


# --- targets ---


@pytest.mark.parametrize("target", ["os:system", "builtins:eval", "subprocess:run", "os.path:join", "posix:system"])
def test_attack_a_function_of_the_standard_library_is_no_target(target):
    refused("is a module of the standard library", load_target, target)
    refused("is a module of the standard library", settings.compose, ["method=custom", f"method.target={target}"])


def test_attack_a_function_of_the_standard_library_under_another_name_is_no_target():
    Path("mine.py").write_text("from os import system as factory\n")
    refused("is a module of the standard library", load_target, "mine.py:factory")


@pytest.mark.parametrize("where", ["", ".os", "a..b", "a b", "x" * 5000, "\0.py", "~nobody/x.py", "a" * 300 + ".py"])
def test_a_target_that_is_no_module_and_no_file_is_one_line(where):
    refused("not a name of a module|there is no file|cannot import", load_target, f"{where}:factory")


# --- conformance cases ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec.update(epochs=10**12), "has the number 1,000,000,000,000, and numbers must be at most 256"),
        (lambda spec: spec["dims"].update(hidden=10**9), "at most 256"),
        (lambda spec: spec.update(tol="small"), "wrong tol"),
        (lambda spec: spec.update(method=[]), "wrong method"),
        (lambda spec: spec.update(kind={}), "wrong kind"),
        (lambda spec: spec.update(lr="fast"), "'fast'"),
        (lambda spec: spec.update(participation=[]), "cannot be replayed"),
        (lambda spec: spec["method"].update(mu=[]), "cannot be replayed"),
    ],
)
def test_attack_bad_conformance_cases(change, said):
    arrays = read_npz(conform.PACKAGED / "fedavg_mlp_uniform.npz")
    spec = limits.parse_json(str(arrays["spec"]), "it")
    change(spec)
    np.savez("case.npz", **(arrays | {"spec": np.array(json.dumps(spec))}))
    refused(said, conform.replay, Path("case.npz"))


# --- values that a Parquet file repeats, and long Python literals ---


def repeated(rows: int, value: str, **options: object) -> Path:
    """A small file whose column `text` has the same long value in every row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
    table = pa.table({"text": text, "y": pa.array(np.arange(rows) % 2)})
    path = Path("bomb.parquet")
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**28, store_schema=False, **options)
    return path


@pytest.mark.parametrize("rows", [20_000, 2_000_000])
def test_attack_a_parquet_column_repeats_a_long_value(rows):
    import pyarrow as pa

    path = repeated(rows, "x" * 1_000_000)
    assert path.stat().st_size < 1e6
    before = pa.default_memory_pool().max_memory()
    refused("bytes", load, {"kind": "table", "path": str(path), "label": "y"}, 0)
    assert pa.default_memory_pool().max_memory() - before < 256e6


@pytest.fixture
def few_values(monkeypatch):
    """The values of a Parquet file may take 16 MiB."""
    from arno.data import parquet

    monkeypatch.setattr(parquet, "VALUES", 2**24)


def test_attack_a_parquet_column_shares_a_long_prefix(few_values, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from arno.data import parquet

    monkeypatch.setattr(parquet, "FLOOR", 2**24)
    texts = [f"{'x' * 1_000_000}{i}" for i in range(100)]
    encoding = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "compression": "zstd"}
    pq.write_table(pa.table({"text": texts, "y": np.arange(100) % 2}), "bomb.parquet", **encoding)
    assert Path("bomb.parquet").stat().st_size < 1e5
    said = refused("bytes", load, {"kind": "table", "path": "bomb.parquet", "label": "y"}, 0)
    assert 2**24 < int(said.split("bomb.parquet: ")[1].split()[0].replace(",", "")) < 2**26  # it stopped on the way


def test_texts_in_other_encodings_are_read():
    import pyarrow as pa
    import pyarrow.parquet as pq

    encoding = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"text": ["river", "rivers"] * 50, "y": np.arange(100) % 2}), "other.parquet", **encoding)
    data = load({"kind": "table", "path": "other.parquet", "label": "y"}, 0)
    assert data.shape == (2,)


def test_attack_a_parquet_column_repeats_one_number(few_values):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.zeros(2 * 10**6), "y": np.zeros(2 * 10**6, np.int64)}), "bomb.parquet")
    assert Path("bomb.parquet").stat().st_size < 1e5
    refused("bytes", load, {"kind": "table", "path": "bomb.parquet", "label": "y"}, 0)


def test_attack_a_table_of_100000_columns_is_refused():
    """It took minutes and 2 GB: every column costs some objects, however few rows there are."""
    many = "it has 100,001 columns, and a table may have 32,768; leave columns out"
    Path("wide.csv").write_text(f"{','.join(f'c{i}' for i in range(100_000))},y\n" + f"{'1,' * 100_000}1\n" * 2)
    refused(many, load, {"kind": "table", "path": "wide.csv", "label": "y"}, 0)
    Path("list.csv").write_text("notes,y\n" + "".join(f'"{"1," * 40_000}",{k % 2}\n' for k in range(20)))
    assert len(load({"kind": "table", "path": "list.csv", "label": "y"}, 0).y) > 0, "separators within a value"
    Path("mac.csv").write_text("x,y\r" + "".join(f"{k},{k % 2}\r" for k in range(40_000)))
    assert len(load({"kind": "table", "path": "mac.csv", "label": "y"}, 0).y) > 0, "lines that end as on old Macs"
    for first in ('a"b,c"', '"a\nb"'):  # a quote within a value begins nothing, and a name may hold a line break
        Path("wide.csv").write_text(f"{first}{',c' * (100_000 - first.count(','))}\n")
        refused(many, load, {"kind": "table", "path": "wide.csv", "label": "y"}, 0)
    wide, many = pa.table({f"c{i}": [1] for i in range(40_000)}), many.replace("100,001", "40,000")
    parquet.write_table(wide, "wide.parquet")
    feather.write_feather(wide, "wide.feather")
    for name in ("wide.parquet", "wide.feather"):
        refused(many, load, {"kind": "table", "path": name, "label": "c0"}, 0)


def test_repeated_short_values_are_read():
    table = load({"kind": "table", "path": str(repeated(100, "long enough")), "label": "y"}, 0)
    assert len(table.y) + len(table.y_test) == 100


def test_attack_a_python_dictionary_of_a_million_numbers(little_memory):
    from arno.limits import parse_numbered

    text = "{0: [" + ", ".join(map(str, range(200_000))) + "], 1: []}"
    assert {key: len(rows) for key, rows in parse_numbered(text, "it").items()} == {"0": 200_000, "1": 0}
    refused("cannot be read as JSON", parse_numbered, "{0: (" + "1, " * 400_000 + ")}", "it")
    assert parse_numbered("{0: (1, 2)}", "it") == {0: (1, 2)}
