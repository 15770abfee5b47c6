"""Image classification data sets of the Hugging Face hub, from the Parquet files that the hub offers."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlencode

from ...errors import ArnoError
from ...limits import read_json
from ..arrays import from_arrays
from ..dataset import Dataset, datasets
from ..download import fetch, home, noted
from ..parquet import find_parquet, read_parquet

LISTING = "https://datasets-server.huggingface.co/parquet"
TEST_SPLITS = ("test", "validation", "valid", "val")


@datasets.register("hub")
def hub(
    *,
    name: str | None = None,
    subset: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    size: int | None = None,
    test: float = 0.2,
    root: str | None = None,
) -> Dataset:
    """Images and labels of a data set on the hub, such as `data=hub data.name=uoft-cs/cifar10`.

    Args:
        name: its name on the hub, owner/name.
        subset: which of its configurations; needed if there are several.
        image_column, label_column: found by name and type if not given.
        size: resize images to `size` × `size` pixels; needed if their sizes differ.
        test: the share held out for testing if the hub has neither a test nor a validation split.
        root: a folder with `train-*.parquet` and, if there are any, `test-*.parquet`; without it they are downloaded.
    """
    if root is not None:
        files = find_parquet(home("hub", root))
        if not files["train"]:
            raise ArnoError(f"data.root = {root}", "there is no train-*.parquet", "leave data.root out to download")
    elif name is None:
        raise ArnoError("data=hub", "the data set is not named", "add data.name=owner/name")
    else:
        files = _download(name, subset)
    short = re.sub(r"[^\w.-]+", "-", name or "hub")
    arrays = read_parquet(
        short, files["train"], files["test"], image_column=image_column, label_column=label_column, size=size
    )
    return from_arrays(short, arrays, test=test)


def _download(repo: str, subset: str | None) -> dict[str, list[Path]]:
    """The Parquet files of a data set on the hub, downloaded unless they exist."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", repo):
        raise ArnoError(f"data.name = {repo}", "a data set is named owner/name", "try data.name=uoft-cs/cifar10")
    folder = home("hub", None) / repo.replace("/", "--")
    listing = fetch(f"{LISTING}?{urlencode({'dataset': repo})}", folder / "listing.json")
    try:
        about = read_json(listing, "the listing")
        entries = [(e["config"], e["split"], e["url"], int(e["size"])) for e in about["parquet_files"]]
    except (ArnoError, ValueError, KeyError, TypeError) as error:
        listing.unlink()
        noted(listing).unlink(missing_ok=True)
        raise ArnoError(f"the hub's listing of {repo}", f"its format is unknown: {error!r}", "run again") from error
    if about.get("partial"):
        rule = "the hub offers only a part of this large data set as Parquet"
        raise ArnoError(f"data.name = {repo}", rule, "use a smaller data set")
    subsets = sorted({entry[0] for entry in entries})
    chosen = subset if subset is not None else subsets[0] if len(subsets) == 1 else "default"
    if chosen not in subsets:
        what = f"data.subset = {subset}" if subset else f"data.name = {repo}"
        raise ArnoError(what, f"its subsets are {', '.join(subsets) or 'none'}", "name one with data.subset")
    splits = {entry[1] for entry in entries if entry[0] == chosen}
    if "train" not in splits:
        rule = f"it has no split 'train', only {', '.join(sorted(splits))}"
        raise ArnoError(f"data.name = {repo}", rule, "use another data set or subset")
    tested = next((split for split in TEST_SPLITS if split in splits), None)
    place = folder / re.sub(r"[^\w.-]+", "-", chosen).lstrip(".")
    files: dict[str, list[Path]] = {"train": [], "test": []}
    for split, kind in (("train", "train"), (tested, "test")):
        wanted = [entry for entry in entries if entry[:2] == (chosen, split)]
        for i, (_, _, url, size) in enumerate(wanted):
            files[kind].append(fetch(url, place / f"{kind}-{i:05d}.parquet", size=size))
    return files
