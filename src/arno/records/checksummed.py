"""Small JSON files that begin with the checksum of the rest of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .damage import checksum, content, damaged

#: How such a file begins, before its checksum.
BEGIN = '{\n  "crc": "'
#: The first line of a configuration file: the mark of the run and a checksum; files of release 0.1 have none.
CONFIG = re.compile(r"# arno configuration of run ([0-9a-f]{8}), crc32 ([0-9a-f]{8})")


def text(values: Mapping[str, Any]) -> str:
    """The text of a file that holds these values.

    >>> text({"status": "done"})
    '{\\n  "crc": "32a7f906",\\n  "status": "done"\\n}\\n'
    """
    rest = json.dumps(dict(values), indent=2, ensure_ascii=False).removeprefix("{\n") + "\n"
    return f'{BEGIN}{checksum(rest.encode())}",\n{rest}'


def read(path: Path, folder: Path, *first: str) -> dict[str, Any]:
    """The values of a file; an error if the file is damaged.

    first: names; a file of this kind holds at least one of them. Files of release 0.1 have no checksum and begin with
        one of these names.
    """
    try:
        found = content(path, folder).decode()
        loaded = json.loads(found)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"cannot be read ({error})", folder) from error
    if not isinstance(loaded, dict):
        raise damaged(path, "cannot be read (it holds no names)", folder)
    if found.startswith(BEGIN):
        crc, _, rest = found.removeprefix(BEGIN).partition('",\n')
        if crc != checksum(rest.encode()):
            raise damaged(path, "is damaged: its checksum does not match", folder)
        del loaded["crc"]
    elif next(iter(loaded), first[0]) not in first:
        raise damaged(path, "is damaged: it begins with no checksum", folder)
    if not any(name in loaded for name in first):
        raise damaged(path, f"is another file: it holds no {' or '.join(first)}", folder)
    return loaded
