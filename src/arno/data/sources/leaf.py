"""JSON files of LEAF: FEMNIST, Shakespeare, Sent140 and others of the same form. Every user is a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ...limits import files_in, place, regular, room
from ..arrays import moments
from ..dataset import Dataset, Ints, datasets, held_inside, shortened, split_in_time
from ..images import Array
from ..jsonstream import members
from ..text import Vocabulary, bigram_perplexity

#: The index of the text in the fields of a Sent140 sample: id, date, query, user, text.
TEXT_FIELD = 4


@datasets.register("leaf", names_clients=lambda settings: True)
def leaf(
    *,
    path: str | None = None,
    sequence: int = 25,
    vocabulary: int = 10_000,
    min_samples: int = 2,
    test: float = 0.2,
) -> Dataset:
    """The JSON files of the LEAF benchmark: `users`, `num_samples` and `user_data`; every user is a client.

    What a sample is follows from the files: numbers (784 are an image of 28×28 pixels, FEMNIST), a text and the
    character that follows it (Shakespeare), or a text and its label (Sent140).

    Args:
        path: the folder with `train` and `test`, a folder of .json files, or one file.
        sequence: words of a labelled text that the network reads; longer texts are cut.
        vocabulary: the most words; all others are unknown.
        min_samples: leave out users with fewer samples.
        test: the share for testing, inside each user, if there is no folder `test`.
    """
    if path is None:
        raise ArnoError("data=leaf", "the folder is not named", "add data.path=leaf/data/femnist/data")
    if sequence < 1 or vocabulary < 1 or not 0 < test < 1:
        what = f"data.sequence = {sequence}, data.vocabulary = {vocabulary}, data.test = {test:g}"
        raise ArnoError(what, "the first two are at least 1, the last is above 0 and below 1", "leave them out")
    train, tested = _files(path)
    read = _read(train)
    few = [user for user, own in read.users.items() if len(own.y) < min_samples]
    for user in few:
        del read.users[user]
    if not read.users:
        raise ArnoError(f"data.path = {path}", f"no user has {min_samples} samples", "use a smaller data.min_samples")
    also = _read(tested, read) if tested else None
    made = Samples(read, also, sequence, vocabulary)
    notes = [f"clients: {len(read.users):,} users" + f"; left out: {len(few):,} with too few samples" * bool(few)]
    return made.dataset(place(path).resolve(), test, notes)


def _files(path: str) -> tuple[list[Path], list[Path]]:
    """The files for training and the files for testing."""
    there = place(path)
    if not there.is_dir():
        return [regular(there, "data.path =")], []
    there = there / "data" if (there / "data" / "train").is_dir() else there

    def found(folder: Path) -> list[Path]:
        return files_in(folder, there, lambda name: name.endswith(".json")) if folder.is_dir() else []

    train, tested = (found(there / "train"), found(there / "test")) if found(there / "train") else (found(there), [])
    if not train:
        rule = "there is no .json file in it and none in its folder train"
        raise ArnoError(f"data.path = {path}", rule, "name the folder that holds train and test")
    return train, tested


@dataclass
class User:
    """The samples of one user, and their labels. The samples are numbers `[n, k]`, or texts."""

    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)


@dataclass
class Leaf:
    """All users of some files. kind: numbers, next (a text and the next character) or text (a text and its label).

    width: the number of values of a sample of numbers.
    """

    kind: str = ""
    width: int = 0
    users: dict[str, User] = field(default_factory=dict)


def _read(files: Sequence[Path], like: Leaf | None = None) -> Leaf:
    """The users of some files. like: users whose kind of samples these files must have."""
    out = Leaf() if like is None else Leaf(like.kind, like.width)
    for file in files:
        said: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        for name, value in members(file, "user_data"):
            if name in ("users", "num_samples", "hierarchies"):
                said[name] = value
            elif isinstance(value, dict) and {"x", "y"} <= value.keys():
                sizes[name] = _add(out, file, name, value["x"], value["y"])
        _refuse_counts(file, said, sizes)
    return out


def _refuse_counts(file: Path, said: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuse a file without users, and a file with wrong numbers of samples."""
    if not sizes:
        raise ArnoError(f"{file}", "it has no user_data with x and y for each user", "is this a file of LEAF?")
    users, counts = said.get("users", []), said.get("num_samples", [])
    if isinstance(users, list) and isinstance(counts, list):
        for user, count in zip(users, counts, strict=False):
            if sizes.get(user) != count:
                rule = f"num_samples says {count}"
                raise ArnoError(f"{file}: {sizes.get(user, 0)} samples of {user!r}", rule, "is the file damaged?")


