"""Lorenzo: clients train one after another, the best client first; each starts from a weighted mean of newest models.

    F1 = weighted F1 on the balanced validation set
    Aggregate(W, s) = Σ s_i W_i / Σ s_i, or the unweighted mean if all s_i = 0
    round 0, in parallel:  H[k] ← train(W_g, k, E_boot);  S[k] ← F1(H[k]);  W_g ← Aggregate(H, S)
    round t = 1 … T:
        for k by S[k], the largest first:
            start ← Aggregate({W_g} ∪ {C[p]: p before k} ∪ {H[p]: p = k or after}, {F1(W_g)} ∪ {S[p]})
            C[k] ← train(start, k, E_local);  S[k] ← F1(C[k])
        W_g ← Aggregate(C, S);  H ← C
        f ← F1(W_g);  f > best + δ: W_best ← W_g, patience ← 0;  else patience += 1;  stop at patience = P

As in the Gauss–Seidel method, the new models of the clients before k count at once; as in the Jacobi method, the other
clients count with their old models. The mean is kept as a running sum, so a round costs O(K·d) and not O(K²·d). Every
model is scored once: K + 1 models in each round.

Source: "Lorenzo (Quasi-Sequential Federated Learning with Jacobi-Seidel Aggregation)", pseudo-code in two forms,
without and with early stopping, not published (see docs/sources.md). A method of this project.

Deviations: none from the pseudo-code. The pseudo-code leaves three points open. With the score −loss, the weight is
1 / (1 + loss), because a weight must not be negative. For a client that diverged (`on_divergence=drop`), C[k] is the
model from which it started. BatchNorm buffers of W_g are the mean weighted by samples, as in every method here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from ..core.engine import Engine
from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..core.metric import Metric
from ..core.seeds import stream
from ..core.table import refuse_if_too_large
from ..core.work import Mat, Result, Vec, Work
from ..errors import ArnoError, unknown
from ..problems.supervised import Supervised
from . import methods, parts
from .finetune import has_personal_models
from .panels import Chart, HeatMap, Panel, Records, curves_of, headlines, messages, panels

if TYPE_CHECKING:
    import pandas as pd

Order = Literal["score", "random", "reverse", "fixed"]

#: Local SGD of the pseudo-code: E_local = 5, η = 0.01, weight decay 1e-4, no momentum.
DEFAULTS = {"local.epochs": 5, "local.lr": 0.01, "local.weight_decay": 1e-4}


@methods.register(
    "lorenzo",
    family="global",
    paper="Lorenzo: Quasi-Sequential Federated Learning with Jacobi-Seidel Aggregation (pseudo-code, unpublished)",
    formula="one after the other by score: start ← Σ s_i W_i / Σ s_i over the newest models;  W_g ← Σ S_k C_k / Σ S_k",
    defaults=DEFAULTS,
    tune={"bootstrap_epochs": "int(1, 5)"},
)
def lorenzo(
    *,
    bootstrap_epochs: int = 1,
    patience: int | None = 10,
    delta: float = 0.001,
    order: Order = "score",
    metric: str | None = None,
    with_global: bool = True,
    min_batches: float = 2.0,
) -> list[Part]:
    """Clients train one after another, the best client first; each starts from a weighted mean of the newest models.

    Helps: with few clients that have much data, if one good model is more important than parallel work.
    Hurts: in time: clients wait for each other, and every model is scored in every round.

    bootstrap_epochs: E_boot, epochs of round 0 (local.epochs is E_local).
    patience: P, the number of rounds without a better global model after which the run stops; null: it never stops.
    delta: δ; a score is better if it exceeds the best score by more than δ.
    order: the order of training: score (best client first), random, reverse (worst client first), fixed (by id).
    metric: the task's metric with which models are scored on the balanced validation set; null: the task's first metric
        (F1 for classes). If less is better, as for a loss, the weight of a model is 1 / (1 + value).
    with_global: whether the global model is part of the mean from which clients start.
    min_batches: clients with fewer samples than this number of batches are left out.

    >>> lorenzo(patience=3)[0].patience
    3
    """
    return [Lorenzo(bootstrap_epochs, patience, delta, order, metric, with_global, min_batches)]


@parts.register("lorenzo")
@dataclass
class Lorenzo(Part):
    """The history H with its scores S, the order of training, the global mean, early stopping and the best model."""

    bootstrap_epochs: int = 1
    patience: int | None = 10
    delta: float = 0.001
    order: Order = "score"
    metric: str | None = None
    with_global: bool = True
    min_batches: float = 2.0
    roles: ClassVar[frozenset[str]] = frozenset({"order", "mean", "server"})
    first_round: ClassVar[int] = -1
    sequential: ClassVar[bool] = True

    def start(self, fed: Federation) -> None:
        """Choose the clients with enough samples, check the other settings, and create the state."""
        self._score = Score(self.metric, self._checked(fed))
        all_clients = torch.arange(fed.n)
        least = self.min_batches * fed.per_client(fed.local.batch_size, "local.batch_size")[all_clients]
        self._fed, self._clients = fed, all_clients[fed.clients.sizes.cpu() >= least]
        stops = "" if self.patience is None else ", and stops early"
        chosen = "keeps the best one" + stops
        fed.advice.append(f"Lorenzo scores models by {self._score.label} on balanced validation samples; it {chosen}")
        if not len(self._clients):
            raise ArnoError(
                f"no client has {self.min_batches:g} batches (the largest has {int(fed.clients.sizes.max())} samples)",
                "Lorenzo leaves smaller clients out and needs at least one",
                "lower local.batch_size, clients or method.min_batches",
            )
        refuse_if_too_large(2 * len(self._clients), fed.w, None)
        self.H = fed.w.repeat(len(self._clients), 1)
        self.S = torch.zeros(len(self._clients), dtype=torch.float64)
        self.s_g = 0.0
        self.best, self.best_score, self.best_round, self.waited = fed.w.clone(), -inf, 0, 0

    def select(self, ids: Ids, t: int) -> Ids:
        """𝒦, all clients that are large enough."""
        if len(ids) != self._fed.n:
            raise ArnoError(
                f"{len(ids)} of {self._fed.n} clients were selected",
                "Lorenzo trains all clients in every round",
                "set participation=1 and select=uniform",
            )
        return self._clients

    def begin(self, t: int) -> None:
        """Begin the count of scored models at zero."""
        self._evaluations = 0

    def send(self, work: Work) -> Work:
        """Clients train E_boot epochs in round 0."""
        if work.round >= 0:
            return work
        epochs = torch.full_like(work.epochs, self.bootstrap_epochs)
        steps = self._fed.clients.steps(work.clients, epochs, work.batch_size)
        return replace(work, epochs=epochs, steps=steps.to(work.steps))

    def train(self, engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train in parallel in round 0, and one client after another in every other round."""
        return self.bootstrap(engine, works) if self._fed.t < 0 else self.sequential_pass(engine, works)

    def bootstrap(self, engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """H[k] ← train(W_g, k, E_boot);  S[k] ← F1(H[k])."""
        self._fed.watch(f"bootstrap: {len(self._clients)} clients train in parallel")
        trained = [(work, rows(out)) for work, out in engine.train(works)]
        self.H = torch.cat([models(work, out) for work, out in trained])
        self.S = self.scores(self.H)
        alone = torch.tensor([0.0] * len(self.H) + [1.0])
        scores = self.S.split([len(work) for work, _ in trained])
        for (work, out), score in zip(trained, scores, strict=True):
            yield work, noted(out, score, rank=0, score_before=torch.nan, start_weights=alone)

    def sequential_pass(self, engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train one client after another: C replaces H row by row, and every start is the mean of the newest models."""
        w, everyone = self._fed.w, [(work, j) for work in works for j in range(len(work))]
        newest = Mean([*self.H, w], [*self.weights(), self._score.weight(self.s_g) if self.with_global else None])
        for rank, i in enumerate(self.ranking(), 1):
            work, j = everyone[i]
            work = replace(work.rows(torch.tensor([j])), start=newest.value()[None])
            shares, before = newest.shares(), self.S[i].clone()
            known = f"score {self._score.value(float(before)):.4f}"
            names, k = self._fed.problem.client_names, int(work.clients)
            self._fed.watch(
                f"client {k if names is None else names[k]} trains: rank {rank} of {len(everyone)}, {known}"
            )
            [(work, answer)] = engine.train([work])
            out = rows(answer)
            if out.failed:  # H[k] and S[k] stay
                yield work, out
                continue
            C = models(work, out)
            s = self.scores(C)
            newest.exchange(i, self.H[i], C[0], self._score.weight(float(s)))
            self.H[i], self.S[i] = C[0], s[0]
            out.delta[:, self._fed.layout.d :] = (C - w)[:, self._fed.layout.d :]  # buffers: relative to W_g
            yield work, noted(out, s, rank=rank, score_before=before, start_weights=shares)

    def finish(self, t: int, v: Vec) -> Vec:
        """W_g ← Aggregate(C, S)."""
        return Mean([*self.H], self.weights()).value() - self._fed.w

    def score(self, w: Vec, t: int) -> None:
        """f ← F1(W_g). Store a new best model, or count a round without a better one."""
        self.s_g = float(self.scores(w[None]))
        if self.s_g > self.best_score + self.delta:
            self.best, self.best_score, self.best_round = w.clone(), self.s_g, t + 1
            self.waited = 0
        else:
            self.waited += 1

    def record(self) -> dict[str, float]:
        """The score of W_g, the best score, the rounds since the best score, and the number of scored models."""
        name = self._score.name
        scores = {f"balanced_{name}": self.s_g, f"best_{name}": self.best_score}
        values = {key: self._score.value(score) for key, score in scores.items()}
        return values | {"patience": self.waited, "evaluations": self._evaluations}

    def stop(self) -> str:
        """Stop after `patience` rounds without a better global model."""
        return "Early stopping triggered." if self.patience is not None and self.waited >= self.patience else ""

    def best_model(self) -> tuple[Vec, int]:
        """W_best and its round."""
        return self.best, self.best_round

    def final(self, w: Vec) -> dict[str, float]:
        """The scores of W_best, of the last W_g and of every H[k] on the test data."""
        names = ["Best Model", "Global Model", *(f"Client {k}" for k in self._clients.tolist())]
        values = [self._score.value(score) for score in self._evaluate([self.best, w, *self.H], "test")]
        return dict(zip(names, values, strict=True))

    def scores(self, models: Mat) -> Tensor:
        """The score of each model on the balanced validation set; the models are counted."""
        self._evaluations += len(models)
        return torch.tensor(self._evaluate(models, "balanced"), dtype=torch.float64)

    def ranking(self) -> list[int]:
        """The rows of H in the order of training; clients with the same score (up to rounding) are ordered by id."""
        S = [round(score, 12) for score in self.S.tolist()]
        if self.order == "random":
            draw = torch.randperm(len(S), generator=stream(self._fed.seed, "lorenzo/order", self._fed.t))
            return [int(i) for i in draw]
        sign = {"score": -1, "reverse": 1, "fixed": 0}[self.order]
        return sorted(range(len(S)), key=lambda i: sign * S[i])

    def weights(self) -> list[float]:
        """The weight of each row of H in a mean."""
        return [self._score.weight(score) for score in self.S.tolist()]

    def _evaluate(self, models: Iterable[Vec], split: str) -> list[float]:
        return [self._score.of(scores) for scores in self._fed.engine.score(models, split)]

    def _checked(self, fed: Federation) -> Supervised:
        """The problem; an error if Lorenzo cannot work with it or with the settings."""
        if not isinstance(fed.problem, Supervised) or "val" not in fed.problem.splits:
            raise ArnoError("no validation data", "Lorenzo scores models on them", "set data.val above 0, e.g. 0.1")
        if has_personal_models(fed):
            rule = "Lorenzo trains one global model"
            raise ArnoError("Lorenzo with personal models", rule, "leave one of them out")
        if any("rate" in part.roles for part in fed.parts):
            raise ArnoError(
                "Lorenzo with a server learning-rate schedule",
                "its new global model is a mean, not a step of the server",
                "leave the schedule out",
            )
        if fed.server_lr != 1:
            raise ArnoError(
                f"server_lr = {fed.server_lr:g}", "Lorenzo's global model is a mean, not a step", "set server_lr=1"
            )
        if self.bootstrap_epochs < 1 or (self.patience is not None and self.patience < 1) or self.delta < 0:
            given = f"bootstrap_epochs = {self.bootstrap_epochs}, patience = {self.patience}, delta = {self.delta:g}"
            raise ArnoError(
                f"method.{given}",
                "bootstrap_epochs and patience must be at least 1, and delta at least 0",
                "with patience=null the run does not stop early",
            )
        return fed.problem


class Score:
    """The score of a model, which is better if it is larger, and the weight of a model in a mean.

    metric: a metric of the task; `neg_loss` is −loss, an older name of the score that `loss` gives.

    If more is better and the metric cannot be negative, the score and the weight are the value of the metric. For any
    other metric, let d be the distance of its value from its best value: the score is −d, the weight 1 / (1 + d).
    """

    def __init__(self, metric: str | None, problem: Supervised) -> None:
        known = {m.name: m for m in problem.task.metrics}
        self.name = metric or problem.task.metrics[0].name
        wanted = "loss" if self.name == "neg_loss" else self.name
        if wanted not in known:
            raise unknown("method.metric", self.name, known)
        self.metric: Metric = known[wanted]
        self.plain = self.metric.better == "more" and self.metric.low >= 0
        self.ideal = 0.0 if self.plain else self.metric.high if self.metric.better == "more" else self.metric.low
        if not abs(self.ideal) < inf:
            rule = "this metric has no best value, so it gives no weight"
            raise ArnoError(f"method.metric = {self.name}", rule, "choose another metric")
        self.signed = self.plain or self.name == "neg_loss"
        self.label = f"−{self.metric.label}" if self.name == "neg_loss" else self.metric.label

    def of(self, scores: dict[str, float]) -> float:
        """The score of a model, from the values of all metrics."""
        value = scores[self.metric.name]
        return value if self.plain else -abs(value - self.ideal)

    def value(self, score: float) -> float:
        """The value of the metric that belongs to a score; of `neg_loss`, the score itself."""
        if self.signed:
            return score
        return self.ideal - score if self.metric.better == "less" else self.ideal + score

    def weight(self, score: float) -> float:
        """The weight in a mean of a model with this score."""
        return score if self.plain else 1 / (1 - score)


@headlines.register
def _(part: Lorenzo) -> list[str]:
    t = part._fed.t
    return ["--- Bootstrap Round 0 ---" if t < 0 else f"--- Global Iteration {t + 1} ---"]


@messages.register
def _(part: Lorenzo) -> list[str]:
    name, t, value = part._score.label, part._fed.t, part._score.value(part.s_g)
    counted = f"({part._evaluations} evaluations)"
    if t == 0:
        lines = [f"Global Model 0.5: {name}={value:.4f} {counted}"]
    else:
        lines = [f"End of Iteration {t}: Global {name}={value:.4f} {counted}"]
        if part.waited:
            limit = f" Patience: {part.waited} / {part.patience}" if part.patience is not None else ""
            lines.append("No improvement." + limit)
        else:
            lines.append(f"New best {name}. Patience reset.")
    lines += [part.stop()] if part.stop() else []
    if part.stop() or t == part._fed.rounds:
        lines += [
            "--- Final Test Results ---",
            f"Evaluating best model ({name}: {part._score.value(part.best_score):.4f}, round {part.best_round}) "
            "on Test Set...",
        ]
    return lines


@panels.register
def _(part: Lorenzo, run: Records) -> list[Panel]:
    score = part._score
    where = "validation data (balanced if there are classes)"
    text = f"{score.label} of the global model on {where}; it decides which model is the best."
    names = {f"balanced_{score.name}": "global model", f"best_{score.name}": "best so far"}
    about = Metric(score.name, score.label)
    if score.name == score.metric.name:
        about, names[f"test_{score.name}"] = score.metric, "global model on test data"
    curve = Chart.of(about, "Score", text, curves_of(run.rows, names), "round (0: bootstrap)")
    distance = f"−|{score.metric.label} − {score.ideal:g}|" if score.ideal else f"−{score.metric.label}"
    return [*rank_chart(run.clients, score.label if score.plain else distance), curve]


#: The largest number of clients or rounds in a picture; of more, it shows every second, third, …
MOST = 100


def rank_chart(records: pd.DataFrame, name: str) -> list[Panel]:
    """A picture: rows are clients, columns are rounds, colours scores, numbers ranks; empty without records."""
    if "rank" not in records:
        return []
    scores = records.pivot_table(index="client", columns="round", values="score")
    ranks = records.pivot_table(index="client", columns="round", values="rank")
    some = slice(None, None, max(1, -(-len(scores) // MOST))), slice(None, None, max(1, -(-scores.shape[1] // MOST)))
    scores, ranks = scores.iloc[some], ranks.iloc[some]
    names = dict(zip(records["client"], records["name"], strict=True)) if "name" in records else {}
    return [
        HeatMap(
            "Ranks",
            f"The number is the rank of a client (rank 1 trains first), the colour its score after training, "
            f"{name}. In round 0 (bootstrap), all clients train at the same time.",
            scores.to_numpy().tolist(),
            [str(names.get(client, client))[:24] for client in scores.index],
            [str(t) for t in scores.columns],
            "round",
            "client",
            name,
            [["" if rank != rank or rank < 1 else f"{rank:.0f}" for rank in row] for row in ranks.to_numpy()],
        )
    ]


class Mean:
    """Aggregate: Σ s_i W_i / Σ s_i as a running sum, so that replacing one model costs O(d).

    If all s_i are zero, it is the unweighted mean. A model whose weight is None is in neither mean. Whether all weights
    are zero is decided by the weights, not by their sum.

    >>> mean = Mean([torch.tensor([1.0]), torch.tensor([4.0])], [1.0, 2.0])
    >>> mean.value()
    tensor([3.])
    >>> mean.exchange(1, torch.tensor([4.0]), torch.tensor([7.0]), 0.5)
    >>> mean.value()
    tensor([3.])
    """

    def __init__(self, models: Sequence[Vec], weights: Sequence[float | None]) -> None:
        self.like, self.s = models[0], list(weights)
        self.weighted = torch.zeros_like(self.like, dtype=torch.float64)
        self.plain = torch.zeros_like(self.weighted)
        for model, s in zip(models, weights, strict=True):
            if s is not None:
                self.weighted.add_(model, alpha=s)
                self.plain.add_(model)

    def exchange(self, i: int, old: Vec, new: Vec, weight: float) -> None:
        """Replace model i: its weighted sum changes by s' · new − s · old."""
        self.weighted.add_(new, alpha=weight).add_(old, alpha=-(self.s[i] or 0.0))
        self.plain.add_(new).sub_(old)
        self.s[i] = weight

    def shares(self) -> Tensor:
        """The share of each model in the mean."""
        s = torch.tensor([x or 0.0 for x in self.s], dtype=torch.float64)
        s = s if s.any() else torch.tensor([float(x is not None) for x in self.s], dtype=torch.float64)
        return s / s.sum()

    def value(self) -> Vec:
        """The mean."""
        s = [x for x in self.s if x is not None]
        mean = self.weighted / sum(s) if any(s) else self.plain / len(s)
        return mean.to(self.like.dtype)


def rows(out: object) -> Result:
    """The result as rows; an engine that returns sums is refused before the first round."""
    assert isinstance(out, Result)
    return out


def models(work: Work, out: Result) -> Mat:
    """The trained models, start + Δ. If Δ is not finite: the start (the round stops, or drops this client)."""
    fine = torch.isfinite(out.delta.sum(1, keepdim=True))
    return work.start + torch.where(fine, out.delta, 0)


def noted(out: Result, score: Tensor, **columns: float | Tensor) -> Result:
    """The result with further columns for the records of clients. A single number is used for all rows."""
    rows = {name: torch.as_tensor(x).expand(len(score), *torch.as_tensor(x).shape) for name, x in columns.items()}
    return replace(out, notes={**out.notes, "score": score, **rows})
