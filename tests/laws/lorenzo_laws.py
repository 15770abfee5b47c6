"""The laws of Lorenzo: it is a literal loop over its pseudo-code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from small import same
from torch import Tensor

from arno.core.federation import Federation, Local
from arno.core.local_rules import train
from arno.core.work import SGD, Job
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods.lorenzo import Lorenzo, Mean
from arno.methods.scaffold import Scaffold
from arno.models.linear import MLP
from arno.problems.supervised import Supervised
from arno.tasks.classification import Classification

E_BOOT, E_LOCAL, BATCH, LR, DECAY = 2, 3, 4, 0.1, 1e-3
torch.set_num_threads(1)


def problem(sizes: tuple[int, ...] = (9, 14, 8, 20)) -> Supervised:
    g = torch.Generator().manual_seed(11)
    centres = 1.5 * torch.randn(3, 5, generator=g, dtype=torch.float64)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (n,), generator=g)
        return centres[y] + torch.randn(n, 5, generator=g, dtype=torch.float64), y

    x, y = draw(sum(sizes))
    y = torch.where(torch.rand(len(y), generator=g) < 0.5, y, torch.arange(len(y)) * 3 // len(y))  # clients differ
    return Supervised(
        x,
        y,
        Partition(torch.arange(len(x)), torch.tensor([0, *sizes]).cumsum(0)),
        lambda: MLP(5, (6,), 3, "tanh"),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"val": draw(45), "test": draw(30)},
        task=Classification(3),
        dtype=torch.float64,
    )


LOCAL = Local(epochs=E_LOCAL, batch_size=BATCH, lr=LR, sgd=SGD(weight_decay=DECAY, shuffle=False))


def federation(data: Supervised, *more: Any, **settings: Any) -> tuple[Federation, Lorenzo]:
    part = Lorenzo(**{"bootstrap_epochs": E_BOOT, "patience": None, **settings})
    return Federation(data, [part, *more], local=LOCAL), part


def written_out(data: Supervised, rounds: int, delta: float = 0.001, patience: int | None = None) -> Iterator[Any]:
    """The pseudo-code, line by line, every sum written out. Yields (W_g, order, scores, best, patience)."""

    def trained(w: Tensor, k: int, epochs: int) -> Tensor:
        job = Job(0, k, 0, w, epochs, BATCH, LR, 0.0, LOCAL.sgd)
        train(data.learner(), job, delta := torch.empty_like(w))
        return w + delta

    def f1(w: Tensor) -> float:
        return data.scores(data.total(w, "balanced"))["f1"]

    def aggregate(models: list[Tensor], scores: list[float]) -> Tensor:
        if all(s == 0 for s in scores):
            scores = [1.0] * len(models)
        return sum((s * w for s, w in zip(scores, models, strict=True)), torch.zeros_like(models[0])) / sum(scores)

    K = range(data.clients.n)
    W = data.init(0)
    H = {k: trained(W, k, E_BOOT) for k in K}
    S = {k: f1(H[k]) for k in K}
    W = aggregate([H[k] for k in K], [S[k] for k in K])
    best, best_W, waited = f1(W), W, 0
    yield W, [*K], S, best_W, waited
    for _ in range(rounds):
        S = {k: f1(H[k]) for k in K}
        order = sorted(K, key=lambda k: (-round(S[k], 12), k))
        s_g, C = f1(W), {}
        for k in order:
            models, scores = [W], [s_g]
            for p in order:
                models.append(C.get(p, H[p]))
                scores.append(S[p])
            C[k] = trained(aggregate(models, scores), k, E_LOCAL)
            S[k] = f1(C[k])
        W, H = aggregate([C[k] for k in K], [S[k] for k in K]), C
        f = f1(W)
        if f > best + delta:
            best, best_W, waited = f, W, 0
        else:
            waited += 1
        yield W, order, dict(S), best_W, waited
        if patience is not None and waited >= patience:
            return


def law_it_is_the_pseudo_code() -> None:
    data = problem()
    fed, part = federation(data)
    for W, order, S, best, waited in written_out(data, 5):
        record = fed.round()
        same(fed.w, W)
        same(part.S, torch.tensor([S[k] for k in range(data.clients.n)], dtype=torch.float64))
        same(part.best, best)
        assert record.clients["client"] == order
        assert part.waited == waited


def law_it_stops_when_patience_is_out() -> None:
    for delta, patience, stop in ((0.02, 2, 4), (0.001, 3, 8)):  # a gain below δ does not count; a larger one resets
        data = problem()
        expected = list(written_out(data, stop + 4, delta, patience))
        assert len(expected) == stop + 1
        fed, part = federation(data, patience=patience, delta=delta)
        while not part.stop() and fed.t < stop + 4:
            fed.round()
        assert fed.t == stop
        same(part.best, expected[-1][3])


def law_one_client_trains_on_from_where_it_was() -> None:
    data = problem((24,))
    fed, _ = federation(data)
    w = data.init(0)
    for epochs in (E_BOOT, E_LOCAL, E_LOCAL):
        fed.round()
        train(data.learner(), Job(0, 0, 0, w, epochs, BATCH, LR, 0.0, LOCAL.sgd), delta := torch.empty_like(w))
        w = w + delta
        same(fed.w, w)


def law_scaffolds_controls_are_mean_gradients() -> None:
    """c_k is the mean gradient of client k's own last pass, bootstrap included, whatever it started from."""
    data, control = problem(), Scaffold()
    fed, part = federation(data, control)
    for epochs in (E_BOOT, E_LOCAL):
        c, seen = control.c.clone(), []
        before = control.ck[torch.arange(data.clients.n)]
        order = part.train

        def watched(engine: Any, works: Any, pairs: Any = seen, inner: Any = order) -> Any:
            for work, out in inner(engine, works):
                pairs.append((work, out))
                yield work, out

        part.train = watched  # type: ignore[method-assign]
        fed.round()
        part.train = order  # type: ignore[method-assign]
        for work, out in seen:
            for j, k in enumerate(work.clients.tolist()):
                steps = epochs * -(-int(data.clients.sizes[k]) // BATCH)
                same(control.ck[torch.tensor([k])][0], before[k] - c - out.delta[j] / (steps * LR))
                same(part.H[k], work.start[j] + out.delta[j])


def law_all_scores_zero_is_the_plain_mean() -> None:
    models = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = Mean(list(models), [0.9, 0.3, 1.0, 0.1, 0.7])
    newer = models + 1
    for i in range(5):
        mean.exchange(i, models[i], newer[i], 0.0)
    same(mean.value(), newer.mean(0))
