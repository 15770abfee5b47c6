"""Text as numbers: tokens (characters or words), a vocabulary, sequences with their next tokens, and a bigram model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Literal

import numpy as np

from ..tasks.task import PADDING
from .dataset import Ints

Unit = Literal["char", "word"]
#: The token for characters and words that are not in the vocabulary.
UNKNOWN = "<unk>"
_WORDS = re.compile(r"\w+|[^\w\s]|\n")


def words(text: str) -> list[str]:
    """The words of a text in small letters; punctuation marks and line ends are words too.

    >>> words("Speak, speak.")
    ['speak', ',', 'speak', '.']
    """
    return _WORDS.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The tokens.

    Token 0 fills short sequences, token 1 stands for all unknown tokens, and each other token has a name.

    >>> chars = Vocabulary.of("char", ["aba"])
    >>> chars.names, chars.codes("bac").tolist()
    (('<pad>', '<unk>', 'a', 'b'), [3, 2, 1])
    """

    unit: Unit
    names: tuple[str, ...]

    @classmethod
    def of(cls, unit: Unit, texts: Iterable[str], most: int = 10_000) -> Vocabulary:
        """The vocabulary of some texts: all their characters in order, or their `most` most frequent words."""
        if unit == "char":
            return cls(unit, (PADDING, UNKNOWN, *sorted({character for text in texts for character in set(text)})))
        counts = Counter(word for text in texts for word in words(text))
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[:most]
        return cls(unit, (PADDING, UNKNOWN, *frequent))

    def codes(self, text: str) -> Ints:
        """The numbers of the tokens of a text."""
        if self.unit == "word":
            return np.array([self._numbers.get(word, 1) for word in words(text)], dtype=np.int64)
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        last = len(self._table) - 1
        return self._table[np.minimum(points, last)]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _table(self) -> Ints:
        """The number of each character by its code point; the last entry is for all larger ones."""
        points = {ord(name): i for name, i in self._numbers.items() if i > 1}
        table = np.ones(2 + max(points, default=0), dtype=np.int64)
        table[list(points)] = list(points.values())
        return table


def sequences(codes: Ints, length: int, stride: int) -> tuple[Ints, Ints]:
    """Sequences [n, length] and for each position the next token; the last sequence is filled up with padding.

    stride: tokens from the start of a sequence to the start of the next one. A sequence and its targets cover
    length + 1 tokens.

    >>> x, y = sequences(np.arange(2, 8), 3, 4)
    >>> x.tolist(), y.tolist()
    ([[2, 3, 4], [6, 7, 0]], [[3, 4, 5], [7, 0, 0]])
    """
    starts = np.arange(0, max(0, len(codes) - 1), stride)
    padded = np.concatenate([codes, np.zeros(length + 1, dtype=np.int64)])
    both = padded[starts[:, None] + np.arange(length + 1)]
    return both[:, :-1], both[:, 1:]


def bigram_perplexity(train: tuple[Ints, Ints], test: tuple[Ints, Ints], vocabulary: int) -> float:
    """The perplexity of a bigram model on test data: the next token depends only on the token before it.

    P(b | a) = (count(a b) + P(b)) / (count(a) + 1), P(b) = (count(b) + 1) / (count of all + vocabulary)

    train, test: tokens and the tokens that follow them; pairs with padding do not count.

    >>> pairs = np.array([2, 3, 2, 3]), np.array([3, 2, 3, 2])
    >>> round(bigram_perplexity(pairs, pairs, 4), 4)
    1.2632
    """
    (a, b), (u, v) = ((x[y > 0], y[y > 0]) for x, y in (train, test))
    alone = (np.bincount(b, minlength=vocabulary) + 1) / (len(b) + vocabulary)
    pairs, counts = np.unique(a * vocabulary + b, return_counts=True)
    wanted = u * vocabulary + v
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[at] == wanted, counts[at], 0)
    chance = (seen + alone[v]) / (np.bincount(a, minlength=vocabulary)[u] + 1)
    return exp(-float(np.log(chance).mean()))
