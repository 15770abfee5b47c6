"""What the server sends to clients (`Work`) and what they return (`Result`). Corrections are data, not hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .seeds import stream

Vec = Tensor  #: one model, [d]
Mat = Tensor  #: one model per client of a block, [rows, d]

#: A term added to the task's loss: `term(view)` with a `problems.supervised.View` of the batch.
Term = Callable[[Any], Tensor]
#: Computed on the client after training: `probe(learner, job)` → tensors that are sent back with the result.
Probe = Callable[[Any, "Job"], dict[str, Tensor]]


#: Rules that return additional vectors in `Result.extra`.
ANSWERING = frozenset({"apfl", "pfedme", "ala"})


@dataclass(frozen=True)
class SGD:
    """The settings of local training that all clients share."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    shuffle: bool = True
    augment: bool = False


@dataclass(frozen=True)
class Rule:
    """How a client trains: the name of a function in `core/local_rules.py`, and the numbers that it takes."""

    name: str = "sgd"
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """One run of SGD over a client's data; a client with several phases runs them in turn.

    start: a vector of `Work.given`; otherwise the result of the phase before (of the first phase: `Work.start`).
    pulled: whether the proximal term pulls to `Work.start`; otherwise it pulls to the start of the phase.
    epochs, mu: a column of `Work.numbers`; otherwise those of the work.
    moves: the group of coordinates that change (see `Layout.mask`).
    keep: the client keeps the result under this name, in `Result.extra`; it is not part of Δ_k, and what corrects the
        updates (`Work.drift`, `Work.push`) does not act on it.
    """

    start: str = ""
    pulled: bool = False
    epochs: str = ""
    mu: str = ""
    moves: str = "full"
    keep: str = ""


@dataclass(frozen=True)
class SubModel:
    """The part of the model that a client trains: `index` holds its coordinates, `units` how many each group keeps.

    `extract` trains the smaller network made of those units; `mask` trains the full one and moves only those
    coordinates.
    """

    index: Tensor
    units: tuple[tuple[str, int], ...]
    extract: bool = True


@dataclass(frozen=True)
class Job:
    """One client's row of a `Work`: all that a worker needs to train it."""

    round: int
    client: int
    seed: int
    start: Vec
    epochs: int
    batch_size: int
    lr: float
    mu: float
    sgd: SGD
    drift: Vec | None = None
    window: SubModel | None = None
    terms: tuple[Term, ...] = ()
    criterion: Term | None = None
    given: Mapping[str, Vec] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    probe: Probe | None = None
    rule: Rule = Rule()
    phases: tuple[Phase, ...] = ()
    scale: float = 1.0
    push: Vec | None = None
    purpose: str = ""
    anchor: Vec | None = None
    moves: str = "full"
    share: float = 1.0
    received: Vec | None = None

    @property
    def sent(self) -> Vec:
        """The model that the client received, also where a phase starts from another one."""
        return self.start if self.received is None else self.received

    def stream(self, purpose: str, generator: torch.Generator | None = None) -> torch.Generator:
        """This client's random stream of this round; `generator`, if given, is seeded again and returned."""
        return stream(self.seed, self.purpose + purpose, self.round, self.client, generator=generator)


