"""A data set in one file: points on two noisy circles.

    arno run data=custom data.target=examples/my_data.py:factory data.noise=0.2 clients=10

Arno calls the factory with the settings. The targets are labels (int64, with one name per class) or, for a regression,
floating-point numbers (with classes=()). The test data must be the same for every seed, so that runs can be compared.
"""

from math import tau

import torch

from arno.data import Dataset


def factory(*, samples: int = 1000, noise: float = 0.1) -> Dataset:
    """samples: training samples; as many again are for testing. noise: the deviation of a point from its circle."""
    random = torch.Generator().manual_seed(0)
    label = torch.arange(2 * samples) % 2
    angle = tau * torch.rand(2 * samples, generator=random)
    points = (1 + label)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    points += noise * torch.randn(points.shape, generator=random)
    return Dataset(
        name="circles",
        x=points[:samples],
        y=label[:samples],
        x_test=points[samples:],
        y_test=label[samples:],
        classes=("inner", "outer"),
        mean=(0.0, 0.0),
        std=(1.1, 1.1),
        scale=1.0,
    )
