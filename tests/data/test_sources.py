"""Every source on small files made here, whole and damaged; and on the real ones where there are any."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from arno.data import load
from arno.data.images import cached, decode
from arno.data.parquet import read_parquet
from arno.data.sources import hub
from arno.errors import ArnoError

RANDOM = np.random.default_rng(0)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def pictures(n: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (n, *(shape or (5, 4, 3))), dtype=np.uint8)


# --- IDX ---


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(root: Path, n: int = 30, zipped: bool = True) -> dict[str, np.ndarray]:
    made = {}
    for part, count in (("train", n), ("t10k", 10)):
        made[f"{part}-images-idx3-ubyte"] = pictures(count, 28, 28)
        made[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 10
    for name, array in made.items():
        (root / (name + ".gz" * zipped)).write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return made


@pytest.mark.parametrize("kind", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx(tmp_path, kind, zipped):
    made = write_idx(tmp_path, zipped=zipped)
    data = load({"kind": kind, "root": str(tmp_path)})
    assert torch.equal(data.x[:, 0], torch.from_numpy(made["train-images-idx3-ubyte"]))
    assert data.y.tolist() == [i % 10 for i in range(30)]
    assert data.shape == (1, 28, 28)
    assert len(data.x_test) == 10


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b[: len(b) // 2], "damaged or truncated"),
        (lambda b: b"", "not an IDX file"),
        (lambda b: gzip.compress(gzip.decompress(b)[:-3]), r"announces \d+ bytes and \d+ follow"),
        (lambda b: gzip.compress(gzip.decompress(b) + b"!"), r"announces \d+ bytes and more follow"),
        (lambda b: gzip.compress(gzip.decompress(b)[:6]), "not an IDX file"),
        (lambda b: gzip.compress(b"\x80" + gzip.decompress(b)[1:]), "not an IDX file"),
        (lambda b: b"hello", "damaged or truncated"),
    ],
)
def test_damaged_idx(tmp_path, file, damage, said):
    write_idx(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    with pytest.raises(ArnoError, match=said) as caught:
        load({"kind": "mnist", "root": str(tmp_path)})
    assert file in str(caught.value)


EMNIST = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def write_emnist(root: Path, split: str, layout: str) -> dict[str, np.ndarray]:
    """The four files of a split in a layout: plain, packed, in a folder `gzip`, or in the published archive."""
    first, made = int(split == "letters"), {}
    for part, count in (("train", 70), ("test", 20)):
        made[f"emnist-{split}-{part}-images-idx3-ubyte"] = pictures(count, 28, 28)
        labels = np.arange(count, dtype=np.uint8) % EMNIST[split] + first
        made[f"emnist-{split}-{part}-labels-idx1-ubyte"] = labels
    if layout == "zip":
        with zipfile.ZipFile(root / "gzip.zip", "w") as archive:
            for name, array in made.items():
                archive.writestr(f"gzip/{name}.gz", gzip.compress(idx(array)))
        return made
    place = root / "gzip" if layout == "folder" else root
    place.mkdir(exist_ok=True)
    for name, array in made.items():
        packed = layout != "plain"
        (place / (name + ".gz" * packed)).write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return made


@pytest.mark.parametrize("split", EMNIST)
@pytest.mark.parametrize("layout", ["plain", "packed", "folder", "zip"])
def test_emnist(tmp_path, split, layout):
    made = write_emnist(tmp_path, split, layout)
    data = load({"kind": "emnist", "split": split, "root": str(tmp_path)})
    images = torch.from_numpy(made[f"emnist-{split}-train-images-idx3-ubyte"])
    assert torch.equal(data.x[:, 0], images.transpose(1, 2)), "the stored images are transposed"
    labels = made[f"emnist-{split}-test-labels-idx1-ubyte"].astype(int) - (split == "letters")
    assert data.y_test.tolist() == labels.tolist()
    assert data.n_classes == EMNIST[split] == len(set(data.classes))
    assert data.mean[0] == pytest.approx(float(images.double().mean() / 255))


def test_the_classes_of_emnist_are_in_the_order_of_its_labels(tmp_path):
    """The published mapping of the merged splits ends with 36 → a, 37 → b, 38 → d, …, 46 → t."""
    write_emnist(tmp_path, "balanced", "plain")
    classes = load({"kind": "emnist", "split": "balanced", "root": str(tmp_path)}).classes
    assert "".join(classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    write_emnist(tmp_path, "byclass", "plain")
    classes = load({"kind": "emnist", "root": str(tmp_path)}).classes
    assert (classes[10], classes[35], classes[36], classes[61]) == ("A", "Z", "a", "z")


def test_what_is_wrong_with_files_of_emnist(tmp_path):
    made = write_emnist(tmp_path, "letters", "zip")
    with pytest.raises(ArnoError, match=r"gzip\.zip: it lacks gzip/emnist-digits-train-images-idx3-ubyte\.gz"):
        load({"kind": "emnist", "split": "digits", "root": str(tmp_path)})
    (tmp_path / "gzip.zip").unlink()
    (tmp_path / "other").touch()
    with pytest.raises(ArnoError, match=r"gzip\.zip is missing; leave data\.root out to download"):
        load({"kind": "emnist", "split": "letters", "root": str(tmp_path)})
    made = write_emnist(tmp_path, "letters", "packed")
    name = "emnist-letters-train-labels-idx1-ubyte"
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(made[name] - 1)))
    with pytest.raises(ArnoError, match="label 255: labels must be 0 to 25"):
        load({"kind": "emnist", "split": "letters", "root": str(tmp_path)})
    (tmp_path / f"{name}.gz.sha256").write_text("0" * 64)
    with pytest.raises(ArnoError, match=r"emnist-letters-train-labels-idx1-ubyte\.gz: SHA-256"):
        load({"kind": "emnist", "split": "letters", "root": str(tmp_path)})


def test_idx_with_a_file_missing(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(ArnoError, match=r"t10k-images-idx3-ubyte\.gz is missing"):
        load({"kind": "fashion_mnist", "root": str(tmp_path)})


# --- CIFAR ---


def records(n: int, *labels: np.ndarray) -> tuple[np.ndarray, bytes]:
    x = RANDOM.integers(0, 256, (n, 3072), dtype=np.uint8)
    return x, np.column_stack([*(v.astype(np.uint8) for v in labels), x]).tobytes()


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_cifar10(path: Path) -> tuple[dict[str, bytes], np.ndarray]:
    files, first = {}, None
    for i, name in enumerate([*(f"data_batch_{j}.bin" for j in range(1, 6)), "test_batch.bin"]):
        x, files[f"cifar-10-batches-bin/{name}"] = records(4, (np.arange(4) + i) % 10)
        first = x if first is None else first
    tar(path, {"cifar-10-batches-bin/readme.html": b"hello", **files})
    assert first is not None
    return files, first


def test_cifar10_archive_folder_and_cache(tmp_path, store):
    files, first = write_cifar10(tmp_path / "cifar-10-binary.tar.gz")
    data = load({"kind": "cifar10", "root": str(tmp_path)})
    assert data.x.shape == (20, 3, 32, 32)
    assert torch.equal(data.x[:4].flatten(1), torch.from_numpy(first))
    assert data.y.tolist() == [(k + i) % 10 for i in range(5) for k in range(4)]
    assert data.y_test.tolist() == [5, 6, 7, 8]
    assert data.val == 0.2
    assert len(list(store.glob("decoded/cifar10-*.npz"))) == 1
    assert load({"kind": "cifar10", "root": str(tmp_path)}).fingerprint() == data.fingerprint()
    for name, content in files.items():
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_bytes(content)
    for root in ("unpacked", "unpacked/cifar-10-batches-bin"):
        assert load({"kind": "cifar10", "root": str(tmp_path / root)}).fingerprint() == data.fingerprint()


def test_cifar100_takes_the_fine_label(tmp_path):
    coarse, fine = np.arange(6), np.array([99, 0, 50, 3, 2, 1])
    members = {f"cifar-100-binary/{f}.bin": records(6, coarse, fine)[1] for f in ("train", "test")}
    tar(tmp_path / "cifar-100-binary.tar.gz", members)
    data = load({"kind": "cifar100", "root": str(tmp_path)})
    assert data.y.tolist() == fine.tolist()
    assert data.n_classes == 100
    assert data.classes == tuple(sorted(data.classes))  # the published names are in alphabetical order


@pytest.mark.parametrize("name", ["../data_batch_1.bin", "/etc/data_batch_1.bin", "a/../../b", "a\\..\\b"])
def test_attack_tar_slip_members_that_point_outside(tmp_path, name):
    files, _ = write_cifar10(tmp_path / "good.tar.gz")
    tar(tmp_path / "cifar-10-binary.tar.gz", {name: b"evil", **files})
    with pytest.raises(ArnoError, match="points outside the archive"):
        load({"kind": "cifar10", "root": str(tmp_path)})


def test_attack_tar_slip_by_a_link(tmp_path):
    files, _ = write_cifar10(tmp_path / "good.tar.gz")
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if name.endswith("data_batch_3.bin"):
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(ArnoError, match=r"lacks cifar-10-batches-bin/data_batch_3\.bin"):
        load({"kind": "cifar10", "root": str(tmp_path)})


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_cut_archive(tmp_path, keep):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_cifar10(path)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ArnoError, match=r"cifar-10-binary\.tar\.gz: damaged or truncated"):
        load({"kind": "cifar10", "root": str(tmp_path)})


def test_a_cut_record_and_a_wrong_label(tmp_path):
    files, _ = write_cifar10(tmp_path / "cifar-10-binary.tar.gz")
    name = "cifar-10-batches-bin/data_batch_2.bin"
    tar(tmp_path / "cifar-10-binary.tar.gz", files | {name: files[name][:-1]})
    with pytest.raises(ArnoError, match=r"data_batch_2\.bin.*whole number of records of 3073"):
        load({"kind": "cifar10", "root": str(tmp_path)})
    tar(tmp_path / "cifar-10-binary.tar.gz", files | {name: b"\x0a" + files[name][1:]})
    with pytest.raises(ArnoError, match="label 10"):
        load({"kind": "cifar10", "root": str(tmp_path)})


# --- Parquet and the hub ---


def write_parquet(path: Path, x: np.ndarray, y: list, image="img", label="label", names=None, struct=True) -> None:
    blobs = [{"bytes": png(i), "path": None} if struct else png(i) for i in x]
    table = pa.table({image: blobs, label: y})
    if names:
        about = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=7)


def test_cifar10_from_parquet_in_several_files(tmp_path):
    x = pictures(30, 32, 32, 3)
    for i in range(2):
        write_parquet(tmp_path / f"train-0000{i}-of-00002.parquet", x[10 * i :][:10], list(range(10)))
    write_parquet(tmp_path / "test-00000-of-00001.parquet", x[20:], list(range(10)))
    data = load({"kind": "cifar10", "root": str(tmp_path)})
    assert torch.equal(data.x, torch.from_numpy(x[:20].transpose(0, 3, 1, 2)))
    assert torch.equal(data.x_test, torch.from_numpy(x[20:].transpose(0, 3, 1, 2)))
    assert data.y.tolist() == [*range(10)] * 2
    assert data.classes[3] == "cat"


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_cut_parquet_file(tmp_path, keep, split):
    for name in ("train", "test"):
        write_parquet(tmp_path / f"{name}-0.parquet", pictures(10, 32, 32, 3), list(range(10)))
    path = tmp_path / f"{split}-0.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(ArnoError, match=rf"{split}-0\.parquet: damaged or not a Parquet file") as caught:
        load({"kind": "cifar10", "root": str(tmp_path)})
    assert "\n" not in str(caught.value)


def serve(folder: Path, monkeypatch: pytest.MonkeyPatch, entries: list[dict], **more) -> list[str]:
    """Pretend that the hub lists `entries` and that its files are in `folder`."""
    asked = []

    def fetch(url: str, path: Path, *, size: int | None = None) -> Path:
        asked.append(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        if url.startswith(hub.LISTING):
            path.write_text(json.dumps({"parquet_files": entries, **more}), encoding="utf-8")
        else:
            path.write_bytes((folder / url.rpartition("/")[2]).read_bytes())
            assert path.stat().st_size == size
        return path

    monkeypatch.setattr(hub, "fetch", fetch)
    return asked


def entry(path: Path, config: str, split: str) -> dict:
    return {
        "dataset": "some/pets",
        "config": config,
        "split": split,
        "url": f"https://huggingface.co/{path.name}",
        "filename": "0000.parquet",
        "size": path.stat().st_size,
    }


def test_hub_picks_subset_split_and_columns(tmp_path, monkeypatch, store):
    x = pictures(12, 6, 6, 3)
    for i, name in enumerate(("a", "b", "c")):
        write_parquet(tmp_path / name, x[4 * i :][:4], [0, 1, 1, 0], "image", "labels", ["cat", "dog"])
    entries = [
        entry(tmp_path / "a", "small", "train"),
        entry(tmp_path / "b", "small", "train"),
        entry(tmp_path / "c", "small", "validation"),
        entry(tmp_path / "c", "large", "train"),
    ]
    asked = serve(tmp_path, monkeypatch, entries)
    data = load({"kind": "hub", "name": "some/pets", "subset": "small"})
    assert asked[0] == "https://datasets-server.huggingface.co/parquet?dataset=some%2Fpets"
    assert torch.equal(data.x, torch.from_numpy(x[:8].transpose(0, 3, 1, 2)))
    assert torch.equal(data.x_test, torch.from_numpy(x[8:].transpose(0, 3, 1, 2)))
    assert data.classes == ("cat", "dog")
    z = data.transform().normalise(data.x, torch.float64)
    assert torch.allclose(z.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(z.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64))
    assert (store / "hub" / "some--pets" / "small" / "train-00001.parquet").is_file()
    with pytest.raises(ArnoError, match=r"subsets are large, small; name one with data\.subset"):
        load({"kind": "hub", "name": "some/pets"})
    with pytest.raises(ArnoError, match=r"data\.subset = huge"):
        load({"kind": "hub", "name": "some/pets", "subset": "huge"})


def test_hub_refusals(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a", pictures(4), [0, 1, 1, 0])
    with pytest.raises(ArnoError, match=r"data\.name=owner/name"):
        load({"kind": "hub"})
    serve(tmp_path, monkeypatch, [entry(tmp_path / "a", "default", "test")])
    with pytest.raises(ArnoError, match="no split 'train', only test"):
        load({"kind": "hub", "name": "some/pets"})
    for name in ("../../etc", "a/b/c", "", "/a"):
        with pytest.raises(ArnoError, match="owner/name"):
            load({"kind": "hub", "name": name})
    serve(tmp_path, monkeypatch, [entry(tmp_path / "a", "default", "train")], partial=True)
    with pytest.raises(ArnoError, match="only a part"):
        load({"kind": "hub", "name": "some/pets"})
    serve(tmp_path, monkeypatch, [{"error": "?"}])
    with pytest.raises(ArnoError, match="its format is unknown"):
        load({"kind": "hub", "name": "some/pets"})


def test_hub_from_a_folder_without_test_files_and_with_names_as_labels(tmp_path):
    x = np.repeat(pictures(20, 6, 6, 1), 3, axis=3)
    write_parquet(tmp_path / "train-0.parquet", x, ["dog", "cat"] * 10, "photo", "animal", struct=False)
    data = load({"kind": "hub", "root": str(tmp_path), "test": 0.3})
    assert data.shape == (1, 6, 6)  # all grey
    assert data.classes == ("cat", "dog")
    assert torch.bincount(data.y_test).tolist() == [3, 3]
    seen = {
        tuple(i.flatten().tolist()): c
        for i, c in zip(torch.cat([data.x, data.x_test]), [*data.y, *data.y_test], strict=True)
    }
    for i, image in enumerate(x):
        assert seen[tuple(image[:, :, 0].ravel().tolist())] == (i + 1) % 2


def test_parquet_columns_must_be_clear(tmp_path):
    table = pa.table({"one": [b"x"], "two": [b"x"], "label": [0]})
    parquet.write_table(table, tmp_path / "train-0.parquet")
    with pytest.raises(ArnoError, match=r"there are one, two, label; set data\.image_column"):
        load({"kind": "hub", "root": str(tmp_path)})
    with pytest.raises(ArnoError, match=r"column label: .*set data\.image_column"):
        load({"kind": "hub", "root": str(tmp_path), "image_column": "label"})
    with pytest.raises(ArnoError, match=r"row 0: it cannot be decoded as an image"):
        load({"kind": "hub", "root": str(tmp_path), "image_column": "two"})
    parquet.write_table(
        pa.table({"img": [png(pictures(1)[0])], "label": pa.array([None], pa.int64())}), tmp_path / "train-0.parquet"
    )
    with pytest.raises(ArnoError, match="a sample has no label"):
        load({"kind": "hub", "root": str(tmp_path)})


# --- Tiny ImageNet ---


def tiny_members() -> dict[str, bytes]:
    top = "tiny-imagenet-200"
    members = {f"{top}/words.txt": b"n02\tdog, hound\nn01\tcat\nn99\tnobody\n"}
    for wnid, shade in (("n01", 10), ("n02", 200)):
        for i in range(3):
            out = io.BytesIO()
            Image.new("L" if i == 0 else "RGB", (64, 64), shade if i == 0 else (shade, 0, 0)).save(out, "JPEG")
            members[f"{top}/train/{wnid}/images/{wnid}_{i}.JPEG"] = out.getvalue()
            members[f"{top}/val/images/val_{wnid}_{i}.JPEG"] = out.getvalue()
    lines = [f"val_{w}_{i}.JPEG\t{w}\t0\t0\t1\t1\n" for i in range(3) for w in ("n02", "n01")]
    members[f"{top}/val/val_annotations.txt"] = "".join(lines).encode()
    return members


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_tiny_imagenet_zip_and_folder(tmp_path):
    write_zip(tmp_path / "tiny-imagenet-200.zip", tiny_members())
    data = load({"kind": "tinyimagenet", "root": str(tmp_path)})
    assert data.classes == ("cat", "dog")
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [1, 0, 1, 0, 1, 0]
    assert data.shape == (3, 64, 64)
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        assert ((x[:, 0].float().mean((1, 2)) > 100).long() == y).all()
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    again = load({"kind": "tinyimagenet", "root": str(tmp_path / "unpacked")})
    assert again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"../evil.txt": b""}, "points outside"),
        ({"tiny-imagenet-200/val/val_annotations.txt": b"val_n01_0.JPEG\tn77\n"}, "n77"),
        ({"tiny-imagenet-200/val/val_annotations.txt": b"nowhere.JPEG\tn01\n"}, r"missing, such as .*nowhere"),
        (
            {"tiny-imagenet-200/train/n01/images/n01_1.JPEG": b"\xff\xd8\xff nonsense"},
            r"n01_1\.JPEG: it cannot be decoded",
        ),
    ],
)
def test_bad_tiny_imagenet(tmp_path, change, said):
    write_zip(tmp_path / "tiny-imagenet-200.zip", tiny_members() | change)
    with pytest.raises(ArnoError, match=said):
        load({"kind": "tinyimagenet", "root": str(tmp_path)})


def test_a_cut_zip(tmp_path):
    path = tmp_path / "tiny-imagenet-200.zip"
    write_zip(path, tiny_members())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArnoError, match="damaged or truncated"):
        load({"kind": "tinyimagenet", "root": str(tmp_path)})


# --- npz ---


def save(tmp_path: Path, **arrays: np.ndarray) -> dict:
    np.savez(tmp_path / "mine.npz", **arrays)
    return {"kind": "npz", "path": str(tmp_path / "mine.npz")}


def test_npz_features(tmp_path):
    x = RANDOM.normal([5, -3, 0], [2, 10, 0], (50, 3))
    data = load(save(tmp_path, x=x, y=np.arange(50) % 4) | {"test": 0.2})
    assert (len(data.y), len(data.y_test), data.n_classes) == (40, 10, 4)
    assert data.x.dtype == torch.float32
    z = data.transform().normalise(data.x, torch.float64)
    assert torch.allclose(z.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(z.std(0, correction=0), torch.tensor([1.0, 1, 0], dtype=torch.float64), atol=1e-6)
    assert load(save(tmp_path, x=x, y=np.arange(50) % 4)).fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((9, 9), (1, 9, 9)), ((3, 9, 9), (3, 9, 9)), ((9, 9, 3), (3, 9, 9)), ((1, 9, 9), (1, 9, 9))],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_npz_images_of_every_layout(tmp_path, shape, expected, dtype):
    x = pictures(8, *shape).astype(dtype)
    data = load(save(tmp_path, x=x, y=np.arange(8)[:, None] // 4, x_test=x, y_test=np.ones(8, np.uint8)))
    assert data.shape == expected
    assert data.x.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
    assert data.scale == (255 if dtype == np.uint8 else 1)
    assert data.x.double().sum() == x.sum(dtype=np.float64)
    assert data.y.tolist() == [0] * 4 + [1] * 4


def test_npz_floating_point_targets_are_numbers_and_integers_are_labels(tmp_path):
    x, y = RANDOM.normal(size=(50, 3)), np.arange(50) % 4
    data = load(save(tmp_path, x=x, y=y.astype(np.float64)))
    assert (data.classes, data.y.dtype, len(data.y_test)) == ((), torch.float32, 10)
    assert torch.equal(torch.cat([data.y, data.y_test]).sort().values, torch.from_numpy(np.sort(y)).float())
    assert data.fingerprint() == load(save(tmp_path, x=x, y=y[:, None].astype(np.float32))).fingerprint()
    assert load(save(tmp_path, x=x, y=y.astype(np.uint8))).y.dtype == torch.int64
    named = load(save(tmp_path, x=x, y=y.astype(np.float64), classes=np.array(list("abcd"))))
    assert (named.classes, named.y.dtype) == (("a", "b", "c", "d"), torch.int64)
    several = load(save(tmp_path, x=x, y=np.stack([y, -y], 1).astype(np.float32)))
    assert (several.y.shape, several.y_test.shape) == ((40, 2), (10, 2))


def test_npz_names_as_labels(tmp_path):
    config = save(tmp_path, x=np.eye(4), y=np.array(list("baab")), x_test=np.eye(4)[:1], y_test=np.array(["b"]))
    data = load(config)
    assert (data.y.tolist(), data.y_test.tolist(), data.classes) == ([1, 0, 0, 1], [1], ("a", "b"))
    config = save(tmp_path, x=np.eye(4), y=np.array(list("baab")), x_test=np.eye(4)[:1], y_test=np.array(["c"]))
    with pytest.raises(ArnoError, match="label -1"):
        load(config)


BAD = np.ones((10, 2))
BAD[6, 1] = np.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": BAD, "y": np.zeros(10), "x_test": BAD[:3], "y_test": np.zeros(3)}, "sample 6: it holds NaN"),
        ({"x": np.full((10, 2), np.inf), "y": np.zeros(10)}, "NaN or infinity"),
        ({"x": np.full((10, 2), 1e300), "y": np.zeros(10)}, "NaN or infinity"),
        (
            {"x": np.ones((10, 2)), "y": np.zeros(9), "x_test": np.ones((1, 2)), "y_test": [0.0]},
            "10 samples, 9 targets",
        ),
        ({"x": np.ones((10, 2)), "y": np.zeros(9)}, "10 samples, 9 targets"),
        ({"x": np.ones((10, 2)), "y": np.arange(10) - 1}, "label -1"),
        ({"x": np.ones((10, 2)), "y": np.full(10, np.nan)}, "target 0: it is NaN or infinity"),
        ({"x": np.ones((10, 2)), "y": np.full(10, 1e300)}, "target 0: it is NaN or infinity"),
        ({"x": np.ones((10, 2)), "y": 2 + np.eye(10, dtype=int)}, r"labels are int64 of shape \[n\]"),
        ({"x": np.ones((10, 2)), "y": np.ones((10, 1, 2))}, "an integer, a string or a floating-point number per"),
        ({"x": np.ones((10, 2)), "y": np.full(10, 0.5), "classes": ["a", "b"]}, "every label is a whole number"),
        ({"x": np.ones((10, 2)), "y": np.arange(10), "x_test": np.ones((1, 2)), "y_test": [0.5]}, "all targets are of"),
        ({"x": np.ones(10), "y": np.zeros(10)}, r"not float64 \[10\]"),
        ({"x": np.ones((0, 2)), "y": np.zeros(0)}, "no share of 0 samples"),
        ({"x": np.ones((10, 2))}, "it lacks y; it has x"),
        ({"x": np.ones((10, 2)), "y": np.zeros(10), "x_test": np.ones((1, 2))}, "it lacks y_test"),
        ({"x": np.array([{"evil": 1}] * 4), "y": np.zeros(4)}, "it holds Python objects"),
    ],
)
def test_bad_npz(tmp_path, arrays, said):
    with pytest.raises(ArnoError, match=said):
        load(save(tmp_path, **arrays))


def test_npz_that_is_no_npz(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"hello")
    np.save(tmp_path / "b.npy", np.ones(3))
    save(tmp_path, x=np.ones((100, 100)), y=np.zeros(100))
    (tmp_path / "c.npz").write_bytes((tmp_path / "mine.npz").read_bytes()[:5000])
    for name in ("a.npz", "b.npy", "c.npz", "none.npz"):
        with pytest.raises(ArnoError, match=r"cannot be read|not an \.npz file"):
            load({"kind": "npz", "path": str(tmp_path / name)})
    with pytest.raises(ArnoError, match=r"add data\.path"):
        load({"kind": "npz"})


# --- tables of scikit-learn ---


@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("diabetes", (354, 10), 88, ()),
        ("wine", (142, 13), 36, ("class_0", "class_1", "class_2")),
        ("breast_cancer", (455, 30), 114, ("malignant", "benign")),
    ],
)
def test_sklearn(name, train, test, classes):
    from sklearn import datasets

    data = load({"kind": "sklearn", "name": name})
    assert (data.name, tuple(data.x.shape), len(data.x_test), data.classes) == (name, train, test, classes)
    assert data.y.is_floating_point() == (name == "diabetes")
    theirs = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    expected = np.column_stack([theirs.data, theirs.target]).astype(np.float32)
    ours = np.concatenate([torch.cat([a, b[:, None]], 1) for a, b in ((data.x, data.y), (data.x_test, data.y_test))])
    assert sorted(ours.tolist()) == sorted(expected.tolist())
    z = data.transform().normalise(data.x, torch.float64)  # the training samples alone have mean 0 and deviation 1
    assert torch.allclose(z.mean(0), torch.zeros(train[1], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(z.std(0, correction=0), torch.ones(train[1], dtype=torch.float64), atol=1e-6)
    whole = data.transform().normalise(torch.cat([data.x, data.x_test]), torch.float64)
    assert float(whole.mean(0).abs().max()) > 1e-3
    again = load({"kind": "sklearn", "name": name}, seed=5)
    assert again.fingerprint() == data.fingerprint(), "the test data do not depend on the seed"
    if name == "diabetes":
        edges = torch.cat([data.y, data.y_test]).quantile(torch.linspace(0.1, 0.9, 9))
        found = torch.bincount(torch.bucketize(data.y_test, edges))
        assert int((found - 8.8).abs().max()) <= 3, "stratified by decile"


def test_sklearn_tables_are_named():
    with pytest.raises(ArnoError, match="known are diabetes, wine, breast_cancer"):
        load({"kind": "sklearn"})
    with pytest.raises(ArnoError, match=r"unknown data\.name 'vine'.*did you mean 'wine'"):
        load({"kind": "sklearn", "name": "vine"})


# --- folders of images ---


def write_folder(root: Path, n: int = 5, **sizes: int) -> None:
    for i, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        for j in range(n):
            Image.fromarray(np.full((8, 8, 3), (40 * j, 100 * i, 9), np.uint8)).save(root / name / f"{j}.png")


def test_folder_with_and_without_test_data(tmp_path):
    write_folder(tmp_path / "one" / "train")
    write_folder(tmp_path / "one" / "test", 2)
    data = load({"kind": "folder", "root": str(tmp_path / "one")})
    assert (data.name, data.classes, data.shape) == ("one", ("ant", "bee"), (3, 8, 8))
    assert data.y.tolist() == [0] * 5 + [1] * 5
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert data.x[:, :, 0, 0].tolist() == [[40 * j, 100 * i, 9] for i in range(2) for j in range(5)]
    write_folder(tmp_path / "two")
    (tmp_path / "two" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "two" / "empty").mkdir()
    data = load({"kind": "folder", "root": str(tmp_path / "two"), "test": 0.4, "size": 4})
    assert (torch.bincount(data.y).tolist(), torch.bincount(data.y_test).tolist()) == ([3, 3], [2, 2])
    assert data.shape == (3, 4, 4)


def test_bad_folders(tmp_path):
    with pytest.raises(ArnoError, match="no such folder"):
        load({"kind": "folder", "root": str(tmp_path / "none")})
    (tmp_path / "bare" / "sub").mkdir(parents=True)
    with pytest.raises(ArnoError, match="no folder in it has images"):
        load({"kind": "folder", "root": str(tmp_path / "bare")})
    write_folder(tmp_path / "ok" / "train")
    write_folder(tmp_path / "ok" / "test" / "wasp")
    (tmp_path / "ok" / "test" / "wasp" / "x.png").write_bytes(png(pictures(1, 8, 8, 3)[0]))
    with pytest.raises(ArnoError, match="wasp: the training data have no such class"):
        load({"kind": "folder", "root": str(tmp_path / "ok")})
    write_folder(tmp_path / "mixed")
    (tmp_path / "mixed" / "bee" / "4.png").write_bytes(png(pictures(1, 7, 9, 3)[0]))
    with pytest.raises(ArnoError, match=r"4\.png: 7x9 pixels: the first image has 8x8; set data\.size"):
        load({"kind": "folder", "root": str(tmp_path / "mixed")})
    path = tmp_path / "mixed" / "bee" / "4.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ArnoError, match=r"4\.png: it cannot be decoded"):
        load({"kind": "folder", "root": str(tmp_path / "mixed"), "size": 8})
    with pytest.raises(ArnoError, match=r"add data\.root"):
        load({"kind": "folder"})


# --- decoding and its cache ---


def test_large_images_are_decoded_by_threads_in_order():
    x = pictures(600, 40, 40, 3)
    blobs = [(str(i), png(image)) for i, image in enumerate(x)]
    assert len(blobs[0][1]) > 4096
    assert (decode(iter(blobs), 600) == x.transpose(0, 3, 1, 2)).all()


def test_the_cache_follows_its_files_and_survives_damage(tmp_path, store):
    file, made = tmp_path / "file", []

    def build():
        made.append(len(made))
        return {"x": np.array([made[-1]])}

    def get() -> int:
        return int(cached("name", [file], None, build)["x"][0])

    file.write_bytes(b"1")
    assert [get(), get()] == [0, 0]
    os.utime(file, ns=(1, 1))
    assert get() == 1
    file.write_bytes(b"22")
    os.utime(file, ns=(1, 1))
    assert [get(), get()] == [2, 2]
    for kept in (store / "decoded").iterdir():
        kept.write_bytes(kept.read_bytes()[:-30])
    assert [get(), get()] == [3, 3]
    assert all(p.suffix == ".npz" for p in (store / "decoded").iterdir())


def test_a_store_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"1")
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "file" / "below"))
    assert cached("name", [tmp_path / "file"], None, lambda: {"x": np.ones(1)})["x"].tolist() == [1]


# --- the real files ---


def test_real_fashion_mnist(shared):
    data = load({"kind": "fashion_mnist", "root": str(shared / "fashion-mnist")})
    assert torch.bincount(data.y).tolist() == [6000] * 10
    assert torch.bincount(data.y_test).tolist() == [1000] * 10
    z = data.transform().normalise(data.x[::10])
    assert abs(float(z.mean())) < 0.01
    assert abs(float(z.std()) - 1) < 0.01


def test_real_cifar10(shared):
    arrays = read_parquet("cifar10", sorted((shared / "cifar10").glob("test-*.parquet")), [])
    assert arrays["x"].shape == (10_000, 3, 32, 32)
    assert np.bincount(arrays["y"]).tolist() == [1000] * 10
    assert np.abs(arrays["x"].mean((0, 2, 3)) / 255 - (0.4914, 0.4822, 0.4465)).max() < 0.01


def test_a_table_given_as_npz_names_the_source_for_tables(tmp_path):
    (tmp_path / "heart.csv").write_text("age,target\n1,0\n2,1\n")
    with pytest.raises(
        ArnoError, match=r"it is not an \.npz file; use data=table data\.path=.*heart\.csv data\.label="
    ):
        load({"kind": "npz", "path": str(tmp_path / "heart.csv")})
