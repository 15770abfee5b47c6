"""The optical digits that are installed with Arno."""

from __future__ import annotations

from pathlib import Path

import torch

from ..archives import read_npz
from ..dataset import Dataset, datasets


@datasets.register("digits", shape="1x8x8", samples="1437 + 360")
def digits() -> Dataset:
    """1,797 handwritten digits of 8 × 8 pixels with values 0 to 16; no download.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998
    (CC BY 4.0): the test part, as in scikit-learn, with a fixed stratified split into 1,437 + 360.
    """
    arrays = read_npz(Path(__file__).parents[1] / "digits.npz")
    x, y, x_test, y_test = (torch.from_numpy(arrays[key]) for key in ("x", "y", "x_test", "y_test"))
    return Dataset(
        name="digits",
        x=x,
        y=y.long(),
        x_test=x_test,
        y_test=y_test.long(),
        classes=tuple("0123456789"),
        mean=(0.3049,),
        std=(0.3760,),
        scale=16.0,
    )
