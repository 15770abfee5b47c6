"""LEAF's JSON files, made here by their public description, and what is refused."""

import json

import numpy as np
import pytest
import torch

from arno.config import build
from arno.config.settings import compose, plain
from arno.data import jsonstream
from arno.data.dataset import load
from arno.data.jsonstream import members
from arno.errors import ArnoError

TEXT = "To be, or not to be: that is the question. " * 4


def write(path, users):
    """A file with the samples of users: name → (x, y)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(y) for _, y in users.values()]
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data}))


def images(seed, n):
    random = np.random.default_rng(seed)
    return random.random((n, 784)).round(4).tolist(), random.integers(0, 62, n).tolist()


def windows(text, n):
    return [text[i : i + 20] for i in range(n)], [text[i + 20] for i in range(n)]


def tweets(name, n):
    x = [[str(i), "Mon May 11", "NO_QUERY", name, f"I am {'so glad' if i % 2 else 'sad'} today!"] for i in range(n)]
    return x, [4 * (i % 2) for i in range(n)]


def read(path, **settings):
    return load({"kind": "leaf", "path": str(path), **settings})


def test_femnist(tmp_path):
    first, second = images(0, 30), images(1, 12)
    write(tmp_path / "train" / "all_data_0.json", {"f0000_14": first})
    write(tmp_path / "train" / "all_data_1.json", {"f0001_41": second})
    write(tmp_path / "test" / "all_data_0.json", {"f0000_14": images(2, 5), "f0001_41": images(3, 4)})
    data = read(tmp_path)
    assert data.shape == (1, 28, 28)
    assert data.clients == ("f0000_14", "f0001_41")
    assert data.client.tolist() == [0] * 30 + [1] * 12
    assert torch.equal(data.x.flatten(1), torch.tensor([*first[0], *second[0]]))
    assert [data.classes[i] for i in data.y] == list(map(str, first[1] + second[1]))
    assert len(data.y_test) == 9
    assert data.gap is None
    config = plain(compose(["data=leaf", f"data.path={tmp_path}", "model=lenet5"]))
    problem = build.supervised(config)
    assert (config["partition"]["kind"], problem.task.name) == ("natural", "classification")
    assert problem.client_names == data.clients


def test_shakespeare(tmp_path):
    users = {"HAMLET": windows(TEXT, 60), "OTHELLO": windows(TEXT[7:], 70)}
    write(tmp_path / "data" / "train" / "a.json", users)
    write(tmp_path / "data" / "test" / "a.json", {"HAMLET": windows(TEXT[80:], 20)})
    data = read(tmp_path)
    assert data.x.shape == (130, 20)
    assert "".join(data.tokens[i] for i in data.x[60]) == TEXT[7:27]
    assert data.tokens[data.y[60]] == TEXT[27]
    assert data.gap == 20
    assert data.references["bigram model"]["test_perplexity"] > 1
    config = plain(compose(["data=leaf", f"data.path={tmp_path}", "model=lstm", "model.hidden=6"]))
    problem = build.supervised(config)
    assert (problem.task.name, problem.task.positions, problem.task.classes) == ("tokens", False, len(data.tokens))
    outputs = problem.model(problem.init(0))(problem.x[:3])
    assert outputs.shape == (3, len(data.tokens))


def test_shakespeare_without_test_files_is_divided_in_time(tmp_path):
    write(tmp_path / "all.json", {"HAMLET": windows(TEXT, 100), "TINY": windows(TEXT, 3)})
    data = read(tmp_path / "all.json", test=0.2)
    assert data.clients == ("HAMLET", "TINY")
    starts = [TEXT.index("".join(data.tokens[i] for i in row)) for row in data.x_test]
    assert len(data.x_test) == len(starts) == 21
    assert data.rows.tolist() == [*range(59), 100, 101, 102]  # 20 samples overlap the test samples


def test_sent140(tmp_path):
    write(tmp_path / "train" / "a.json", {"ann": tweets("ann", 8), "bob": tweets("bob", 6), "eve": tweets("eve", 1)})
    data = read(tmp_path, sequence=6)
    assert data.clients == ("ann", "bob")
    assert data.classes == ("0", "4")
    text = [[data.tokens[i] for i in row] for row in data.x]
    assert ["i", "am", "sad", "today", "!", "<pad>"] in text
    assert all((("glad" in row) == (label == 1)) for row, label in zip(text, data.y, strict=True))
    problem = build.supervised(plain(compose(["data=leaf", f"data.path={tmp_path}", "model=transformer"])))
    assert (problem.task.name, problem.task.outputs) == ("classification", 2)


def test_large_files_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonstream, "CHUNK", 7)
    text = json.dumps(
        {"users": ["a, {b", "é"], "user_data": {"a, {b": {"x": [1.5, 2]}, "é": {"x": ["]"]}}, "n": 12345678901}
    )
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    found = list(members(tmp_path / "a.json", "user_data"))
    assert found == [("users", ["a, {b", "é"]), ("a, {b", {"x": [1.5, 2]}), ("é", {"x": ["]"]}), ("n", 12345678901)]
    (tmp_path / "b.json").write_text("{}")
    assert list(members(tmp_path / "b.json", "user_data")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "{ is missing at its end"),
        ("[1]", "{ is missing"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1', "cannot be read as JSON"),
        ('{"user_data": {"a": {"x": [[1], [2]], "y": [1]}}}', "lists of the same length"),
        ('{"user_data": {"a": {"x": [[1], [2, 3]], "y": [1, 2]}}}', "no lists of numbers of one length"),
        ('{"user_data": {"a": {"x": [[1], [2]], "y": [1, null]}}}', "a label is a whole number or text"),
        (
            '{"users": ["a"], "num_samples": [3], "user_data": {"a": {"x": [[1], [2]], "y": [1, 2]}}}',
            "num_samples says 3",
        ),
        ('{"user_data": {"a": {"x": [[1], [2]], "y": [1, 2]}, "b": {"x": ["t", "u"], "y": [1, 2]}}}', "user 'b'"),
        ('{"user_data": {"a": {"x": [[1]], "y": [1]}}}', "no user has 2 samples"),
        ('{"users": []}', "it has no user_data"),
        ("[" * 100_000, "{ is missing"),
        ('{"users": ' + "[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ArnoError) as error:
        read(tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
