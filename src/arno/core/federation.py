"""The round. Everything a method does hangs on the five moments that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..errors import ArnoError, Diverged
from .local import Problem
from .part import Ids, Part
from .table import ClientTable, refuse_if_too_large
from .values import PerClient, Values
from .work import SGD, Mat, Result, Vec, Work

#: A block holds at most so many numbers and so many clients, so that memory does not grow with the cohort.
BLOCK, ROWS = 2**24, 128
#: Numbers that a cache holds beside the rest.
CACHED = 2**20


class Engine(Protocol):
    """Where clients train. Blocks come back in the order in which they were given."""

    name: str
    problem: Problem

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block, with a bounded number in flight."""
        ...

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """Scores of models on a split."""
        ...

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on each client's own data."""
        ...

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The scores that a round's record holds; with `clients`, how they spread over the clients."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


#: The order in which a cohort is trained: all from the same model (`parallel`), or one after the other.
Schedule = Callable[[Engine, Iterable[Work]], Iterator[tuple[Work, Result]]]


def parallel(engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
    """Everybody starts from the model that the server sent."""
    return engine.train(works)


@dataclass(frozen=True)
class Local:
    """Local training as the user sets it; `epochs`, `batch_size` and `lr` may differ per client."""

    epochs: PerClient = 1
    batch_size: PerClient = 32
    lr: PerClient = 0.05
    lr_decay: float = 1.0
    sgd: SGD = SGD()


class Federation:
    """A server and its clients. Without parts this is FedAvg: w ← w + η_s Σ_{k∈S} p_k Δ_k.

    >>> from arno.problems.quadratic import Quadratic
    >>> problem = Quadratic(h=torch.tensor([1.0, 3.0]), e=torch.tensor([[2.0], [0.0]]))
    >>> fed = Federation(problem, local=Local(lr=0.1), weighting="uniform")
    >>> for _ in range(100):
    ...     _ = fed.round()
    >>> round(fed.w.item(), 4), problem.star.item()
    (0.5, 0.5)
    """

    def __init__(
        self,
        problem: Problem,
        parts: Sequence[Part] = (),
        *,
        engine: Engine | None = None,
        local: Local | None = None,
        weighting: Literal["samples", "uniform"] = "samples",
        server_lr: float = 1.0,
        on_divergence: Literal["stop", "drop"] = "stop",
        seed: int = 0,
        rounds: int | None = None,
        w: Vec | None = None,
        state: Path | Literal["workers"] | None = None,
    ) -> None:
        if engine is None:
            from ..engines.serial import Serial

            engine = Serial(problem)
        self.problem, self.engine, self.parts = problem, engine, list(parts)
        self.n, self.layout, self.seed = problem.n, problem.layout, seed
        self.local = local or Local()
        self.weighting, self.server_lr, self.on_divergence = weighting, server_lr, on_divergence
        self._epochs = self.per_client(self.local.epochs, "local.epochs", least=1, whole=True)
        self._batch_size = self.per_client(self.local.batch_size, "local.batch_size", least=1, whole=True)
        self._lr = self.per_client(self.local.lr, "local.lr", above=0)
        self.w = (problem.init(seed) if w is None else w).to(problem.device, problem.dtype).clone()
        self.t, self.rounds = 0, rounds  # rounds done (−1 before a round 0 of a part's own), and how many to do
        self.cohort, self._state = problem.n, state  # the largest cohort (a selection says), where tables lie on disk
        self.schedule: Schedule = parallel  # a part may set another one in `start`
        self.watch: Callable[[str], None] = lambda line: None  # told what happens within a round
        refuse_conflicts(self.parts)
        for part in self.parts:
            part.start(self)
        if getattr(engine, "sums", False):
            refuse_rows(self.parts, self.schedule)

    def round(self) -> Round:
        """One round: select, send, train, receive, step. Returns what is worth recording."""
        t, record = self.t, Round(self.t)
        ids: Ids = range(self.n)
        for part in self.parts:
            ids = part.select(ids, t)
        if len(ids) == 0:  # nobody takes part: nothing changes
            self.t += 1
            return record
        for part in self.parts:
            part.begin(t)
        v, tail = torch.zeros_like(self.w), torch.zeros_like(self.w[self.layout.d :])
        for work, out in self.schedule(self.engine, self.blocks(ids, t)):
            work, out, dv = self._added_up(work, out, record)
            tail += dv[self.layout.d :]
            out.delta[:, self.layout.d :] = 0
            record.add(work, out)
            for part in self.parts:
                dv = part.receive(work, out, dv)
            v += dv
        for part in self.parts:
            v = part.finish(t, v)
        step = self.server_lr * v
        step[self.layout.d :] = tail  # buffers are averaged plainly
        self.w = self.w + step
        for part in self.parts:
            record.numbers.update(part.record())
        self.t += 1
        return record

    def blocks(self, ids: Ids, t: int) -> Iterator[Work]:
        """The cohort as a stream of blocks of work; parts change each block as it is made."""
        clients, count = torch.unique(torch.as_tensor(ids, dtype=torch.int64), return_counts=True)
        weight = count.double() * (self.problem.sizes[clients].cpu() if self.weighting == "samples" else 1)
        weight = weight / weight.sum()
        m, rows = int(count.sum()), max(1, min(ROWS, BLOCK // self.layout.size))
        for c, n, p in zip(clients.split(rows), count.split(rows), weight.split(rows), strict=True):
            epochs, batch_size = self._epochs[c].long(), self._batch_size[c].long()
            work = Work(
                round=t,
                seed=self.seed,
                cohort=m,
                clients=c,
                count=self._here(n, torch.int64),
                weight=self._here(p),
                start=self.w.expand(len(c), -1),
                epochs=epochs,
                batch_size=batch_size,
                steps=self._here(self.problem.steps(c, epochs, batch_size), torch.int64),
                lr=self._here(self._lr[c] * self.local.lr_decay ** max(t, 0)),
                mu=self._here(torch.zeros(len(c))),
                sgd=self.local.sgd,
            )
            for part in self.parts:
                work = part.send(work)
            yield work

    def per_client(self, spec: PerClient, name: str, **rules: Any) -> Values:
        """The values of a hyper-parameter that may differ per client, drawn once from their own stream."""
        return Values(spec, self.n, seed=self.seed, name=name, **rules)

    def table(self) -> ClientTable:
        """A row per client, shaped like the model, zero until written; refused early where it cannot fit."""
        seen = self.n if self.rounds is None else min(self.n, self.cohort * self.rounds)
        if self._state == "workers":
            remote: Callable[[int, int, Vec], ClientTable] | None = getattr(self.engine, "table", None)
            if remote is None:
                raise ArnoError(
                    "state=workers",
                    f"engine {self.engine.name} has no workers to hold rows",
                    "use engine=ray, or state=disk",
                )
            return remote(self.n, seen, self.w)
        refuse_if_too_large(seen, self.w, self._state)
        return ClientTable(self.n, self.w, self._state)

    def state(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, client tables and plain numbers by name."""
        state: dict[str, Any] = {"w": self.w, "t": self.t}
        for i, part in enumerate(self.parts):
            state |= {f"{i}.{type(part).__name__}.{name}": value for name, value in part.state().items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave (tables as their dictionaries of tensors)."""
        mine = self.state()
        if mine.keys() != state.keys():
            odd = ", ".join(sorted(mine.keys() ^ state.keys()))
            raise ArnoError(
                "this checkpoint is of another method", f"it does not agree on {odd}", "resume it with its own config"
            )
        for name, value in state.items():
            owner: Any = self
            if "." in name:
                index, _, name = name.split(".", 2)
                owner = self.parts[int(index)]
            if isinstance(value, Tensor):
                setattr(owner, name, value.to(self.w.device))
            elif isinstance(value, dict):
                getattr(owner, name).restore(value)
            else:
                setattr(owner, name, value)

    def _here(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return x.to(self.w.device, dtype or self.w.dtype)

    def _added_up(self, work: Work, out: Result, record: Round) -> tuple[Work, Result, Vec]:
        """Σ p_k Δ_k over a block, and what the updates look like; those that are not finite are refused or dropped."""
        if out.sum is None:
            dv, notes = added_up(work.weight, out.delta, self.layout.d)
            out = replace(out, notes={**out.notes, **notes})
        # A norm is finite only if all of it is (short of overflow); buffers do not count in it.
        fine = torch.isfinite(out.notes["delta_norm"]) & torch.isfinite(out.delta[:, self.layout.d :].sum(1))
        if fine.all():
            return work, out, dv if out.sum is None else out.sum
        work, out = self._without(work, out, fine, record)
        if out.sum is None:
            return self._added_up(work, out, record)
        return work, out, out.sum

    def _without(self, work: Work, out: Result, fine: Tensor, record: Round) -> tuple[Work, Result]:
        """Drop clients whose update is not finite, unless that ends the run."""
        names = ", ".join(str(int(k)) for k in work.clients[~fine.cpu()])
        if self.on_divergence == "stop":
            raise Diverged(
                f"client {names} diverged in round {work.round + 1}",
                "its update holds NaN or Inf",
                "lower local.lr, set local.clip, or use on_divergence=drop",
            )
        record.dropped += int((~fine).sum())
        keep = fine.nonzero()[:, 0].cpu()
        return work.rows(keep), out.rows(keep)


ROLES = {
    "mean": "decides how the clients' updates are averaged",
    "control": "corrects the clients' gradients with controls of its own",
    "server": "is the server's optimiser",
    "window": "chooses the sub-model",
    "schedule": "sets the order of training",
}


def refuse_conflicts(parts: Sequence[Part]) -> None:
    """Two parts of one kind, or two with the same role, make no method."""
    for i, part in enumerate(parts):
        for other in parts[:i]:
            names = f"{type(other).__name__} with {type(part).__name__}"
            if type(part) is type(other):
                raise ArnoError(names, "a part can stand in a method once", "leave one of them out")
            for role in sorted(part.roles & other.roles):
                raise ArnoError(names, f"each {ROLES[role]}, and a method has room for one", "leave one of them out")


def refuse_rows(parts: Sequence[Part], schedule: Schedule) -> None:
    """Where the engine adds the updates up, nobody may ask for a single one."""
    for part in parts:
        if type(part).receive is not Part.receive or (schedule is not parallel and "schedule" in part.roles):
            raise ArnoError(
                f"engine.reduce=worker with {type(part).__name__}",
                "it looks at every client's update, and workers would return only their sum",
                "use engine.reduce=server",
            )


class Round:
    """What happened in a round, client by client."""

    def __init__(self, t: int) -> None:
        self.t = t
        self.dropped = 0
        self.numbers: dict[str, float] = {}
        self.clients: dict[str, list[Any]] = {}

    def add(self, work: Work, out: Result) -> None:
        """Note a block."""
        window, size = work.windows, out.delta.shape[1]
        row = {
            "client": work.clients.tolist(),
            "count": work.count.tolist(),
            "weight": work.weight.tolist(),
            "steps": work.steps.tolist(),
            "lr": work.lr.tolist(),
            "loss": out.loss.tolist(),
            "uploaded": [size if window is None else len(window[j].index) for j in range(len(work))],
            "seconds": out.seconds.tolist(),
            **{name: column.tolist() for name, column in out.notes.items()},
        }
        for name, values in row.items():
            self.clients.setdefault(name, []).extend(values)


def added_up(weight: Tensor, rows: Mat, d: int) -> tuple[Vec, dict[str, Tensor]]:
    """Σ p_k Δ_k, and for the records each row's norm and its cosine to the others' sum, both without buffers.

    Column by column, as many at a time as a cache holds: memory is read once.
    """

    def of(some: Mat) -> tuple[Vec, Tensor, Tensor]:
        mean = weight @ some
        return mean, some @ mean, some.norm(dim=1)

    found = [of(some) for some in rows[:, :d].split(max(1, CACHED // max(1, len(rows))), 1)]
    mean, dot, norm = found[0]
    if len(found) > 1:
        means, dots, norms = zip(*found, strict=True)
        mean, dot, norm = torch.cat(means), torch.stack(dots).sum(0), torch.stack(norms).norm(dim=0)
    notes = {"delta_norm": norm, "delta_cosine": cosines(dot, weight, mean.norm(), norm)}
    return mean if rows.shape[1] == d else torch.cat([mean, weight @ rows[:, d:]]), notes


def cosines(dot: Tensor, weight: Tensor, length: Tensor, norm: Tensor) -> Tensor:
    """The cosine between each row and the weighted sum of the *other* rows; NaN for a row alone or a zero.

    dot, norm: each row's product with the sum of all, and its norm; length: the norm of that sum.

    >>> rows, weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, -1.0]]), torch.tensor([0.5, 0.25, 0.25])
    >>> mean = weight @ rows
    >>> cosines(rows @ mean, weight, mean.norm(), rows.norm(dim=1))
    tensor([ 1.0000,  0.3162, -0.3162], dtype=torch.float64)
    """
    dot, weight, length, norm = dot.double(), weight.double(), length.double(), norm.double()
    own = weight * norm.square()
    others = (length.square() - weight * (2 * dot - own)).clamp(min=0).sqrt()  # ‖mean − p_k Δ_k‖
    known = (norm > 0) & (others > 1e-2 * weight * norm)  # less is rounding, not direction
    return ((dot - own) / (norm * others)).clamp(-1, 1).where(known, torch.nan)
