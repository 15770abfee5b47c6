"""The round: select, send, train, receive, finish. A method acts only in the callbacks that a round calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ArnoError, Diverged
from .average import added_up
from .engine import Engine
from .method_part import Ids, Part, in_order, like, numbers
from .per_client import PerClient, Values
from .problem import Problem
from .serial import Serial
from .table import ClientTable, refuse_if_too_large
from .traffic import traffic
from .work import SGD, Mat, Result, SumResult, Vec, Work

#: The most numbers and the most clients in a block. Because of these limits, memory does not grow with the cohort.
BLOCK, ROWS = 2**24, 128
#: The most epochs, and the most samples of a batch: the steps of a client are 64-bit numbers.
EPOCHS, BATCH = 10**9, 10**15


@dataclass(frozen=True)
class Local:
    """The settings of local training; `epochs`, `batch_size` and `lr` may differ per client and per round."""

    epochs: PerClient = 1
    batch_size: PerClient = 32
    lr: PerClient = 0.05
    lr_decay: float = 1.0
    sgd: SGD = SGD()


class Federation:
    """A server and its clients. Without parts this is FedAvg: w ← w + η_s Σ_{k∈S} p_k Δ_k.

    clients: what the server knows about the clients.
    t: the number of finished rounds; −1 if a part adds a round 0 and this round has not run yet.
    rounds: the number of rounds of the run. cohort: the largest number of clients in a round.
    epochs, batch_size: the values of each client.
    watch: a function that is called with a line about the progress within a round.
    advice: lines that a user should read before the first round.

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
        on_client_error: Literal["stop", "retry", "drop"] = "stop",
        seed: int = 0,
        rounds: int | None = None,
        w: Vec | None = None,
        state: Path | Literal["workers"] | None = None,
    ) -> None:
        self.problem, self.engine, self.parts = problem, engine or Serial(problem), in_order(parts)
        self.clients, self.layout, self.seed = problem.clients, problem.layout, seed
        self.local = local or Local()
        self.weighting, self.server_lr = weighting, server_lr
        self.on_divergence, self.on_client_error = on_divergence, on_client_error
        self.epochs = self.per_client(self.local.epochs, "local.epochs", least=1, most=EPOCHS, whole=True)
        self.batch_size = self.per_client(self.local.batch_size, "local.batch_size", least=1, most=BATCH, whole=True)
        self._lr = self.per_client(self.local.lr, "local.lr", above=0)
        problem.check_batches(self.batch_size)
        self.w = (problem.init(seed) if w is None else w).to(problem.device, problem.dtype).clone()
        self.t, self.rounds = min((part.first_round for part in self.parts), default=0), rounds
        self.cohort = min((part.cohort(self.n) for part in self.parts), default=self.n)
        self._state = state  # where client tables are: in this folder, in the workers, or (None) in memory
        self.watch: Callable[[str], None] = lambda line: None
        self.advice: list[str] = []
        self._order = next((part for part in self.parts if "order" in part.roles), Part())
        self._personal = next((part for part in self.parts if "personal" in part.roles), None)
        if self._personal is not None and not problem.tests_clients:
            self.advice.append("personal models are not scored: set data.client_test=0.2 to keep test samples for them")
        for part in self.parts:
            part.start(self)
        masks = [mask for part in self.parts if (mask := part.private()) is not None]
        self._private = torch.stack(masks).any(0).to(self.w.device) if masks else None
        hidden = torch.arange(self.layout.size, device=self.w.device) >= self.layout.d
        if self._private is not None:  # coordinates that stay with the clients are in no mean, momentum or control
            hidden |= self._private
        self._hidden = hidden.nonzero()[:, 0]  # the coordinates whose changes parts do not see
        self.advice += problem.advice(self)
        if self.engine.sums:
            refuse_rows(self.parts)
        if on_client_error == "drop":
            refuse_drops(self.parts)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return self.clients.n

    def begin_at(self, w: Vec, t: int) -> None:
        """Before the first round: set the model and the number of finished rounds, and start all parts again."""
        self.w, self.t = w.to(self.w.device, self.w.dtype), t
        said = list(self.advice)
        for part in self.parts:
            part.start(self)
        self.advice = said

    def traffic(self, work: Work, out: Result | SumResult | None = None) -> tuple[list[int], list[int]]:
        """How many numbers each client of a block downloads, and how many it uploads."""
        return traffic(self.layout, self.parts, self._private, work, out)

    def round(self) -> Round:
        """One round: select, send, train, receive, finish. Returns what a run records of it."""
        t, record = self.t, Round(self.t)
        ids: Ids = range(self.n)
        for part in self.parts:
            ids = part.select(ids, t)
        if len(ids) == 0:  # no client takes part: the model does not change
            self.t += 1
            return record
        for part in self.parts:
            part.begin(t)
        v, tail = torch.zeros_like(self.w), torch.zeros_like(self.w[self.layout.d :])
        for work, out in self._order.train(self.engine, self.blocks(ids, t)):
            work, out = self._without_failed(work, out, record)
            # An empty block is skipped. An empty SumResult is not: its sum can hold the updates of other blocks.
            if isinstance(out, Result) and not len(work):
                continue
            work, out, dv = self._added_up(work, out, record)
            tail += dv[self.layout.d :]
            dv[self._hidden] = 0
            record.add(work, out, *self.traffic(work, out))
            if isinstance(out, Result):
                if len(self._hidden):
                    out = replace(out, hidden=(self._hidden, out.delta[:, self._hidden]))
                    out.delta[:, self._hidden] = 0
                for part in self.parts:
                    dv = like(part, "receive", part.receive(work, out, dv), dv)
            v += dv
        if record.failures and not record.clients.get("client"):  # all clients failed: the model does not change
            self.t += 1
            return record
        for part in self.parts:
            v = like(part, "finish", part.finish(t, v), v)
        step = self.server_lr * v
        step[self.layout.d :] = tail  # buffers are averaged; no part changes them
        if self._private is not None:
            step[self._private] = 0
        self.w = self.w + step
        for part in self.parts:
            part.score(self.w, t)
            record.numbers.update(numbers(part))
        self.t += 1
        return record

    def blocks(self, ids: Ids, t: int) -> Iterator[Work]:
        """The work of the cohort, block by block. Every part may change each block."""
        for work in self.plain_blocks(ids, t):
            for part in self.parts:
                work = part.send(work)
            yield work

    def plain_blocks(self, ids: Ids, t: int, purpose: str = "") -> Iterator[Work]:
        """Blocks of plain SGD from the current model, not changed by parts. purpose: prefix of the random streams."""
        clients, count = torch.unique(torch.as_tensor(ids, dtype=torch.int64), return_counts=True)
        weight = count.double() * (self.clients.sizes[clients].cpu() if self.weighting == "samples" else 1)
        weight = weight / weight.sum()
        m, rows = int(count.sum()), max(1, min(ROWS, BLOCK // self.layout.size))
        for c, n, p in zip(clients.split(rows), count.split(rows), weight.split(rows), strict=True):
            epochs, batch_size = self.epochs.at(c, t).long(), self.batch_size.at(c, t).long()
            yield Work(
                round=t,
                seed=self.seed,
                cohort=m,
                clients=c,
                count=self._here(n, torch.int64),
                weight=self._here(p),
                start=self.w.expand(len(c), -1),
                epochs=epochs,
                batch_size=batch_size,
                steps=self._here(self.clients.steps(c, epochs, batch_size), torch.int64),
                lr=self._here(self._lr.at(c, t) * self.local.lr_decay ** max(t, 0)),
                mu=self._here(torch.zeros(len(c))),
                sgd=self.local.sgd,
                purpose=purpose,
                on_error=self.on_client_error,
            )

    def personal(self, clients: Tensor) -> Mat:
        """The model that each of these clients would use: its personal model, or the current model if it has none."""
        return self.w.expand(len(clients), -1) if self._personal is None else self._personal.personal(clients)

    def own_tallies(self) -> dict[str, Tensor]:
        """Statistics on every client's own test samples, [N, …], by name; empty without such samples.

        own: statistics of the global model. personal: statistics of the personal models, if the method has them.
        """
        w = self.evaluated()
        tallies = self.problem.own_tallies(lambda clients: w.expand(len(clients), -1))
        if tallies is None:
            return {}
        if self._personal is None:
            return {"own": tallies}
        mine = self.problem.own_tallies(self.personal)
        assert mine is not None
        return {"own": tallies, "personal": mine}

    def own_scores(self, tallies: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Scores on the clients' own test samples, of the global model and of personal models; empty without them."""
        found = self.own_tallies() if tallies is None else tallies
        row: dict[str, float] = {}
        for prefix, rows in found.items():
            row |= self.problem.own_summary(rows, personal=prefix == "personal")
        return row

    def evaluated(self) -> Vec:
        """The model that is scored: the current model, unless a part replaces it."""
        w = self.w
        for part in self.parts:
            w = part.evaluated(w)
        return w

    def stopped(self) -> bool:
        """Whether a part ends the run before its last round."""
        return any(part.stop() for part in self.parts)

    def per_client(self, spec: PerClient, name: str, **rules: Any) -> Values:
        """The values of a hyper-parameter that may differ per client and per round; it has its own random stream."""
        return Values(spec, self.n, seed=self.seed, name=name, **rules)

    def table(self, initial: Vec | None = None) -> ClientTable:
        """A table with one row per client. If the table cannot fit, an error is raised before it is allocated.

        A row has the shape of the model and is zero until it is written. With `initial`, a row has the shape of
        `initial` and equals `initial` until it is written.
        """
        like = self.w if initial is None else initial
        seen = self.n if self.rounds is None else min(self.n, self.cohort * self.rounds)
        if self._state == "workers" and initial is None:
            return self.engine.table(self.n, seen, self.w)
        if self._state == "workers":
            rule = "the client rows of this method begin at the model, and workers hold only rows that begin at zero"
            raise ArnoError("state=workers", rule, "use state=memory or state=disk")
        refuse_if_too_large(seen, like, self._state)
        return ClientTable(self.n, like, self._state, initial)

    def state(self) -> dict[str, Any]:
        """Everything that changes from round to round: tensors, client tables and plain numbers, by name."""
        state: dict[str, Any] = {"w": self.w, "t": self.t}
        for part in self.parts:
            state |= {f"{type(part).__name__}.{name}": value for name, value in part.state().items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; each table is given as its dictionary of tensors."""
        state = {unnumbered(name): value for name, value in state.items()}
        mine = self.state()
        if mine.keys() != state.keys():
            odd = ", ".join(sorted(mine.keys() ^ state.keys()))
            rule = f"only one of the checkpoint and the method has {odd}"
            raise ArnoError("this checkpoint belongs to another method", rule, "resume it with its own config")
        parts = {type(part).__name__: part for part in self.parts}
        for name, value in state.items():
            owner: Any = self
            if "." in name:
                kind, name = name.split(".", 1)
                owner = parts[kind]
            if isinstance(value, Tensor):
                setattr(owner, name, value.to(self.w.device))
            elif isinstance(value, dict):
                getattr(owner, name).restore(value)
            else:
                setattr(owner, name, value)

    def _here(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return x.to(self.w.device, dtype or self.w.dtype)

    def _without_failed(self, work: Work, out: Result | SumResult, record: Round) -> tuple[Work, Result | SumResult]:
        """Remove the rows whose training failed, and record them."""
        if not out.failed:
            return work, out
        record.dropped += len(out.failed)
        record.failures += [out.failed[j] for j in sorted(out.failed)]
        keep = torch.tensor([j for j in range(len(work)) if j not in out.failed], dtype=torch.int64)
        return work.rows(keep), out.rows(keep)

    def _added_up(self, work: Work, out: Result | SumResult, record: Round) -> tuple[Work, Result | SumResult, Vec]:
        """Σ p_k Δ_k of a block, and the norms of updates. Updates that are not finite stop the run or are dropped."""
        if isinstance(out, SumResult):
            norm, dv = out.norm, out.sum
            fine = torch.isfinite(norm)
        else:
            dv, notes = added_up(work.weight, out.delta, self.layout.d)
            out = replace(out, notes={**out.notes, **notes})
            # A finite norm means finite parameters (a norm that overflows is refused, too). Buffers are not in it.
            fine = torch.isfinite(notes["delta_norm"]) & torch.isfinite(out.delta[:, self.layout.d :].sum(1))
        if fine.all():
            return work, out, dv
        self._refuse_divergence(work, fine)
        record.dropped += int((~fine).sum())
        keep = fine.nonzero()[:, 0].cpu()
        work, out = work.rows(keep), out.rows(keep)
        if isinstance(out, SumResult):  # the sum of the workers does not contain those clients
            return work, out, dv
        return self._added_up(work, out, record)

    def _refuse_divergence(self, work: Work, fine: Tensor) -> None:
        """Raise an error about the clients whose update is not finite, unless `on_divergence=drop`."""
        if self.on_divergence == "stop":
            known = self.problem.client_names
            names = ", ".join(str(k) if known is None else known[k] for k in work.clients[~fine.cpu()].tolist())
            raise Diverged(
                f"client {names} diverged in round {work.round + 1}",
                "its update holds NaN or Inf",
                "lower local.lr, set local.clip, or use on_divergence=drop",
            )


def unnumbered(name: str) -> str:
    """The name of a part's state without the number of the part, with which names began before release 0.2.

    >>> unnumbered("1.Scaffold.c"), unnumbered("Scaffold.c"), unnumbered("w")
    ('Scaffold.c', 'Scaffold.c', 'w')
    """
    number, _, rest = name.partition(".")
    return rest if number.isdigit() else name


def refuse_rows(parts: Sequence[Part]) -> None:
    """Refuse parts that read the update of a single client; the engine returns only sums of updates."""
    for part in parts:
        if type(part).receive is not Part.receive or part.roles & {"order", "personal"}:
            raise ArnoError(
                f"engine.reduce=worker with {type(part).__name__}",
                "it reads every client's update, and workers would return only their sum",
                "use engine.reduce=server",
            )


def refuse_drops(parts: Sequence[Part]) -> None:
    """Refuse parts that need every client of the cohort."""
    for part in parts:
        if not part.drops:
            raise ArnoError(
                f"on_client_error=drop with {type(part).__name__}",
                "it needs every client of the cohort",
                "use on_client_error=retry or stop",
            )


class Round:
    """The record of a round.

    clients: columns with one entry per client. numbers: what parts record.
    dropped: how many clients were left out. failures: one reason per client whose training failed.
    """

    def __init__(self, t: int) -> None:
        self.t = t
        self.dropped = 0
        self.failures: list[str] = []
        self.numbers: dict[str, float] = {}
        self.clients: dict[str, list[Any]] = {}

    def add(self, work: Work, out: Result | SumResult, downloaded: list[int], uploaded: list[int]) -> None:
        """Record a block, and how many numbers each of its clients received and sent."""
        row = {
            "client": work.clients.tolist(),
            "count": work.count.tolist(),
            "weight": work.weight.tolist(),
            "steps": work.steps.tolist(),
            "lr": work.lr.tolist(),
            "loss": out.loss.tolist(),
            "downloaded": downloaded,
            "uploaded": uploaded,
            "seconds": out.seconds.tolist(),
        }
        if isinstance(out, SumResult):
            row |= {"delta_norm": out.norm.tolist(), "delta_cosine": [float("nan")] * len(work)}
        else:
            row |= {name: column.tolist() for name, column in out.notes.items()}
        for name, values in row.items():
            self.clients.setdefault(name, []).extend(values)
