"""The program of a Ray actor: it trains rows on one thread and answers questions about models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ..core.serial import Serial
from ..core.work import Result, Work
from ..kernels.glibc_memory import keep_memory
from .auto import choose
from .batched import Batched
from .packing import answer, ask, load_problem, portable, unpack


class Trainer:
    """The class of the actors. All actors of a node read the data in the same memory."""

    def __init__(self, problem: tuple[bytes, list[Any]], targets: list[str]) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
        torch.set_num_threads(1)
        keep_memory()
        pickled, buffers = problem
        self.problem = load_problem(targets, pickled, buffers)
        self.engine, self.batched = Serial(self.problem), Batched(self.problem)

    def ready(self) -> bool:
        """True; the answer shows that the actor is ready."""
        return True

    def train(self, packed: dict[str, Any], start: Any) -> tuple[Any, Any]:
        """Train rows; return two objects, the answer and the updates."""
        try:
            _, out = next(iter(self.engine.train([unpacked(packed, start)])))
        except BaseException as error:  # also SystemExit, of the user's own code
            return portable(error), None
        return answer(out), out.delta.numpy()

    def sum(self, blocks: list[dict[str, Any]], start: Any) -> tuple[Any, Any]:
        """Train rows of several blocks; return the results of the clients, and Σ p_k Δ_k over finite updates.

        The first object holds for each block: the losses, seconds and norms of its rows, and why some of the rows
        failed.
        """
        total, columns, d = torch.zeros(len(start), dtype=self.problem.dtype), [], self.problem.layout.d
        try:
            for work in (unpacked(packed, start) for packed in blocks):
                found, failed, at = [], dict[int, str](), 0
                for rows, out in self._trained(work):
                    failed |= {at + j: why for j, why in out.failed.items()}
                    at += len(rows)
                    fine = torch.isfinite(out.delta.sum(1))
                    total += rows.weight[fine] @ out.delta[fine]
                    norm = out.delta[:, :d].norm(dim=1).where(fine, torch.nan)
                    found.append(torch.stack([out.loss, out.seconds, norm.to(out.loss.dtype)]))
                columns.append((torch.cat(found, 1).numpy(), failed))
        except BaseException as error:  # also SystemExit, of the user's own code
            return portable(error), None
        return columns, total.numpy()

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call the method `what` of the problem."""
        try:
            return ask(self.problem, what, *arguments)
        except BaseException as error:  # also SystemExit, of the user's own code
            return portable(error)

    def _trained(self, work: Work) -> Iterator[tuple[Work, Result]]:
        """Small networks are trained together.

        Other ones are trained one by one, so that only one update is in memory.
        """
        if choose(self.problem, work, 1) == "batched":
            return self.batched.train([work])
        return self.engine.train(work.rows(torch.tensor([j])) for j in range(len(work)))


def unpacked(packed: dict[str, Any], start: Any) -> Work:
    """The work of packed rows. start: the start that all of them share; None if each has its own."""
    work = unpack(packed)
    return work if start is None else replace(work, start=torch.from_numpy(start).expand(len(work), -1))
