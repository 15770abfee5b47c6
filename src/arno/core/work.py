"""What the server sends to clients (`Work`), and what clients return (`Result`).

Corrections of the local gradient are data in `Work`, not hooks, so that every engine can apply them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .seeds import stream

Vec = Tensor  #: one model, [size]: parameters, then buffers (see `Layout`)
Mat = Tensor  #: one model per client of a block, [rows, size]

#: A term that is added to the task's loss: `term(view)`; the view (`problems.supervised.View`) shows the batch.
Term = Callable[[Any], Tensor]
#: A function that runs on the client after training: `probe(learner, job)` returns tensors for `Result.extra`.
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
    """How a client trains: the name of a rule in `core/local_rules.py`, and the numbers of this rule."""

    name: str = "sgd"
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """One run of SGD over a client's data. A client with several phases runs them one after another.

    start: the name of the vector in `Work.given` from which the phase starts. Empty: the phase starts from the result
        of the previous phase without `keep`; the first phase starts from `Work.start`.
    pulled: if true, the proximal term pulls towards `Work.start`; if false, towards the start of the phase.
    epochs, mu: the name of a column of `Work.numbers`; empty: the epochs and mu of the work.
    moves: the group of coordinates that change (see `Layout.mask`).
    keep: the name under which the client keeps the result, in `Result.extra`. A result that is kept is not part of Δ_k,
        and `Work.drift`, `Work.scale` and `Work.push` do not apply in this phase. Empty: the result is part of Δ_k.
    """

    start: str = ""
    pulled: bool = False
    epochs: str = ""
    mu: str = ""
    moves: str = "full"
    keep: str = ""


@dataclass(frozen=True)
class SubModel:
    """A window: the part of the model that a client trains.

    index: its coordinates. units: how many units each group keeps.
    extract: if true, the client trains the smaller network that consists of these units; if false (mode `mask`), the
        client trains the full network and changes only these coordinates.
    """

    index: Tensor
    units: tuple[tuple[str, int], ...]
    extract: bool = True


@dataclass(frozen=True)
class Job:
    """One client's row of a `Work`: everything that a worker needs to train this client.

    A field with the same name as a field of `Work` is the row of this client. window: its row of `Work.windows`.
    The rules of local training set the following fields.
    anchor: the model towards which the proximal term pulls; None: `start`.
    moves: the group of coordinates that change (see `Layout.mask`).
    sample_share: the share of the client's samples on which it trains.
    received: the model that the server sent, if `start` is another model; None: `start`.
    """

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
    sample_share: float = 1.0
    received: Vec | None = None

    @property
    def sent(self) -> Vec:
        """The model that the client received from the server, even if a phase starts from another model."""
        return self.start if self.received is None else self.received

    def stream(self, purpose: str, generator: torch.Generator | None = None) -> torch.Generator:
        """This client's random stream of this round; `generator`, if given, is seeded again and returned."""
        return stream(self.seed, self.purpose + purpose, self.round, self.client, generator=generator)


