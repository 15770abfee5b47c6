"""Reads the members of a large JSON object one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import ArnoError
from ..limits import CONTAINERS, TEXT, regular

#: How many characters are read at a time.
CHUNK = 2**20


def members(path: Path, inside: str) -> Iterator[tuple[str, Any]]:
    """The members (name, value) of a JSON object.

    If a member is called `inside`, its own members are returned in its place.

    Only one value is in memory at a time; a value has at most `limits.TEXT` characters. `inside` must be an object.
    """
    with regular(path).open(encoding="utf-8") as file:
        reader = Reader(file, path)
        try:
            yield from reader.members(inside)
        except UnicodeDecodeError as error:
            raise ArnoError(f"{path}", "is no UTF-8 text", "is this a JSON file?") from error


class Reader:
    """Reads a JSON text from the beginning to the end."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self.file, self.path, self.text, self.at, self.over = file, path, "", 0, False

    def members(self, inside: str = "") -> Iterator[tuple[str, Any]]:
        """The members of the object that begins at the current position."""
        self.expect("{")
        if self.peek() == "}":
            self.expect("}")
            return
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise self.error("a member of an object has a name")
            self.expect(":")
            if inside and name == inside:
                yield from self.members()
            else:
                yield name, self.value()
            if self.peek() != ",":
                break
            self.expect(",")
        self.expect("}")

    def value(self) -> Any:
        """The value that begins at the current position."""
        self.peek()
        size = CHUNK
        while True:
            if self.text.count("[", self.at) + self.text.count("{", self.at) > CONTAINERS:
                raise self.error(f"a value has more than {CONTAINERS:,} lists")
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, self.at)
                whole = end < len(self.text) or self.over  # a number may continue in the next characters
            except (ValueError, RecursionError) as error:
                if self.over or isinstance(error, RecursionError):
                    raise self.error(str(error) or "it is nested too deeply") from error
                whole = False
            if whole:
                self.at = end
                return value
            if len(self.text) - self.at > TEXT:
                raise self.error(f"a value has more than {TEXT:,} characters")
            self.more(size)
            size = 2 * size

    def peek(self) -> str:
        """The next character that is not a space; empty at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text) or self.over:
                return self.text[self.at : self.at + 1]
            self.more(CHUNK)

    def expect(self, mark: str) -> None:
        """Read one character; an error if it is another one than `mark`."""
        if (found := self.peek()) != mark:
            raise self.error(f"{mark} is missing" + (f", there is {found!r}" if found else " at its end"))
        self.at += 1

    def more(self, size: int) -> None:
        """Read more characters, and forget those before the current position."""
        new = self.file.read(size)
        self.over = len(new) < size
        self.text, self.at = self.text[self.at :] + new, 0

    def error(self, why: str) -> ArnoError:
        """The error for a file that cannot be read."""
        return ArnoError(f"{self.path}", f"cannot be read as JSON ({why})", "is the file damaged?")
