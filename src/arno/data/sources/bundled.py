"""The small tables that are installed with scikit-learn."""

from __future__ import annotations

import numpy as np

from ...errors import ArnoError, unknown
from ..arrays import from_arrays
from ..dataset import Dataset, datasets

NAMES = ("diabetes", "wine", "breast_cancer")


@datasets.register("sklearn")
def bundled(*, name: str | None = None) -> Dataset:
    """Tables of scikit-learn, no download: diabetes (regression), wine and breast_cancer (classification).

    A stratified fifth of the samples is test data, the same for every seed. Features are standardised with the mean and
    deviation of the training samples.

    Args:
        name: diabetes (442 patients, 10 features; progression of the disease after one year), wine (178 wines,
            13 features, 3 cultivars) or breast_cancer (569 tumours, 30 features, malignant or benign).
    """
    if name is None:
        raise ArnoError("data=sklearn", f"the table is not named; known are {', '.join(NAMES)}", "add data.name=wine")
    if name not in NAMES:
        raise unknown("data.name", name, NAMES)
    from sklearn import datasets as tables

    if name == "diabetes":
        table = tables.load_diabetes(scaled=False)  # the values as they were measured
        arrays = {"y": table.target.astype(np.float32)}
    else:
        table = tables.load_wine() if name == "wine" else tables.load_breast_cancer()
        arrays = {"y": table.target, "classes": table.target_names}
    return from_arrays(name, {"x": table.data.astype(np.float32), **arrays}, val=0.2)
