"""Partitions by given clients: named by the data, or by a file."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import ArnoError
from ...limits import TEXT, once, parse_json, parse_numbered, place, read_text, regular, room
from ..dataset import Labels, as_labels
from . import partitions
from .partition import Partition, by_owner, from_lists


@partitions.register("natural", of="clients")
def natural(y: Labels, clients: int | None, seed: int) -> Partition:
    """Every client has the samples that the data say; the default if the data name their clients.

    y: the number of the client of each sample.

    >>> natural([1, 0, 1], None, seed=0).sizes.tolist()
    [1, 2]
    """
    owner = as_labels(y)
    return by_owner(owner, int(owner.max(initial=-1)) + 1)


@partitions.register("file", of="rows")
def file(
    y: Labels, clients: int | None, seed: int, *, path: str | None = None, after_validation: bool = False
) -> Partition:
    """A partition from a file: the numbers of the samples of each client, or the client of each sample.

    The file is JSON, `[[0, 2], [1, 3]]` or `{"bern": [0, 2], "rome": [1, 3]}`, or a Python dictionary
    `{0: [0, 2], 1: [1, 3]}` as the split files of FedRCL; or it names the client of each sample: as JSON,
    `["bern", "rome", null, "rome"]`, or in a text file (.txt, .csv) with a line per sample. It may be compressed
    (.gz). Samples are numbered from 0 in the order of the data as given, before test or validation samples are split
    off. Validation samples are taken inside each client.

    Args:
        path: the file; no number may occur twice, samples may be left out.
        after_validation: the numbers address the training samples that remain after the validation split, as in
            release 0.1.
    """
    if path is None:
        raise ArnoError("partition=file", "the file is not named", "add partition.path=clients.json")
    where = f"partition.path = {path}"
    parsed = _parsed(where, place(path))
    if isinstance(parsed, list) and parsed and not any(isinstance(one, list) for one in parsed):
        rows, names = _columns(where, parsed, len(y))
    else:
        rows, names = _lists(where, parsed)
    return replace(from_lists(where, rows, len(y), clients), names=names)


def _parsed(where: str, path: Path) -> object:
    """The JSON value or the Python literal in a text file; for .txt and .csv the lines, None for an empty line."""
    regular(path, "partition.path =")
    remedy = 'write [[0, 2], [1, 3]] or {"a": [0, 2], "b": [1, 3]}'
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = file.read(TEXT + 1)
            room(len(content), where, TEXT)
            text = content.decode("utf-8")
        else:
            text = read_text(path, "partition.path =")
        if path.name.removesuffix(".gz").endswith((".txt", ".csv")) and not text.lstrip().startswith(("[", "{")):
            return [line.strip() or None for line in text.removeprefix("\ufeff").splitlines()]
        return parse_numbered(text, where) if re.match(r"\s*\{\s*\d+\s*:", text) else parse_json(text, where, once)
    except KeyError as error:
        rule = f"it names the client {error.args[0]!r} twice, and one list of samples would be lost"
        raise ArnoError(where, rule, "join both lists") from error
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArnoError(where, f"it cannot be read as JSON: {why}", remedy) from error


def _lists(where: str, read: object) -> tuple[list[list[object]], tuple[str, ...] | None]:
    """The list of samples of each client, and the names of the clients, if they are not the numbers 0, 1, 2, … ."""
    names: tuple[str, ...] | None = None
    rows = read
    if isinstance(read, Mapping):
        numbers = sorted(int(key) for key in read if str(key).isdecimal() and str(int(key)) == str(key))
        if numbers == list(range(len(read))):
            by_number = {int(key): row for key, row in read.items()}
            rows = [by_number[k] for k in numbers]
        else:
            rows, names = list(read.values()), tuple(map(str, read))
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)):
        raise ArnoError(where, "it must hold a list of sample numbers per client", "write [[0, 2], [1, 3]]")
    return rows, names


def _columns(where: str, ids: list[object], samples: int) -> tuple[list[list[object]], tuple[str, ...] | None]:
    """The samples of each client, from the client of each sample (None: no client), and the names as in `_lists`."""
    if len(ids) == samples + 1 and isinstance(ids[0], str):
        ids = ids[1:]  # the first line is a heading
    if len(ids) != samples:
        rule = f"it names the clients of {len(ids):,} samples, and the data as given have {samples:,}"
        raise ArnoError(where, rule, "name the client of every sample, also of those that become test samples")
    if odd := [one for one in ids if isinstance(one, bool) or not isinstance(one, str | int | None)]:
        raise ArnoError(f"{where}: {odd[0]!r}", "a client is a name or a whole number", 'write ["bern", "rome", …]')
    rows: dict[str, list[object]] = {}
    for sample, one in enumerate(ids):
        if one is not None:
            rows.setdefault(str(one), []).append(sample)
    if not rows:
        raise ArnoError(where, "it names no client", "write the client of each sample")
    known = sorted(rows, key=lambda one: (not one.isdecimal(), one.zfill(20) if one.isdecimal() else one))
    return [rows[one] for one in known], None if known == list(map(str, range(len(known)))) else tuple(known)
