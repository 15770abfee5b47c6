"""Limits on what files may claim: every reader asks here before it allocates memory or opens a file."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .errors import ArnoError
from .machine import memory

#: The largest text or JSON file and the largest configuration file, in bytes.
TEXT, CONFIG = 64 * 2**20, 2**20
#: The largest encoded image in bytes, and the largest decoded image in pixels.
IMAGE, PIXELS = 256 * 2**20, 64 * 10**6
#: Unpacked data may take FLOOR bytes; above that, at most RATIO times the bytes of their archive.
FLOOR, RATIO = 256 * 2**20, 100
#: The most columns of a table: each takes 20 kB, however few rows there are.
COLUMNS = 2**15
#: The most classes of a data set, and the most lists and objects of a JSON file.
CLASSES, CONTAINERS = 10**6, 2**22
#: The deepest nesting of a configuration, and the most characters of one of its values.
DEPTH, CHARACTERS = 32, 4096
#: The most characters of a command in a record: to split a long one into words takes minutes.
COMMAND = 2**16
#: What the system refuses for now; the file may be whole.
NOT_NOW = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}


class Unreadable(ArnoError):
    """The system does not let this process read a file now; this is no damage of the file."""


def place(text: str) -> Path:
    """The path that a user wrote; `~` is the home folder, and `~name` stays as it is if there is no such user."""
    return Path(os.path.expanduser(text))


def few_columns(what: str, count: int) -> None:
    """Refuse a table with too many columns."""
    if count > COLUMNS:
        remedy = "leave columns out, or give an array from Python with arno.Data"
        raise ArnoError(what, f"it has {count:,} columns, and a table may have {COLUMNS:,}", remedy)


def regular(path: Path, what: str = "the file") -> Path:
    """The path, if it is a regular file (or a link to one); a pipe, device, socket or folder is not opened."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unreadable(error, f"{what} {shortened(path)}", "give an existing file") from error
    except ValueError as error:  # a null character in the path
        raise ArnoError(f"{what} {shortened(path)}", f"cannot be read ({error})", "give an existing file") from error
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "device, pipe or socket"
        raise ArnoError(f"{what} {path}", f"is a {kind}", "give a regular file")
    return path


def unreadable(error: OSError, what: str, remedy: str = "give a readable file") -> ArnoError:
    """The error for a file that cannot be opened or read."""
    reason = error.strerror or str(error)
    if error.errno in NOT_NOW:
        return Unreadable(what, f"cannot be read now ({reason})", "change that, then repeat the command")
    return ArnoError(what, f"cannot be read ({reason})", remedy)


def readable(path: Path, what: str = "the file") -> Path:
    """The path, if it is a regular file that this process may read now."""
    try:
        with regular(path, what).open("rb"), path.open("rb"):  # the readers of tensors and tables open it twice
            pass
    except OSError as error:
        raise unreadable(error, f"{what} {path}") from error
    return path


def named_in_text(path: Path) -> Path:
    """The path, if it is text: some libraries open no other, which must not be taken for damage."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ArnoError(f"{path}", "its path has bytes that are no text", "rename the folder") from error
    return path


def inside(folder: Path, path: Path) -> Path:
    """The path, if it lies in the folder after links are followed."""
    try:
        leaves = not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # RuntimeError: a link that leads to itself
        leaves = True
    if leaves:
        raise ArnoError(f"{path}", f"is a link that leaves {folder}", "copy what it points to into the folder")
    return path


def files_in(folder: Path, root: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """The files of a folder with a wanted name, sorted; they must be regular, and links must stay in `root`."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink():
                inside(root, path)
            if not entry.is_dir() and wanted(entry.name):
                found.append(path if entry.is_file() else regular(path))
    return sorted(found)


def folders_in(folder: Path, root: Path) -> list[Path]:
    """The folders in a folder, sorted; links must stay in `root`."""
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), entry.is_symlink()) for entry in entries if entry.is_dir()]
    return sorted(inside(root, path) if link else path for path, link in found)


