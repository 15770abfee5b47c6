"""Plain text, of which a network predicts the next character or word. A client is a speaker or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ...errors import ArnoError
from ...limits import files_in, place, read_text, regular, room
from ..dataset import Dataset, Ints, datasets, shortened
from ..text import Unit, Vocabulary, bigram_perplexity, sequences

#: A line with a name and a colon, after an empty line or at the beginning; the speech follows.
SPEAKER = re.compile(r"(?:\A|\n[ \t]*\n)([^\s:][^\n:]{0,79}):[ \t]*(?=\n|\Z)")
#: How many characters of a file are read to find out whether it has speakers.
GLANCE = 2**16


def names_clients(settings: Mapping[str, Any]) -> bool:
    """Whether a text with these settings names its clients."""
    path, client = settings.get("path"), settings.get("client")
    if client is not None or path is None:
        return client in ("speaker", "file")
    there = place(str(path))  # YAML reads the name 2021 as a number
    return there.is_dir() or _has_speakers(there)


def _has_speakers(path: Path) -> bool:
    """Whether a text file begins like a play."""
    try:
        with regular(path, "data.path =").open(encoding="utf-8", errors="replace") as file:
            return len(set(SPEAKER.findall(file.read(GLANCE).replace("\r\n", "\n")))) > 1
    except (ArnoError, OSError):
        return False  # the error is raised when the text is read


@datasets.register("text", names_clients=names_clients)
def text(
    *,
    path: str | None = None,
    client: Literal["speaker", "file", "none"] | None = None,
    unit: Unit = "char",
    sequence: int = 80,
    stride: int | None = None,
    vocabulary: int = 10_000,
    min_chars: int = 2_000,
    test: float = 0.2,
) -> Dataset:
    """Plain text (UTF-8) and the task to predict the next character or word.

    In a play, a speaker is a line `NAME:` after an empty line, and the speech follows. The text of each client is
    divided in time: the beginning to train, the next part to validate, the end to test; no character is in two parts.
    The vocabulary has the tokens of the text to train and validate. The perplexity of a bigram model that is counted on
    this text is printed for comparison.

    Args:
        path: a text file, or a folder with a .txt file for each client.
        client: speaker, file or none (then the partition decides); by default file for a folder, speaker for a play.
        unit: char or word, what is predicted.
        sequence: tokens that the network reads at a time.
        stride: tokens from the start of a sequence to the start of the next; by default no token is in two sequences.
        vocabulary: the most words; all others are unknown. Characters are all in it.
        min_chars: leave out clients with fewer characters.
        test: the share of each client's text at its end for testing.
    """
    stride = sequence + 1 if stride is None else stride
    _refuse(path, sequence, stride, vocabulary, test)
    assert path is not None
    texts, kind = _texts(path, client)
    kept = {name: one for name, one in texts.items() if len(one) >= min_chars}
    if not kept:
        longest = max(map(len, texts.values()), default=0)
        raise ArnoError(f"data.min_chars = {min_chars}", f"the longest text has {longest:,} characters", "use fewer")
    cuts = {name: round((1 - test) * len(one)) for name, one in kept.items()}
    words = Vocabulary.of(unit, (one[: cuts[name]] for name, one in kept.items()), vocabulary)
    made = {name: _divided(one, cuts[name], words, sequence, stride) for name, one in kept.items()}
    short = [name for name, (train, _) in made.items() if not len(train[0])]
    for name in short:
        del made[name]
    if not made or not any(len(tested[0]) for _, tested in made.values()):
        raise ArnoError(f"data.path = {path}", "no text is long enough for training and testing", "give a longer one")
    notes = [_note(kind, kept, texts, min_chars, [*short]), f"vocabulary: {len(words.names)} {unit}s with <pad>, <unk>"]
    return _dataset(Path(path).stem, made, words, -(-(sequence + 1) // stride) - 1, kind != "none", notes)


def _refuse(path: str | None, sequence: int, stride: int, vocabulary: int, test: float) -> None:
    if path is None:
        raise ArnoError("data=text", "the file is not named", "add data.path=input.txt, or a folder of .txt files")
    for name, value in (("sequence", sequence), ("stride", stride), ("vocabulary", vocabulary)):
        if value < 1:
            raise ArnoError(f"data.{name} = {value}", "it must be at least 1", f"leave out data.{name}")
    if not 0 < test < 1:
        raise ArnoError(f"data.test = {test}", "it must be a share, above 0 and below 1", "try data.test=0.2")


def _texts(path: str, client: str | None) -> tuple[dict[str, str], str]:
    """The text of each client, and the kind of the clients (speaker, file or none)."""
    there = place(path)
    if there.is_dir():
        files = files_in(there, there, lambda name: name.lower().endswith(".txt") and name[0] != ".")
        if not files:
            raise ArnoError(f"data.path = {path}", "the folder has no .txt file", "name a file or another folder")
    else:
        files = [regular(there, "data.path =")]
    texts = {file.stem: read_text(file, "data.path =").replace("\r\n", "\n") for file in files}
    if client is None:
        client = "file" if there.is_dir() else "speaker" if _has_speakers(there) else "none"
    if client == "speaker":
        return _speeches(path, texts.values()), client
    return texts if client == "file" else {there.stem: "\n".join(texts.values())}, client


def _speeches(path: str, texts: Any) -> dict[str, str]:
    """The text of each speaker: all speeches with the same name, one after another."""
    spoken: dict[str, list[str]] = {}
    for one in texts:
        _, *parts = SPEAKER.split(one)
        for name, speech in zip(parts[::2], parts[1::2], strict=True):
            spoken.setdefault(name.strip(), []).append(speech.strip("\n"))
    if not spoken:
        rule = "it has no speakers: a line `NAME:` after an empty line, and then the speech"
        raise ArnoError(f"data.path = {path}", rule, "use data.client=none, or a folder with a file for each client")
    return {name: "".join(f"{speech}\n" for speech in speeches if speech) for name, speeches in spoken.items()}


Pairs = tuple[Ints, Ints]


def _divided(text: str, cut: int, words: Vocabulary, sequence: int, stride: int) -> tuple[Pairs, Pairs]:
    """Sequences to train and validate, and sequences to test. cut: the first character of the text to test."""
    room(16 * len(text) * -(-sequence // stride), "the sequences of a text")
    return tuple(sequences(words.codes(part), sequence, stride) for part in (text[:cut], text[cut:]))  # type: ignore[return-value]


def _note(kind: str, kept: Mapping[str, str], texts: Mapping[str, str], least: int, short: list[str]) -> str:
    total = sum(map(len, kept.values()))
    if kind == "none":
        return f"text: {total:,} characters, no clients"
    said = f"clients: {len(kept) - len(short):,} {kind}s with {total:,} characters"
    few = len(texts) - len(kept)
    said += f"; left out: {few:,} with fewer than {least:,} characters" if few else ""
    return said + (f"; too short for a sequence: {shortened(short)}" if short else "")


def _dataset(
    name: str, made: Mapping[str, tuple[Pairs, Pairs]], words: Vocabulary, gap: int, named: bool, notes: list[str]
) -> Dataset:
    train, tested = (
        [np.concatenate(side) for side in zip(*part, strict=True)] for part in zip(*made.values(), strict=True)
    )
    known = float(bigram_perplexity((train[0], train[1]), (tested[0], tested[1]), len(words.names)))
    notes += [
        f"sequences of {train[0].shape[1]} tokens: {len(train[0]):,} to train and validate, {len(tested[0]):,} to test",
        f"bigram model, counted on the text to train and validate: test perplexity {known:.3f}",
    ]
    sizes, tests = ([len(pair[0]) for pair in part] for part in zip(*made.values(), strict=True))
    x, y, x_test, y_test = map(torch.from_numpy, (*train, *tested))
    return Dataset(
        name,
        x,
        y,
        x_test,
        y_test,
        words.names,
        scale=1.0,
        client=torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)) if named else None,
        client_test=torch.arange(len(tests)).repeat_interleave(torch.tensor(tests)) if named else None,
        clients=tuple(made) if named else (),
        tokens=words.names,
        gap=gap,
        references={"bigram model": {"test_perplexity": known}},
        notes=tuple(notes),
    )
