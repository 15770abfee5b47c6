"""The picture of a partition and its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from arno.data import partitions
from arno.data.partition_picture import draw_partition, summary

Y = torch.arange(10).repeat(300)


@pytest.mark.parametrize("clients", [1, 10, 40, 41, 120, 900])
def test_the_picture_shows_something(tmp_path, clients):
    partition = partitions.build({"kind": "dirichlet", "equal": True}, Y, clients, 0)
    path = draw_partition(partition, Y, [f"class {i}" for i in range(10)], tmp_path / "partition.png")
    with Image.open(path) as image:
        assert min(image.size) > 250
        pixels = np.asarray(image.convert("L"))
    assert pixels.std() > 10


def test_summary():
    partition = partitions.build({"kind": "classes", "classes": 3}, Y, 20, 0)
    found = summary(partition, Y, "abcdefghij")
    assert found["clients"] == 20
    assert found["samples"] == 3000
    assert found["classes_min"] == found["classes_median"] == found["classes_max"] == 3
    assert found["size_min"] <= found["size_median"] <= found["size_max"]
    assert found["heterogeneity"] == pytest.approx(0.7)


def test_summary_of_deciles():
    partition = partitions.build({"kind": "shards", "shards": 2}, Y, 10, 0)
    found = summary(partition, Y, [f"{i} to {i + 1}" for i in range(10)], "deciles")
    assert {"deciles_min", "deciles_median", "deciles_max"} <= found.keys()
    assert "classes_min" not in found
