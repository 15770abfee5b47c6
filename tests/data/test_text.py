"""Plain text: speakers, files, sequences, the division in time, the bigram model, and what is refused."""

import re
from math import exp, log

import numpy as np
import pytest
import torch

from arno.config import build
from arno.config.settings import compose, plain
from arno.data.dataset import load, split_in_time
from arno.data.text import Vocabulary, bigram_perplexity, sequences, words
from arno.errors import ArnoError

ANNA = "To be, or not to be: that is the question.\n"
BEN = "Speak, speak.\nWhat say you:\nI say nothing at all!\n"


@pytest.fixture
def play(tmp_path):
    """Two speakers with many speeches, and one with few words."""
    path = tmp_path / "play.txt"
    path.write_text("".join(f"ANNA:\n{ANNA}\nBen, a friend:\n{BEN}\n" for _ in range(40)) + "All:\nSpeak.\n")
    return path


def read(path, **settings):
    return load({"kind": "text", "path": str(path), "sequence": 10, "min_chars": 100, **settings})


def decoded(data, rows):
    return "".join(data.tokens[i] for i in rows.flatten().tolist() if i)


def test_speakers_are_clients_and_keep_their_names(play):
    data = read(play)
    assert data.clients == ("ANNA", "Ben, a friend")
    assert data.x.dtype == data.y.dtype == torch.int64
    assert data.tokens == data.classes == ("<pad>", "<unk>", *sorted({*ANNA, *BEN}))
    first = data.x[data.client == 0]
    assert decoded(data, first[:1]) == ANNA[:10]
    said = decoded(data, data.x[data.client == 1][:4])
    assert said.startswith("Speak, spe")
    assert "left out: 1 with fewer than 100 characters" in data.notes[0]
    config = plain(compose(["data=text", f"data.path={play}", "model=lstm"]))
    assert (config["partition"]["kind"], config["clients"]) == ("natural", None)


def test_no_character_is_in_two_parts(play):
    whole = ANNA * 40
    data = read(play, test=0.25)
    rows = data.client == 0
    train, test = (
        decoded(data, with_last(data.x[rows], data.y[rows])),
        decoded(data, with_last(data.x_test, data.y_test)),
    )
    cut = round(0.75 * len(whole))
    assert train == whole[:cut]
    assert test.startswith(whole[cut:-1])  # a last character without a target is left out
    kept, held = split_in_time(data.client, 0.2, data.gap)
    assert data.gap == 0
    for client in (0, 1):
        mine, theirs = (set(part[data.client[part] == client].tolist()) for part in (kept, held))
        assert max(mine) < min(theirs)


def with_last(x, y):
    """Sequences with the target of their last position."""
    ends = (y > 0).sum(1)
    out = torch.cat([x, torch.zeros(len(x), 1, dtype=torch.int64)], 1)
    out[torch.arange(len(x)), ends] = y[torch.arange(len(x)), ends - 1]
    return out


def test_overlapping_sequences_are_not_divided_between_training_and_validation(play):
    data = read(play, stride=4)
    assert data.gap == 2  # a sequence and its target cover 11 characters
    kept, held = split_in_time(data.client, 0.2, data.gap)
    for client in (0, 1):
        mine, theirs = (part[data.client[part] == client] for part in (kept, held))
        at = {int(row): i for i, row in enumerate((data.client == client).nonzero()[:, 0])}
        last, first = at[int(mine.max())], at[int(theirs.min())]
        assert last * 4 + 11 <= first * 4


def test_clients_keep_the_end_of_their_text(play):
    given = ["data=text", "model=lstm", f"data.path={play}", "data.sequence=10", "data.stride=4", "data.min_chars=100"]
    problem = build.supervised(plain(compose([*given, "data.client_test=0.2", "data.val=0"])))
    for client in range(2):
        train, kept = problem.partition[client], problem.own_test[client]
        assert int(train.max()) + 3 == int(kept.min())  # two sequences that overlap both parts are left out
        assert len(kept) == round(0.2 * (len(train) + 2 + len(kept)))
    data = read(play)
    assert data.client_test.bincount().tolist() == [
        len(part) for part in (data.x_test[data.client_test == 0], data.x_test[data.client_test == 1])
    ]


