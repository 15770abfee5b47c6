"""What a Python program hands over by mistake: it is used rightly, or refused with one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import arno
from arno.errors import ArnoError

N = 30
RANDOM = np.random.default_rng(0)
X, IMAGES = RANDOM.normal(size=(N, 3)), RANDOM.normal(size=(N, 1, 4, 4))
Y, WHO = np.arange(N) % 2, ["bern", "rome"] * (N // 2)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(sick=Y, site=WHO)


class Samples(Dataset):
    def __init__(self, sample) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int):
        return self.sample(i)


def backwards(values: object) -> pd.Series:
    return pd.Series(values, index=np.arange(N)[::-1])


def table(**settings: object) -> arno.Data:
    return arno.Data(FRAME, label="sick", client="site", **settings)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: table(missing="median"), "missing = 'median': it must be mean, drop or error"),
        (lambda: table(test="0.2"), "test = '0.2': it is a share of the rows, a number"),
        (lambda: arno.Data(X, 3), "y = 3: it is a single value; give one value per row"),
        (lambda: arno.Data(X, Y, client=3), "client = 3: it is a single value"),
        (lambda: arno.Data(IMAGES, 3), "y = 3: it is a single value"),
        (lambda: arno.Data(X[:0], Y[:0]), "arno.Data: no rows are left"),
        (lambda: arno.Data(X, np.full(N, 2.5)), "all rows have the same value"),
        (lambda: arno.Data(IMAGES, Y, client=np.arange(N)), "each of the 30 samples has another client, and none"),
        (lambda: arno.Data(IMAGES, Y, client=np.arange(N) // 2 / 3), "its values are numbers with fractions"),
        (lambda: arno.Data(X, backwards(Y), client=pd.Series(WHO)), "client: its index has the rows of y in another"),
        (lambda: arno.Data(X, Y, x_test=X[:, :2], y_test=Y), "x_test: it lacks the column x2 of x; give both the sa"),
        (lambda: arno.Data(X, Y, x_test=X, y_test=Y, client_of_test=WHO), "client_of_test: there is no client; give"),
        (lambda: arno.Data(X, Y, client=WHO, client_of_test=WHO), "client_of_test: there is no x_test; give"),
        (
            lambda: arno.Data(IMAGES.astype("uint8"), Y, x_test=IMAGES, y_test=Y),
            "x_test is float64: x is uint8, and 255 in an image of uint8 is 1 in another one",
        ),
        (
            lambda: arno.Data({"bern": FRAME, "rome": FRAME.drop(columns="a")}, label="sick"),
            "the frames of bern and rome have different columns: a; give all frames the same",
        ),
        (lambda: arno.Data({"bern": (X, Y[1:]), "rome": (X, Y)}), "bern: 30 samples, 29 targets; give every sample a"),
        (lambda: arno.Data([(X, Y), (X, Y)]), r"sample 0 has 30 rows and 30 targets, .*; name the clients: arno.Data"),
        (lambda: arno.Data(Samples(lambda i: (X[i], 0) if i < 9 else {"x": 1})), "sample 9 is .* dict: sample 0 is"),
    ],
)
def test_mistakes_are_one_line(make, said):
    with pytest.raises(ArnoError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_name_in_place_of_a_list_of_names():
    data = table(skip="a", categories="b", features=None).dataset
    assert data.features[-1] == "c"
    assert "a" not in data.features
    assert table(features="a").dataset.features == ("a",)


def test_pairs_for_each_client():
    data = arno.Data({"bern": (X[:10], Y[:10]), "rome": (X[10:], Y[10:])}).dataset
    assert data.clients == ("bern", "rome")
    assert np.bincount([*data.client, *data.client_test]).tolist() == [10, 20]


def test_clients_beside_samples_that_are_dictionaries():
    data = arno.Data([{"a": float(i), "label": i % 2} for i in range(N)], client=WHO).dataset
    assert data.clients == ("bern", "rome")
    assert data.features == ("a",)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_than_8_bits_keep_their_numbers(mode):
    dtype = {"I;16": "uint16", "I": "int32", "F": "float32"}[mode]
    pictures = RANDOM.integers(0, 40_000, (N, 4, 4)).astype(dtype)
    data = arno.Data(Samples(lambda i: (Image.fromarray(pictures[i]), int(Y[i]))), client=WHO).dataset
    assert data.x.dtype == torch.float32
    assert data.x.shape[1:] == (1, 4, 4)
    assert set(data.x.flatten().tolist()) <= set(pictures.flatten().tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool])
def test_tensors_of_every_type(dtype):
    data = arno.Data(torch.from_numpy(X).to(dtype), torch.from_numpy(Y).bool(), client=np.array(WHO, dtype="S")).dataset
    assert data.clients == ("bern", "rome")
    assert data.classes == ("false", "true")
    assert data.x.dtype == torch.float32


def test_settings_of_arrays_are_used():
    assert arno.Data(IMAGES, np.arange(N) % 3, numbers=True).dataset.classes == ()
