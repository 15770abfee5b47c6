"""Downloads published files: resumes partial downloads, verifies them, and renames them only when they are complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ArnoError
from ..limits import place, regular, shortened

BLOCK = 1 << 18


def store() -> Path:
    """The folder of downloads and decoded images: `$ARNO_DATA`, else `~/.cache/arno/data`."""
    return Path(os.environ.get("ARNO_DATA") or Path.home() / ".cache" / "arno" / "data").expanduser()


def home(name: str, root: str | None) -> Path:
    """The folder of a data set: the user's `root` (it must exist and not be empty), otherwise a folder of the store."""
    if root is None:
        return store() / name
    folder = place(root)
    if not os.path.isdir(folder):  # also False for a name that is too long
        raise ArnoError(
            f"data.root = {shortened(root)}", "there is no such folder", "leave data.root out to download the data"
        )
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise ArnoError(f"data.root = {root}", f"cannot be read ({error.strerror})", "give another folder") from error
    if empty:
        raise ArnoError(f"data.root = {root}", "the folder is empty", "leave data.root out to download the data")
    return folder


def obtain(folder: Path, root: str | None, url: str, md5: str) -> Path:
    """The published file in `folder`; downloaded if it is missing and the user gave no `root`.

    A file of the store must have the published digest. For a file in the user's `root` there may be a file NAME.sha256
    in the same folder; then the file must have this digest.
    """
    path = folder / url.rpartition("/")[2]
    if path.is_file() and root is not None:
        return verify(path)  # the user's own file may differ from the published one
    if root is not None:
        raise ArnoError(f"data.root = {root}", f"{path.name} is missing", "leave data.root out to download the data")
    return fetch(url, path, md5=md5)


def fetch(url: str, path: Path, *, md5: str | None = None, size: int | None = None) -> Path:
    """Download `url` to `path` unless the file exists; an interrupted download is resumed.

    A file that exists is verified: by the published digest, or by the digest that was noted at its download.

    Args:
        url: an https address; http is allowed only on this machine.
        path: the complete file; until it is complete, its bytes are in `path` + `.part`.
        md5: the published checksum, if there is one.
        size: the published number of bytes, if there is one.
    """
    refuse_address(url)
    if path.exists():
        return verify(regular(path), md5=md5, size=size, note=True)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answers {error.code} {error.reason}"
        remedy = f"try again later, or put {path.name} into {path.parent}"
        raise ArnoError(f"cannot download {url}", answer, remedy) from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(error.reason if isinstance(error, urllib.error.URLError) else error) or type(error).__name__
        remedy = f"check the network and run again (it resumes), or put {path.name} into {path.parent}"
        raise ArnoError(f"cannot download {url}", reason, remedy) from error
    found = part.stat().st_size
    if size is not None and found != size:
        part.unlink()
        raise ArnoError(f"{url}: {found} bytes", f"{size} were announced", "run again to download it anew")
    if md5 is not None and (found_md5 := digest(part, "md5")) != md5:
        part.unlink()
        raise ArnoError(f"{url}: MD5 {found_md5}", f"the published file has {md5}", "run again to download it anew")
    if md5 is None:
        noted(path).write_text(f"{digest(part, 'sha256')}  {path.name}\n", encoding="utf-8")
    part.replace(path)
    return path


def verify(path: Path, *, md5: str | None = None, size: int | None = None, note: bool = False) -> Path:
    """The path, if the file has the published size and digest. Without a published digest, the noted digest counts.

    note: whether to note the digest of a file that has none.
    """
    remedy = f"delete it and run again to download it anew: {path}"
    if size is not None and (found := path.stat().st_size) != size:
        raise ArnoError(f"{path}: {found} bytes", f"the published file has {size}", remedy)
    if md5 is not None:
        if (found_md5 := digest(path, "md5")) != md5:
            raise ArnoError(f"{path}: MD5 {found_md5}", f"the published file has {md5}", remedy)
        return path
    there = noted(path)
    if there.is_file():
        expected = there.read_text(encoding="utf-8", errors="replace")[:64].lower()
        if (found_sha256 := digest(path, "sha256")) != expected:
            remedy = f"delete it to download it anew; delete {there.name} too if you changed the file"
            raise ArnoError(f"{path}: SHA-256 {found_sha256}", f"{there.name} says {expected!r}", remedy)
    elif note:
        with suppress(OSError):  # a read-only folder: the next start notes it
            there.write_text(f"{digest(path, 'sha256')}  {path.name}\n", encoding="utf-8")
    return path


def noted(path: Path) -> Path:
    """The file in the same folder that holds the SHA-256 of `path`, in the format of sha256sum."""
    return path.with_name(path.name + ".sha256")


def refuse_address(url: str) -> None:
    """Refuse an address that is neither https nor http on this machine."""
    try:
        parts = urlsplit(url)
        allowed = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost"))
    except ValueError:
        allowed = False
    if not allowed:
        raise ArnoError(f"cannot download {url}", "only https is allowed", "use another address")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to allowed addresses only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        refuse_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _receive(url: str, part: Path) -> None:
    """Append the missing bytes to `part`; start from zero if the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "arno"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=30)
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


def digest(path: Path, kind: str) -> str:
    """The digest of a file: md5 or sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


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