@dataclass(frozen=True)
class Work:
    """A block of clients in round `round`; row j of everything belongs to `clients[j]`.

    weight: p_k; it sums to one over the whole cohort. count: how often a client was drawn; a client drawn twice trains
    once and counts twice. cohort: m, the number of draws.
    drift: rows that are added to every gradient. scale, push: every gradient g becomes scale · g + push.
    terms: added to the task's loss. criterion: replaces the task's loss.
    given, numbers: vectors and numbers per client, by name, that terms, rules and phases read.
    rule, phases: how the client trains. purpose: prefix of its random streams; empty in training rounds.
    on_error: what happens if the training of a client fails: stop, retry (try it again, then stop), drop.
    """

    round: int
    seed: int
    cohort: int
    clients: Tensor
    count: Tensor
    weight: Tensor
    start: Mat
    epochs: Tensor
    batch_size: Tensor
    steps: Tensor
    lr: Tensor
    mu: Tensor
    sgd: SGD
    drift: Mat | None = None
    windows: tuple[SubModel, ...] | None = None
    terms: tuple[Term, ...] = ()
    criterion: Term | None = None
    given: Mapping[str, Mat] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    probe: Probe | None = None
    rule: Rule = Rule()
    phases: tuple[Phase, ...] = ()
    scale: float = 1.0
    push: Mat | None = None
    purpose: str = ""
    on_error: str = "stop"

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def answers(self) -> bool:
        """Whether clients send back or keep more than their update: what a probe, a rule or a phase makes."""
        return self.probe is not None or self.rule.name in ANSWERING or any(phase.keep for phase in self.phases)

    @property
    def share(self) -> Tensor:
        """Each row's part of the plain mean over the cohort: 1/m per draw."""
        return self.count.to(self.weight.dtype) / self.cohort

    def add_drift(self, rows: Mat) -> Work:
        """The same work with `rows` added to every local gradient."""
        return replace(self, drift=rows if self.drift is None else self.drift + rows)

    def masked(self, rows: Mat) -> Mat:
        """`rows` with zeros outside each client's window."""
        if self.windows is None:
            return rows
        out = torch.zeros_like(rows)
        for j, window in enumerate(self.windows):
            out[j, window.index] = rows[j, window.index]
        return out

    def jobs(self) -> Iterator[Job]:
        """Its rows, one by one."""
        numbers = (self.clients, self.epochs, self.batch_size, self.lr, self.mu)
        for j, (client, epochs, batch_size, lr, mu) in enumerate(zip(*(x.tolist() for x in numbers), strict=True)):
            yield Job(
                round=self.round,
                client=client,
                seed=self.seed,
                start=self.start[j],
                epochs=epochs,
                batch_size=batch_size,
                lr=lr,
                mu=mu,
                sgd=self.sgd,
                drift=None if self.drift is None else self.drift[j],
                window=None if self.windows is None else self.windows[j],
                terms=self.terms,
                criterion=self.criterion,
                given={name: rows[j] for name, rows in self.given.items()},
                numbers={name: float(column[j]) for name, column in self.numbers.items()},
                probe=self.probe,
                rule=self.rule,
                phases=self.phases,
                purpose=self.purpose,
                scale=self.scale,
                push=None if self.push is None else self.push[j],
            )

    def rows(self, keep: Tensor) -> Work:
        """The work of some of its rows (an index tensor)."""
        cut: dict[str, Any] = {k: v[keep] for k, v in vars(self).items() if isinstance(v, Tensor)}
        windows = None if self.windows is None else tuple(self.windows[int(j)] for j in keep)
        cut["given"] = {name: rows[keep] for name, rows in self.given.items()}
        cut["numbers"] = {name: column[keep] for name, column in self.numbers.items()}
        return replace(self, **cut, windows=windows)


@dataclass(frozen=True)
class Result:
    """What the clients of a block send back: Δ_k = w_k − start_k, the mean loss over their steps, what the probe made.

    notes: further columns for the records of the clients. unseen: numbers of coordinates, and each client's change of
    them: buffers, which the federation averages, and what stays with the client. These changes are zero in the `delta`
    that parts see. failed: why the training of some rows failed (`Work.on_error` = drop); their numbers are NaN. Parts
    do not see these rows.
    """

    delta: Mat
    loss: Tensor
    seconds: Tensor
    extra: tuple[dict[str, Tensor], ...] = ()
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    unseen: tuple[Tensor, Mat] | None = None
    failed: Mapping[int, str] = field(default_factory=dict)

    def rows(self, keep: Tensor) -> Result:
        """The results of some of the rows, none of which failed."""
        extra = tuple(self.extra[int(j)] for j in keep) if self.extra else ()
        notes = {name: column[keep] for name, column in self.notes.items()}
        unseen = None if self.unseen is None else (self.unseen[0], self.unseen[1][keep])
        return Result(self.delta[keep], self.loss[keep], self.seconds[keep], extra, notes, unseen)

    def trained(self, work: Work) -> Mat:
        """The trained models as the clients hold them, start + Δ, including what is not sent."""
        models = work.start + self.delta
        if self.unseen is not None:
            at, change = self.unseen
            models[:, at] += change
        return models


@dataclass(frozen=True)
class SumResult:
    """The result of a block whose updates the workers add up: Σ p_k Δ_k over the clients whose update is finite.

    norm: ‖Δ_k‖ of every client, NaN where its update is not finite.
    failed: why the training of some rows failed; the sum is without them.
    """

    sum: Vec
    loss: Tensor
    seconds: Tensor
    norm: Tensor
    failed: Mapping[int, str] = field(default_factory=dict)

    def rows(self, keep: Tensor) -> SumResult:
        """The same sum with the records of some of the clients."""
        return replace(self, loss=self.loss[keep], seconds=self.seconds[keep], norm=self.norm[keep], failed={})