def _add(out: Leaf, file: Path, user: str, x: Any, y: Any) -> int:
    """Add the samples of a user; return how many samples the file has for this user."""
    where = f"{file}: user {user!r}"
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise ArnoError(where, "x and y are lists of the same length", "is the file damaged?")
    if not x:
        return 0
    out.kind = out.kind or _kind(x[0], y[0])
    own = out.users.setdefault(user, User())
    own.y += [_label(where, label) for label in y]
    if out.kind == "numbers":
        own.x.append(_numbers(where, x, out))
    else:
        own.x += [_text(where, one) for one in x]
    return len(x)


def _kind(x: Any, y: Any) -> str:
    if isinstance(x, str):
        return "next" if isinstance(y, str) and len(y) == 1 and not y.isdigit() else "text"
    return "text" if isinstance(x, list) and any(isinstance(one, str) for one in x) else "numbers"


def _label(where: str, label: Any) -> int | str:
    if isinstance(label, float) and label.is_integer():
        return int(label)
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise ArnoError(f"{where}: label {str(label)[:40]}", "a label is a whole number or text", "correct the file")
    return label


def _numbers(where: str, x: list[Any], out: Leaf) -> Array:
    """Samples as float32 `[n, k]`; all users have the same k."""
    try:
        made = np.asarray(x, dtype=np.float32).reshape(len(x), -1)
    except (ValueError, TypeError) as error:
        raise ArnoError(where, "its samples are no lists of numbers of one length", "is the file damaged?") from error
    out.width = out.width or made.shape[1]
    if made.shape[1] != out.width:
        rule = f"others have {out.width}"
        raise ArnoError(f"{where}: samples of {made.shape[1]} numbers", rule, "is the file damaged?")
    return made


def _text(where: str, x: Any) -> str:
    """The text of a sample: the sample itself, or one of its fields."""
    if isinstance(x, list) and x:
        x = x[TEXT_FIELD] if len(x) > TEXT_FIELD else x[-1]
    if not isinstance(x, str):
        raise ArnoError(where, "a sample is text in one file and something else in another", "is the file damaged?")
    return x