@dataclass(frozen=True)
class Work:
    """The work of a block of clients in round `round`; row j of every field belongs to `clients[j]`.

    cohort: m, the number of draws. count: how often a client was drawn; a client that was drawn twice trains once and
        counts twice. weight: p_k; the weights of the whole cohort add up to one.
    start: the models from which the clients start. steps: how many steps of SGD each client takes.
    mu: weights of the proximal term. drift: rows that are added to every gradient. scale, push: every gradient g is
        replaced by scale · g + push.
    windows: the part of the model that each client trains; None: every client trains the whole model.
    terms: functions that are added to the task's loss. criterion: a function that replaces the task's loss.
    given, numbers: vectors and numbers per client, by name, which terms, rules and phases read.
    probe: a function that runs on the client after training. rule, phases: how the clients train.
    purpose: prefix of the names of the random streams; empty in training rounds.
    on_error: what happens if the training of a client fails. stop: the run ends. retry: the client is tried again, then
        the run ends. drop: the round continues without the client.
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
        """Whether clients return more than their update: results of a probe, of a rule or of a phase with `keep`."""
        return self.probe is not None or self.rule.name in ANSWERING or any(phase.keep for phase in self.phases)

    @property
    def share(self) -> Tensor:
        """The weight of each row in the unweighted mean over the cohort: 1/m for each draw of the client."""
        return self.count.to(self.weight.dtype) / self.cohort

    def add_drift(self, rows: Mat) -> Work:
        """The same work with `rows` added to every local gradient."""
        return replace(self, drift=rows if self.drift is None else self.drift + rows)

    def masked(self, rows: Mat) -> Mat:
        """A copy of `rows` that is zero outside each client's window; without windows, `rows`."""
        if self.windows is None:
            return rows
        out = torch.zeros_like(rows)
        for j, window in enumerate(self.windows):
            out[j, window.index] = rows[j, window.index]
        return out

    def jobs(self) -> Iterator[Job]:
        """The rows of this work, one by one."""
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
        """The work of some rows only. keep: the indices of these rows."""
        cut: dict[str, Any] = {k: v[keep] for k, v in vars(self).items() if isinstance(v, Tensor)}
        windows = None if self.windows is None else tuple(self.windows[int(j)] for j in keep)
        cut["given"] = {name: rows[keep] for name, rows in self.given.items()}
        cut["numbers"] = {name: column[keep] for name, column in self.numbers.items()}
        return replace(self, **cut, windows=windows)


@dataclass(frozen=True)
class Result:
    """What the clients of a block return: Δ_k = w_k − start_k, the mean loss over their steps, and further results.

    extra: for each client, the results of its probe, its rule and its phases, by name.
    notes: further columns for the records of the clients.
    hidden: the indices of the coordinates that parts do not see, and each client's change at these coordinates. They
        are the buffers, which the federation averages, and the coordinates that stay with the client. In the `delta`
        that parts see, these changes are zero.
    failed: for each row whose training failed, the reason (only with `Work.on_error` = drop). The numbers of such a row
        are NaN. Parts do not see such rows.
    """

    delta: Mat
    loss: Tensor
    seconds: Tensor
    extra: tuple[dict[str, Tensor], ...] = ()
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    hidden: tuple[Tensor, Mat] | None = None
    failed: Mapping[int, str] = field(default_factory=dict)

    def rows(self, keep: Tensor) -> Result:
        """The results of some rows only. keep: the indices of these rows, of which none failed."""
        extra = tuple(self.extra[int(j)] for j in keep) if self.extra else ()
        notes = {name: column[keep] for name, column in self.notes.items()}
        hidden = None if self.hidden is None else (self.hidden[0], self.hidden[1][keep])
        return Result(self.delta[keep], self.loss[keep], self.seconds[keep], extra, notes, hidden)

    def trained(self, work: Work) -> Mat:
        """The trained models as the clients hold them: start + Δ, including coordinates that are not sent."""
        models = work.start + self.delta
        if self.hidden is not None:
            at, change = self.hidden
            models[:, at] += change
        return models


@dataclass(frozen=True)
class SumResult:
    """The result of a block if the workers add up the updates.

    sum: Σ p_k Δ_k over the clients whose update is finite. An engine may put the sum of all blocks of a round into the
        last block; the sums of the other blocks are then zero.
    norm: ‖Δ_k‖ of every client of this block; NaN if the update is not finite.
    failed: for each row whose training failed, the reason; the sum does not contain these rows.
    """

    sum: Vec
    loss: Tensor
    seconds: Tensor
    norm: Tensor
    failed: Mapping[int, str] = field(default_factory=dict)

    def rows(self, keep: Tensor) -> SumResult:
        """The same sum, with the records of some clients only. keep: the indices of their rows."""
        return replace(self, loss=self.loss[keep], seconds=self.seconds[keep], norm=self.norm[keep], failed={})
