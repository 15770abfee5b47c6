"""Decoding many images: once, by a pool of threads if they are large; ever after from a cache of raw bytes."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArnoError
from .archives import read_npz
from .download import progress, store

Array = np.ndarray[Any, np.dtype[Any]]
Blob = tuple[str, bytes]  # what to call the image in an error, and its file's content

WAVE, CHUNK = 8192, 256  # images in memory undecoded, images per task
SMALL = 4096  # bytes; most of the time for smaller images is spent in Python, where threads only get in the way


def decode(blobs: Iterable[Blob], count: int, size: int | None = None) -> Array:
    """Decode `count` encoded images to `[count, 3, H, W]` uint8, as large as the first, or `size` × `size`."""
    blobs = iter(blobs)
    first = next(blobs, None)
    if first is None:
        return np.empty((0, 3, size or 1, size or 1), dtype=np.uint8)
    shape = _decode(first, (size, size) if size else None).shape
    out = np.empty((count, *shape), dtype=np.uint8)

    def chunk(start: int, part: list[Blob]) -> int:
        for i, blob in enumerate(part, start):
            image = _decode(blob, (size, size) if size else None)
            if image.shape != shape:
                found, wanted = (f"{s[1]}x{s[2]}" for s in (image.shape, shape))
                raise ArnoError(f"{blob[0]}: {found} pixels", f"the first image has {wanted}", "set data.size=32")
            out[i] = image
        return len(part)

    done = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress("decoding", count) as advance:
        run = map if len(first[1]) < SMALL else pool.map
        for wave in _slices(chain([first], blobs), WAVE):
            starts = range(done, done + len(wave), CHUNK)
            for n in run(chunk, starts, _slices(wave, CHUNK)):
                advance(n)
                done += n
    return out


def _decode(blob: Blob, size: tuple[int, int] | None) -> Array:
    from PIL import Image

    name, content = blob
    try:
        image: Image.Image = Image.open(io.BytesIO(content))
        if image.mode == "RGB":
            image.load()
        else:
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ArnoError(name, f"it cannot be decoded as an image: {error}", "is the file damaged?") from error
    if size and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _slices(items: Iterable[Blob], length: int) -> Iterator[list[Blob]]:
    items = iter(items)
    while part := list(islice(items, length)):
        yield part


def drop_grey(x: Array, x_test: Array) -> tuple[Array, Array]:
    """One channel instead of three where all images, of training and test, are grey."""
    for images in (x[:100], x, x_test):
        if images.shape[1] != 3 or any((images[:, 0] != images[:, c]).any() for c in (1, 2)):
            return x, x_test
    return np.ascontiguousarray(x[:, :1]), np.ascontiguousarray(x_test[:, :1])


def cached(
    name: str, files: Iterable[Path], settings: object, build: Callable[[], Mapping[str, Array]]
) -> dict[str, Array]:
    """What `build` makes of `files`, kept in the store until a file's size or time of change differs."""
    seen = [(str(f.resolve()), (s := f.stat()).st_size, s.st_mtime_ns) for f in sorted(files)]
    key = blake2b(repr((seen, settings)).encode(), digest_size=8).hexdigest()
    path = store() / "decoded" / f"{name}-{key}.npz"
    try:
        return read_npz(path)
    except (OSError, ValueError):
        pass  # not there, or damaged: make it (again)
    made = dict(build())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{name}-", delete=False) as out:
            try:
                np.savez(out, **made)  # type: ignore[arg-type]
                out.close()
                os.replace(out.name, path)
            except BaseException:
                Path(out.name).unlink(missing_ok=True)
                raise
    except OSError:
        pass  # a read-only or full disk costs time on the next start, nothing else
    return made
