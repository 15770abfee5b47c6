"""Data sets, the validation split, balance and transformations."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from arno.data import Dataset, Transform, datasets, load, split_validation
from arno.errors import ArnoError
from arno.tasks.classification import balanced


def made(**changes) -> Dataset:
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    x = torch.arange(100.0).view(100, 1).repeat(1, 3)
    return replace(Dataset("made", x, y, x[:5], y[:5], ("a", "b", "c"), scale=1.0), **changes)


def test_importing_data_is_light():
    heavy = ("sklearn", "pandas", "pyarrow", "PIL", "matplotlib", "rich")
    code = f"import sys, arno.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_source_offers_limit_and_a_default_for_each_setting():
    assert set(datasets.names()) >= {
        "digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tinyimagenet", "hub", "npz", "folder", "sklearn",
    }  # fmt: skip
    for name in datasets.names():
        settings = datasets.settings(name)
        assert settings["limit"].annotation == int | None
        assert all(p.default is not p.empty for p in settings.values()), name


def test_digits_are_the_ones_of_scikit_learn():
    from sklearn.datasets import load_digits

    data, theirs = load({"kind": "digits"}), load_digits()
    assert (tuple(data.x.shape), tuple(data.x_test.shape)) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    ours = torch.cat([torch.cat([data.x, data.x_test]).flatten(1), torch.cat([data.y, data.y_test])[:, None]], dim=1)
    expected = torch.cat([torch.from_numpy(theirs.data).long(), torch.from_numpy(theirs.target)[:, None]], dim=1)
    assert sorted(ours.tolist()) == sorted(expected.tolist())
    shares = torch.bincount(data.y_test) / torch.bincount(torch.from_numpy(theirs.target))
    assert float((shares - 0.2).abs().max()) < 0.01
    z = data.transform().normalise(data.x, torch.float64)
    assert abs(float(z.mean())) < 1e-3
    assert abs(float(z.std()) - 1) < 1e-3


def test_limit_is_stratified_and_drawn_by_the_seed():
    small = load({"kind": "digits", "limit": 200}, seed=4)
    whole = load({"kind": "digits"})
    assert len(small.x) == len(small.y) == 200
    gap = torch.bincount(small.y) - 200 * torch.bincount(whole.y) / len(whole.y)
    assert float(gap.abs().max()) < 1
    assert small.fingerprint() == load({"kind": "digits", "limit": 200}, seed=4).fingerprint()
    assert small.fingerprint() != load({"kind": "digits", "limit": 200}, seed=5).fingerprint()
    assert torch.equal(small.y_test, whole.y_test)
    assert load({"kind": "digits", "limit": 10**6}).fingerprint() == whole.fingerprint()
    assert len(datasets.get("digits")(limit=50).y) == 50
    with pytest.raises(ArnoError, match=r"data\.limit = 0"):
        load({"kind": "digits", "limit": 0})


def test_the_fingerprint_sees_every_part():
    base = made()
    changed = [
        made(x=base.x + 1),
        made(y=base.y.flip(0)),
        made(x_test=base.x_test + 1),
        made(y_test=base.y_test + 1),
        made(x=base.x.view(50, 6)),
    ]
    prints = {d.fingerprint() for d in [base, *changed]}
    assert len(prints) == 6
    assert made().fingerprint() == base.fingerprint()
    assert len(base.fingerprint()) == 32


NAN, INF = made().x.clone(), made().x.clone()
NAN[17, 1], INF[99, 0] = float("nan"), float("-inf")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": NAN}, "training data of made: sample 17: it holds NaN"),
        ({"x": INF}, "sample 99"),
        ({"x_test": NAN[15:20]}, "test data of made: sample 2"),
        ({"y": made().y - 1}, "label -1: labels must be 0 to 2"),
        ({"y": made().y + 1}, "label 3"),
        ({"y": made().y[1:]}, "100 samples, 99 targets"),
        ({"x_test": made().x[:0], "y_test": made().y[:0]}, "no samples"),
        ({"x_test": torch.zeros(5, 4)}, "shape"),
        ({"x": made().x[:, 0]}, r"shape \(\): a sample has at least one axis"),
        ({"x": made().x.numpy()}, "ndarray and Tensor: samples and targets are torch tensors"),
        ({"y": made().y.int(), "y_test": made().y_test.int()}, "targets of type int32.*labels are int64"),
        ({"y": made().y[:, None], "y_test": made().y_test[:, None]}, r"shape \[100, 1\]: labels are int64 of shape"),
        ({"y_test": made().y_test.float()}, "test targets have the same type"),
        ({"y": made().y.float(), "y_test": made().y_test.float()}, r"labels of classes are int64.*classes=\(\)"),
        ({"classes": ()}, "labels need class names"),
        ({"mean": (0.0, 0.0)}, "mean of 2 and std of 1 values: they hold 1 value or 3"),
        ({"std": (1.0, 0.0, 1.0)}, "std is positive"),
    ],
)
def test_bad_data_is_refused(changes, said):
    assert made().check() is not None
    with pytest.raises(ArnoError, match=said):
        made(**changes).check()


@pytest.mark.parametrize(("val", "count"), [(0.1, 10), (0.5, 50), (20, 20), (0, 0), (1, 1), (0.001, 1), (99, 99)])
def test_validation_split(val, count):
    y = made().y
    train, held = split_validation(y, val, seed=3)
    assert len(held) == count
    assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(100))
    share = torch.bincount(y[held], minlength=3) - count * torch.tensor([0.6, 0.3, 0.1])
    assert float(share.abs().max()) < 1
    assert torch.equal(held, split_validation(y.numpy(), val, seed=3)[1])
    if 0 < count < 99:
        assert not torch.equal(held, split_validation(y, val, seed=4)[1])


@pytest.mark.parametrize("val", [-0.1, 1.5, 100, 1000, float("nan")])
def test_impossible_validation_split(val):
    with pytest.raises(ArnoError, match="val = "):
        split_validation(made().y, val, seed=0)


def test_balanced_brings_classes_to_the_median():
    y = torch.tensor([0] * 50 + [1] * 9 + [3] * 4 + [4] * 20)[
        torch.randperm(83, generator=torch.Generator().manual_seed(0))
    ]
    chosen = balanced(y, 6, seed=0)  # counts 50, 9, 4, 20 → median 14.5 → 14
    assert torch.bincount(y[chosen], minlength=6).tolist() == [14, 14, 0, 14, 14, 0]
    for c, n in ((0, 50), (1, 9), (3, 4), (4, 20)):
        own = chosen[y[chosen] == c]
        assert len(own.unique()) == min(n, 14)  # large: no repeats; small: every sample is there
    assert torch.equal(chosen, balanced(y, 6, seed=0))
    assert not torch.equal(chosen, balanced(y, 6, seed=1))
    assert balanced(y[:0], 6, seed=0).tolist() == []


def test_normalise_against_the_formula():
    x = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    t = Transform((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    for c in range(3):
        expected = (x[:, c].double() / 255 - t.mean[c]) / t.std[c]
        assert torch.allclose(t.normalise(x, torch.float64)[:, c], expected)
    assert t.normalise(x).dtype == torch.float32
    with torch.inference_mode():
        Transform((0.7,), (3.0,), 7.0).normalise(x)
    z = Transform((0.7,), (3.0,), 7.0).normalise(x.float().requires_grad_())
    z.sum().backward()  # constants first made in inference mode must not break gradients


def test_features_are_normalised_one_by_one_and_left_alone_themselves():
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    kept = x.clone()
    assert Transform((2.0, 20.0), (1.0, 10.0), 1.0).normalise(x).tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert torch.equal(x, kept)


def test_augment_against_a_plain_loop():
    x = torch.randint(1, 256, (64, 3, 6, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    t = Transform(pad=2)
    drawn = t.draw(64, torch.Generator().manual_seed(1))
    out = t.augment(x, torch.Generator().manual_seed(1))
    assert out.dtype == torch.uint8
    for i, (down, right, mirror) in enumerate(drawn.tolist()):
        padded = torch.zeros(3, 10, 13, dtype=torch.uint8)
        padded[:, 2:8, 2:11] = x[i]
        crop = padded[:, down : down + 6, right : right + 9]
        assert torch.equal(out[i], crop.flip(2) if mirror else crop)
    assert {tuple(sorted(set(column))) for column in drawn.T.tolist()} == {(0, 1, 2, 3, 4), (0, 1)}


def test_augment_can_leave_images_as_they_are_and_refuses_features():
    x = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8)
    assert torch.equal(Transform(pad=0, flip=False).augment(x, torch.Generator()), x)
    with pytest.raises(ArnoError, match="only images"):
        Transform().augment(torch.zeros(4, 7), torch.Generator())


def numbers(n: int = 200, outputs: int = 1) -> Dataset:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 3, generator=random), torch.randn(n, outputs, generator=random)
    return Dataset("numbers", x, y.squeeze(1), x[:20], y[:20].squeeze(1), (), scale=1.0).check()


def test_strata_of_numbers_are_deciles():
    data = numbers()
    strata, order = data.strata(), data.y.argsort()
    assert torch.equal(strata[order], torch.arange(10).repeat_interleave(20))
    assert torch.equal(numbers(outputs=2).strata(), replace(data, y=numbers(outputs=2).y[:, 0]).strata())
    assert torch.equal(made().strata(), made().y)
    names = data.stratum_names()
    assert len(names) == 10
    assert names[0] == f"{data.y.min():.4g} to {data.y[strata == 0].max():.4g}"
    assert names[9].endswith(f"to {data.y.max():.4g}")
    assert made().stratum_names() == ("a", "b", "c")


def test_equal_numbers_share_a_decile():
    data = replace(numbers(), y=torch.tensor([0.0] * 50 + [float(i) for i in range(1, 151)]))
    strata = data.strata()
    assert strata[:50].unique().tolist() == [0]
    assert strata[50:].unique().tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert data.stratum_names()[:3] == ("0 to 0", "no target", "1 to 10")
    few = replace(numbers(), y=torch.tensor([2.0, 1.0, 3.0]))
    assert few.strata().tolist() == [1, 0, 2]


def test_numbers_are_limited_and_split_by_decile():
    data = numbers()
    small = data.take(50, seed=1)
    deciles = torch.bucketize(small.y, data.y.sort().values[19:-1:20].contiguous())
    assert torch.bincount(deciles).tolist() == [5] * 10
    _, held = split_validation(data.strata(), 0.2, seed=0)
    assert torch.bincount(data.strata()[held]).tolist() == [4] * 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": numbers().y.index_fill(0, torch.tensor([7]), float("nan"))}, "training data of numbers: target 7"),
        ({"y_test": numbers().y_test / 0}, "test data of numbers: target 0: it is NaN or infinity"),
        ({"y": numbers().y.view(50, 2, 2), "x": numbers().x[:50], "y_test": numbers().y_test.view(5, 2, 2),
          "x_test": numbers().x_test[:5]}, r"shape \[50, 2, 2\]: numbers have shape"),
        ({"y": numbers().y[:, None]}, "training and test targets have the same type and shape"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(changes, said):
    with pytest.raises(ArnoError, match=said):
        replace(numbers(), **changes).check()


def test_a_source_returns_a_data_set(tmp_path):
    (tmp_path / "mine.py").write_text("def factory():\n    return {'x': [1], 'y': [2]}\n")
    with pytest.raises(
        ArnoError, match=r"data=custom returned an object of type dict: a data source returns an arno\.data\.Dataset"
    ):
        load({"kind": "custom", "target": f"{tmp_path / 'mine.py'}:factory"})
