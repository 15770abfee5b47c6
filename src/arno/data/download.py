"""Download published files: resume partial downloads, verify them, and rename them only when they are complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArnoError

BLOCK = 1 << 18


def store() -> Path:
    """The folder of downloads and decoded images: `$ARNO_DATA`, else `~/.cache/arno/data`."""
    return Path(os.environ.get("ARNO_DATA") or Path.home() / ".cache" / "arno" / "data").expanduser()


def home(name: str, root: str | None) -> Path:
    """The folder of a data set: the user's `root` (it must exist and not be empty), else a folder of the store."""
    if root is None:
        return store() / name
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ArnoError(f"data.root = {root}", "there is no such folder", "leave data.root out to download the data")
    if not any(folder.iterdir()):
        raise ArnoError(f"data.root = {root}", "the folder is empty", "leave data.root out to download the data")
    return folder


def obtain(folder: Path, root: str | None, url: str, md5: str) -> Path:
    """The published file in `folder`; downloaded if it is missing and the user gave no `root`."""
    path = folder / url.rpartition("/")[2]
    if path.is_file():
        return path
    if root is not None:
        raise ArnoError(f"data.root = {root}", f"{path.name} is missing", "leave data.root out to download the data")
    return fetch(url, path, md5=md5)


def fetch(url: str, path: Path, *, md5: str | None = None, size: int | None = None) -> Path:
    """Download `url` to `path` unless the file exists; an interrupted download is resumed.

    Args:
        url: http or https.
        path: the complete file; until it is complete, its bytes are in `path` + `.part`.
        md5: the published checksum, if there is one.
        size: the published number of bytes, if there is one.
    """
    if path.is_file():
        return path
    if not url.startswith(("https://", "http://")):
        raise ArnoError(f"cannot download {url}", "only http and https are allowed", "use another address")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
    except urllib.error.HTTPError as error:
        answer = f"the server answers {error.code} {error.reason}"
        remedy = f"try again later, or put {path.name} into {path.parent}"
        raise ArnoError(f"cannot download {url}", answer, remedy) from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        remedy = f"check the network and run again (it resumes), or put {path.name} into {path.parent}"
        raise ArnoError(f"cannot download {url}", reason, remedy) from error
    found = part.stat().st_size
    if size is not None and found != size:
        part.unlink()
        raise ArnoError(f"{url}: {found} bytes", f"{size} were announced", "run again to download it anew")
    if md5 is not None and (found_md5 := _md5(part)) != md5:
        part.unlink()
        raise ArnoError(f"{url}: MD5 {found_md5}", f"the published file has {md5}", "run again to download it anew")
    part.replace(path)
    return path


def _receive(url: str, part: Path) -> None:
    """Append the missing bytes to `part`; start from zero if the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "arno"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") != f"bytes */{have}":  # else the file is complete
            part.unlink()
            _receive(url, part)
        return
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as out, progress(part.stem, total, have, "bytes") as advance:
            while block := response.read(BLOCK):
                out.write(block)
                have += len(block)
                advance(len(block))
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def progress(title: str, total: int | None, done: int = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A progress bar if stderr is a terminal; yields the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns: list[rich.ProgressColumn] = [rich.TextColumn("{task.description}"), rich.BarColumn()]
    columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()] if unit == "bytes" else [rich.MofNCompleteColumn()]
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda n: bar.advance(task, n)