def test_files_are_clients(tmp_path):
    for name, text in (("rome", "abc" * 50), ("bern", "abd" * 60), ("tiny", "x")):
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "notes.md").write_text("no")
    data = read(tmp_path, unit="char")
    assert data.clients == ("bern", "rome")
    assert "e" not in data.tokens
    assert read(tmp_path / "rome.txt").clients == ()
    config = plain(compose(["data=text", f"data.path={tmp_path}"]))
    assert config["partition"]["kind"] == "natural"


def test_words_and_the_vocabulary_of_the_training_text(tmp_path):
    (tmp_path / "a.txt").write_text("one two one three " * 40 + "four " * 10)
    data = read(tmp_path / "a.txt", unit="word", vocabulary=2, sequence=4)
    assert data.tokens == ("<pad>", "<unk>", "one", "three")
    assert data.x[0].tolist() == [2, 1, 2, 3]
    assert data.y[0].tolist() == [1, 2, 3, 2]
    assert words("It's, so!\nTwo") == ["it", "'", "s", ",", "so", "!", "\n", "two"]
    assert Vocabulary.of("char", ["ab"]).codes("aé😀b").tolist() == [2, 1, 1, 3]


def test_the_bigram_model_by_hand():
    pairs = np.array([2, 3, 2]), np.array([3, 2, 2])
    alone = {2: 3 / 7, 3: 2 / 7}
    chances = [(1 + alone[3]) / 3, (1 + alone[2]) / 2, (1 + alone[2]) / 3]
    expected = exp(-sum(map(log, chances)) / 3)
    padded = tuple(np.append(side, 0) for side in pairs)
    assert bigram_perplexity(pairs, padded, 4) == pytest.approx(expected, abs=1e-12)
    unseen = (np.array([3]), np.array([3]))
    assert bigram_perplexity(pairs, unseen, 4) == pytest.approx(2 / alone[3], abs=1e-12)
    assert sequences(np.array([5]), 3, 4)[0].shape == (0, 3)


def test_the_bigram_model_is_shown_beside_the_score(play, tmp_path):
    import arno

    result = arno.run(
        data={"kind": "text", "path": str(play), "sequence": 10, "min_chars": 100},
        model={"kind": "lstm", "hidden": 8, "embedding": 4},
        rounds=1,
        engine="serial",
        out=str(tmp_path / "run"),
    )
    manifest = result.folder.manifest()
    known = manifest["references"]["bigram model"]["test_perplexity"]
    assert any(f"test perplexity {known:.3f}" in note for note in manifest["data_notes"])
    assert manifest["clients"] == ["ANNA", "Ben, a friend"]
    assert result.metrics[0].name == "test_perplexity"
    assert 1 < result.rows[-1]["test_perplexity"] < len(result.problem.task.metrics) * 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.path=absent.txt"], "cannot be read"),
        (["data.client=speaker"], "it has no speakers"),
        (["data.min_chars=100000"], "the longest text has 400 characters"),
        (["data.sequence=0"], "it must be at least 1"),
        (["data.test=1"], "above 0 and below 1"),
        (["model=mlp"], "use model=lstm or model=transformer"),
        (["task=regression"], "the targets are labels"),
        (["data.shift=noise"], "no measurements"),
        (["local.augment=true"], "no images"),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, said):
    (tmp_path / "plain.txt").write_text("no speakers, " * 30 + "the end...")
    given = ["data=text", "model=lstm", f"data.path={tmp_path / 'plain.txt'}", "data.min_chars=10", "clients=3", *words]
    with pytest.raises(ArnoError) as error:
        build.supervised(plain(compose(given)))
    assert re.search(said, str(error.value))
    assert "\n" not in str(error.value)


def test_text_without_clients_is_divided_by_the_partition(tmp_path):
    (tmp_path / "plain.txt").write_text("no speakers, " * 100)
    given = ["data=text", "model=lstm", f"data.path={tmp_path / 'plain.txt'}", "data.min_chars=10", "clients=3"]
    problem = build.supervised(plain(compose([*given, "partition=iid", "data.sequence=10"])))
    assert problem.clients.n == 3
    assert problem.task.name == "tokens"
    assert problem.task.padding == 0