class Samples:
    """The samples of all users, which become a data set."""

    def __init__(self, train: Leaf, tested: Leaf | None, sequence: int, most: int) -> None:
        self.kind, self.train, self.tested, self.sequence, self.most = train.kind, train, tested, sequence, most

    @cached_property
    def words(self) -> Vocabulary:
        """The characters or words of the training texts."""
        users = self.train.users.values()
        texts = [text for user in users for text in user.x]
        if self.kind == "next":
            return Vocabulary.of("char", [*texts, *(str(label) for user in users for label in user.y)])
        return Vocabulary.of("word", texts, self.most)

    def dataset(self, path: Path, test: float, notes: list[str]) -> Dataset:
        """The data set. If there are no test samples, a share of each user's samples is split off."""
        users = list(self.train.users.values())
        sizes = np.array([len(user.y) for user in users])
        owner = np.repeat(np.arange(len(sizes)), sizes)
        classes = self.words.names if self.kind == "next" else tuple(map(str, self.number))
        x, y = self.inputs(users), self.targets(users)
        gap, tests = self._gap(users), None
        if self.tested is None:
            train, held = self._split(owner, y, test, gap)
            x, y, x_test, y_test, tests = x[train], y[train], x[held], y[held], torch.from_numpy(owner[held.numpy()])
            owner = owner[train.numpy()]
        else:
            others = list(self.tested.users.values())
            x_test, y_test, train = self.inputs(others), self.targets(others), torch.arange(len(y))
            place = {user: i for i, user in enumerate(self.train.users)}
            if self.tested.users.keys() <= place.keys():
                tests = torch.tensor([place[user] for user, own in self.tested.users.items() for _ in own.y])
        names = {"numbers": "numbers", "next": "text and the next character", "text": "text and its label"}
        notes += [f"samples: {names[self.kind]}; to train and validate {len(y):,}, to test {len(y_test):,}"]
        notes += [f"classes: {len(classes)}: {shortened(classes, 12)}"] * (self.kind != "next")
        if self.kind != "numbers":
            notes.append(f"vocabulary: {len(self.words.names):,} tokens with <pad>, <unk>")
        mean, std = moments(x.numpy(), 1.0) if self.kind == "numbers" else ((0.0,), (1.0,))
        known = self._reference(x, y, x_test, y_test)
        notes += [f"{model}: test perplexity {of['test_perplexity']:.3f}" for model, of in known.items()]
        return Dataset(
            path.name if path.name not in ("data", "all_data") else path.parent.name,
            x,
            y,
            x_test,
            y_test,
            classes,
            mean,
            std,
            scale=1.0,
            client=torch.from_numpy(owner),
            client_test=tests,
            clients=tuple(self.train.users),
            rows=None if self.tested is not None else train,
            given=int(sizes.sum()),
            tokens=() if self.kind == "numbers" else self.words.names,
            gap=gap,
            references=known,
            notes=tuple(notes),
        )

    def inputs(self, users: Sequence[User]) -> Tensor:
        """The samples of users, one user after another."""
        if self.kind == "numbers":
            x = np.concatenate([part for user in users for part in user.x])
            return torch.from_numpy(x.reshape(-1, 1, 28, 28) if x.shape[1] == 784 else x)
        texts = [text for user in users for text in user.x]
        length = max(map(len, texts)) if self.kind == "next" else self.sequence
        room(8 * len(texts) * length, "the texts")
        if self.kind == "next" and min(map(len, texts)) == length:
            return torch.from_numpy(self.words.codes("".join(texts)).reshape(len(texts), length))
        out = np.zeros((len(texts), length), dtype=np.int64)
        for row, text in zip(out, texts, strict=True):
            codes = self.words.codes(text)[:length]
            row[: len(codes)] = codes
        return torch.from_numpy(out)

    def targets(self, users: Sequence[User]) -> Tensor:
        """The labels of users as numbers, one user after another."""
        labels = [label for user in users for label in user.y]
        if self.kind == "next":
            return torch.from_numpy(self.words.codes("".join(str(label)[:1] for label in labels)))
        return torch.tensor([self.number[label] for label in labels])

    @cached_property
    def number(self) -> dict[int | str, int]:
        """The number of each label."""
        both = [*self.train.users.values(), *(self.tested.users.values() if self.tested else ())]
        values = {label for user in both for label in user.y}
        return {value: i for i, value in enumerate(sorted(values, key=lambda v: (isinstance(v, str), v)))}

    def _gap(self, users: Sequence[User]) -> int | None:
        """For `next`: the length of texts that overlap with the next text of their user; 0 if none do. Otherwise None.

        Two texts overlap if the second one is the first one, moved by one character.
        """
        if self.kind != "next":
            return None
        pairs = [(a, b) for user in users[:20] for a, b in zip(user.x[:5], user.x[1:6], strict=False)]
        return max((len(a) for a, b in pairs if a[1:] == b[:-1]), default=0)

    def _split(self, owner: Ints, y: Tensor, test: float, gap: int | None) -> tuple[Tensor, Tensor]:
        """Indices to train and to test."""
        if gap is not None:
            train, held = split_in_time(owner, test, gap)
        else:
            away = held_inside(owner, y, max(1, round(test * len(owner))), numpy_stream(0, "test"))
            train, held = torch.from_numpy(np.flatnonzero(~away)), torch.from_numpy(np.flatnonzero(away))
        if not len(held):
            raise ArnoError(f"data.test = {test:g}", "no user has enough samples for testing", "add a folder test")
        return train, held

    def _reference(self, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> dict[str, dict[str, float]]:
        if self.kind != "next":
            return {}
        train, tested = ((x[:, -1].numpy(), y.numpy()) for x, y in ((x, y), (x_test, y_test)))
        return {"bigram model": {"test_perplexity": bigram_perplexity(train, tested, len(self.words.names))}}
