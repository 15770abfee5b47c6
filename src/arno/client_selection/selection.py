"""Functions that several rules of client selection use."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..core.selection_draws import cohort_size


class Selection(Part):
    """A part that selects a share of the clients in each round."""

    participation: float
    roles: ClassVar[frozenset[str]] = frozenset({"select"})

    def cohort(self, n: int) -> int:
        """m = max(⌊λN⌋, 1)."""
        return cohort_size(self.participation, n)


def shares(fed: Federation) -> np.ndarray:
    """p_k = n_k / Σ n_i for every client."""
    p: np.ndarray = fed.clients.shares().cpu().numpy()
    return p


def take(ids: Ids, at: Tensor) -> Tensor:
    """The ids at some positions."""
    return at if isinstance(ids, range) else torch.as_tensor(ids)[at]