def tree(folder: Path, root: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """The files with a wanted name of a folder and of the folders below it, under the rules of `files_in`."""
    yield from files_in(folder, root, wanted)
    for sub in folders_in(folder, root):
        if not sub.is_symlink():  # a link that stays inside points to a folder that is visited anyway
            yield from tree(sub, root, wanted)


def room(size: int, what: str, most: int | None = None) -> int:
    """`size`, if so many bytes may be allocated for `what`; `most`: the memory of the machine by default."""
    most = memory() if most is None else most
    if not 0 <= size <= most:
        raise ArnoError(f"{what}: {size:,} bytes", f"at most {most:,} are read", "is the file damaged?")
    return size


def most_unpacked(packed: int) -> int:
    """The most bytes that an archive of `packed` bytes may unpack to."""
    return min(max(FLOOR, RATIO * packed), memory())


def unpacked(size: int, packed: int, what: str) -> int:
    """`size`, if it is plausible for data that take `packed` bytes in their archive."""
    if not 0 <= size <= most_unpacked(packed):
        rule = f"from {packed:,} packed bytes at most {most_unpacked(packed):,} are unpacked"
        raise ArnoError(f"{what}: {size:,} bytes", rule, "is it damaged? If it is right, unpack it first")
    return size


class Capped:
    """A stream of unpacked bytes that ends with an error at `most` bytes."""

    def __init__(self, stream: IO[bytes] | Any, packed: int, what: str) -> None:
        self._stream, self._packed, self._what, self._done = stream, packed, what, 0

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; all that are left if `size` is negative."""
        left = most_unpacked(self._packed) - self._done
        content: bytes = self._stream.read(left + 1 if size < 0 else min(size, left + 1))
        self._done += len(content)
        unpacked(self._done, self._packed, self._what)
        return content


def read_bytes(path: Path, what: str = "the file", most: int | None = None) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    try:
        size = room(regular(path, what).stat().st_size, f"{what} {path}", most)
        with path.open("rb") as file:
            return file.read(size)  # no more: files in /proc have size 0 and may never end
    except OSError as error:
        raise unreadable(error, f"{what} {path}") from error


def read_text(path: Path, what: str = "the file", most: int = TEXT) -> str:
    """The text of a regular file of moderate size."""
    try:
        return read_bytes(path, what, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArnoError(f"{what} {path}", "is no UTF-8 text", "give a text file") from error


def read_json(path: Path, what: str = "the file") -> Any:
    """The value of a JSON file of moderate size."""
    return parse_json(read_text(path, what), f"{what} {path}")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text in which no key occurs twice: the first value of such a key would be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyError(next(key for key in made if keys.count(key) > 1))
    return made


def parse_json(
    text: str | bytes, what: str, made: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None
) -> Any:
    """The value of a JSON text; one with too many or too deep lists is refused before it is built.

    made: makes an object of its pairs.
    """
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if len(text) > TEXT or brackets > CONTAINERS:
        rule = f"at most {TEXT:,} characters and {CONTAINERS:,} lists are read"
        raise ArnoError(f"{what}: {len(text):,} characters, {brackets:,} lists", rule, "use a smaller file")
    try:
        return json.loads(text, object_pairs_hook=made)
    except RecursionError as error:
        raise ArnoError(what, "its lists are nested too deeply", "give a flat list") from error
    except ValueError as error:
        raise ArnoError(what, f"cannot be read as JSON ({error})", "correct the file") from error


def parse_numbered(text: str, what: str) -> Any:
    """The value of a text as Python prints a dictionary with numbers as keys: `{0: [1, 2], 1: [3]}`; each key once.

    It is read as JSON: Python's own parser takes a hundred times the memory. A short text that is no JSON either (it
    holds tuples, say) is read as a Python literal.
    """
    try:
        return parse_json(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text), what, once)
    except ArnoError:
        if len(text) > CONFIG:
            raise
        return ast.literal_eval(text)


def check_yaml(text: str, what: str) -> str:
    """The text, if building its value is safe: no aliases (they multiply), bounded depth, size and length of values.

    A text that is no YAML raises yaml.YAMLError or ValueError, as a loader does.
    """
    import yaml

    if len(text) > CONFIG:
        rule = f"a configuration has at most {CONFIG:,}"
        raise ArnoError(f"{what}: {len(text):,} characters", rule, "use a smaller file")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ArnoError(what, f"it uses the alias *{event.anchor}", "write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise ArnoError(what, f"it is nested more than {DEPTH} levels deep", "write fewer levels")
        if isinstance(event, yaml.ScalarEvent):
            short(event.value, what)
    return text


def short(value: str, what: str) -> str:
    """The text of one setting, if it is of moderate length and has no null character."""
    if len(value) > CHARACTERS:
        rule = f"a value has at most {CHARACTERS}"
        raise ArnoError(f"{what}: {len(value):,} characters in a value", rule, "shorten it")
    if "\0" in value:
        raise ArnoError(what, "a value holds a null character", "leave it out")
    return value


def words(command: object, what: str) -> list[str]:
    """The words of a command that a record holds."""
    text = str(command or "")
    if len(text) > COMMAND:
        rule = f"at most {COMMAND:,} are read"
        raise ArnoError(f"{what}: a command of {len(text):,} characters", rule, "if somebody edited it, undo that")
    try:
        return shlex.split(text)
    except ValueError as error:  # a quote without its end
        raise ArnoError(
            f"{what}: its command {shortened(text)}", f"cannot be read ({error})", "if somebody edited it, undo that"
        ) from error


def numbers(value: Any, what: str) -> Any:
    """The value, if its whole numbers fit into 64 bits."""
    if isinstance(value, dict):
        for key, item in value.items():
            numbers(key, what)
            numbers(item, what)
    elif isinstance(value, list | tuple):
        for item in value:
            numbers(item, what)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArnoError(what, "a whole number has more than 64 bits", "write a smaller number")
    return value


def elements(shape: tuple[int, ...] | list[int], itemsize: int, what: str) -> int:
    """The bytes of an array of this shape; a shape that no array has is refused."""
    if itemsize <= 0 or len(shape) > 8 or any(n < 0 for n in shape):
        raise ArnoError(what, f"an array of shape {list(shape)[:9]} cannot be read", "is the file damaged?")
    return math.prod(shape) * itemsize


def shortened(value: object, most: int = 200) -> str:
    """A value in at most `most` characters, for errors.

    >>> shortened("a" * 9, 5)
    'aaaa…'
    """
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
