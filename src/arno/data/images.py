"""Decodes many images; a pool of threads decodes large ones. A cache keeps the decoded arrays."""

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
from ..limits import PIXELS, room
from .archives import read_npz
from .download import progress, store

Array = np.ndarray[Any, np.dtype[Any]]
Blob = tuple[str, bytes]  #: the name of an image for errors, and the content of its file

#: How many encoded images are in memory at a time; how many images a task of the pool has.
WAVE, CHUNK = 8192, 256
#: Images with fewer bytes are decoded without threads: most of their time is spent in Python, under the GIL.
SMALL = 4096
#: The formats that are decoded. Others are refused: Pillow passes some of them to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def decode(blobs: Iterable[Blob], count: int, size: int | None = None) -> Array:
    """Decode `count` images to `[count, 3, H, W]` uint8.

    All have the size of the first one, or are resized to size × size.
    """
    blobs = iter(blobs)
    first = next(blobs, None)
    if first is None:
        return np.empty((0, 3, size or 1, size or 1), dtype=np.uint8)
    shape = _decode(first, (size, size) if size else None).shape
    room(count * int(np.prod(shape)), f"{count:,} images of {shape[1]}x{shape[2]} pixels such as {first[0]}")
    out = np.empty((count, *shape), dtype=np.uint8)

    def chunk(start: int, part: list[Blob]) -> int:
        for i, blob in enumerate(part, start):
            image = _decode(blob, (size, size) if size else None)
            if i >= count:
                raise ArnoError(blob[0], f"{count} images were announced and more follow", "is the file damaged?")
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
    if done < count:
        raise ArnoError(f"{count} images such as {first[0]}", f"only {done} follow", "is the file damaged?")
    return out


def _decode(blob: Blob, size: tuple[int, int] | None) -> Array:
    from PIL import Image

    name, content = blob
    try:
        image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {PIXELS:,}")
        if image.mode[0] in "IF":
            raise _deep(name, image.mode)
        if image.mode == "RGB":
            image.load()
        else:
            image = image.convert("RGB")
    except ArnoError:
        raise
    except Exception as error:  # the decoders raise exceptions of many kinds for damaged images
        raise ArnoError(name, f"it cannot be decoded as an image: {error}", "is the file damaged?") from error
    if size and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _deep(name: str, mode: str) -> ArnoError:
    """The error for an image with more than 8 bits per number; a conversion to 8 bits would lose information."""
    rule = f"its numbers have {16 if '16' in mode else 32} bits, and images of 8 bits are read"
    return ArnoError(f"{name}: mode {mode}", rule, "convert it to 8 bits, or give its numbers with data=npz")


def _slices(items: Iterable[Blob], length: int) -> Iterator[list[Blob]]:
    items = iter(items)
    while part := list(islice(items, length)):
        yield part


def drop_grey(x: Array, x_test: Array) -> tuple[Array, Array]:
    """One channel instead of three if all training and test images are grey."""
    for images in (x[:100], x, x_test):
        if images.shape[1] != 3 or any((images[:, 0] != images[:, c]).any() for c in (1, 2)):
            return x, x_test
    return np.ascontiguousarray(x[:, :1]), np.ascontiguousarray(x_test[:, :1])


def cached(
    name: str, files: Iterable[Path], settings: object, build: Callable[[], Mapping[str, Array]]
) -> dict[str, Array]:
    """The arrays that `build` makes from `files`.

    They are stored until the size or modification time of a file changes.
    """
    seen = [(str(f.resolve()), (s := f.stat()).st_size, s.st_mtime_ns) for f in sorted(files)]
    key = blake2b(repr((seen, settings)).encode(), digest_size=8).hexdigest()
    path = store() / "decoded" / f"{name}-{key}.npz"
    try:
        return read_npz(path)
    except ArnoError:
        pass  # the file does not exist or is damaged: build the arrays
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
        pass  # the disk is read-only or full: the next start decodes again
    return made
