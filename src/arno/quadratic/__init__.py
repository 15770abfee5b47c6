"""Fast simulations of FedAvg with client selection on random quadratics.

    F_k(w) = ½ wᵀH_k w − e_kᵀw + ½ e_kᵀH_k⁻¹e_k,   F = Σ p_k F_k
    round:  S ← m selected clients;  client k takes τ gradient steps from w̄, in closed form
            w_k = w̄ − G_k (H_k w̄ − e_k),   G_k = η Σ_{i<τ} (I − ηH_k)^i;   w̄ ← (1/m) Σ_{k∈S} w_k

The trajectory is that of `arno run problem=quadratic`: the same instance, the same cohorts, equal up to rounding. A
test compares both round by round. With numba (`pip install 'arno[fast]'`) compiled code computes the rounds. Without
numba, NumPy computes them: if the selection does not depend on w, by one associative scan over all rounds; otherwise
round by round, for all runs of a sweep at once. Nothing in this package imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from ..core.metric import Metric
from ..core.seeds import key, numpy_stream
from ..core.selection_draws import candidates_size, cohort_size, race, shrunk, uniforms
from ..errors import ArnoError, unknown

Array = np.ndarray
#: The scores that a round on quadratics records.
METRICS = (
    Metric("gap", "F(w) − F(w*)", "less", low=0, log=True),
    Metric("distance", "‖w − w*‖", "less", low=0, log=True),
)
SELTYPES = ("rand", "uniform", "powd", "cpowd", "rpowd", "adapowd", "roundrobin")


@dataclass(frozen=True)
class Instance:
    """The numbers of a problem: curvatures h [K] or [K, dim, dim], linear terms e, shares p, the start w0."""

    h: Array
    e: Array
    p: Array
    w0: Array


def draw(clients: int, dim: int, alpha: float, spd: bool, seed: int) -> Instance:
    """e_k ~ U(0,100)^dim, h_k ~ U(0,9), p from the power law with exponent alpha, w⁰ ~ 100·N(0,I).

    >>> instance = draw(30, 5, 3.0, False, 0)
    >>> instance.h.shape, instance.e.shape, round(float(instance.p.sum()), 6), bool((instance.h > 0).all())
    ((30,), (30, 5), 1.0, True)
    """
    for name, value in (("dim", dim), ("alpha", alpha), ("clients", clients)):
        if not value > 0:
            raise ArnoError(f"{name} = {value:g}", "it must be positive", f"change {name}")
    rng = numpy_stream(seed, "quadratic")
    e = rng.uniform(0, 100, (clients, dim))
    h = 9 * (1 - rng.random(clients))  # in (0, 9], so that every client has a minimum
    p = rng.power(alpha, clients)
    if not p.sum() > 0:
        raise ArnoError(f"alpha = {alpha:g}", "it is so small that all shares are 0", "try alpha=3")
    w0 = 100 * rng.standard_normal(dim)
    if spd:
        turn = np.linalg.qr(rng.standard_normal((clients, dim, dim)))[0]
        h = (turn * (9 * (1 - rng.random((clients, 1, dim))))) @ turn.transpose(0, 2, 1)
    return Instance(h, e, p / p.sum(), w0)


def too_fast(lr: float, sharpest: float) -> list[str]:
    """A warning if gradient descent on the client with the largest curvature diverges.

    >>> too_fast(0.1, 9.0), len(too_fast(0.3, 9.0))
    ([], 1)
    """
    if lr < 2 / sharpest:
        return []
    return [
        f"warning: learning rate {lr:g} is not below 2/max h = {2 / sharpest:.4g}: "
        "gradient descent diverges on the client with the largest curvature"
    ]


@dataclass(frozen=True)
class Study:
    """The settings of one simulation, with the names of the power-of-choice study.

    num_users: K. frac: C; m = max(int(C·K), 1). powd: d, the number of candidates. alpha: the exponent of the power law
    of the shares. lr, le: learning rate and number of local steps. epochs: rounds. seltype: the selection. dim: the
    number of unknowns. seed: the seed of all random numbers. spd: whether the H_k are full matrices. until: the share
    of the run after which adapowd's d equals m. rho: whether to estimate the skew of the selection, from `samples`
    selections per round.

    >>> run = simulate(Study(seltype="powd", powd=9, epochs=500))
    >>> bool(run.distance[-1] < run.distance[0]), run.chosen.shape, int(run.picks.sum())
    (True, (500, 3), 1500)
    """

    num_users: int = 30
    frac: float = 0.1
    powd: int | None = None
    alpha: float = 3.0
    lr: float = 2e-5
    le: int = 2
    epochs: int = 15000
    seltype: str = "rand"
    dim: int = 5
    seed: int = 0
    spd: bool = False
    until: float = 0.5
    rho: bool = False
    samples: int = 100

    def __post_init__(self) -> None:
        if self.seltype not in SELTYPES:
            raise unknown("seltype", self.seltype, SELTYPES)
        for name in ("num_users", "dim", "le", "epochs", "samples"):
            if getattr(self, name) < 1:
                raise ArnoError(f"{name} = {getattr(self, name)}", "it must be at least 1", f"change {name}")
        if not 0 < self.lr < np.inf:
            raise ArnoError(f"lr = {self.lr:g}", "it must be positive", "try lr=2e-5")
        if not 0 < self.until <= 1:
            raise ArnoError(f"until = {self.until:g}", "it must be above 0 and at most 1", "try until=1")
        _ = self.d

    @property
    def m(self) -> int:
        """The number of clients in a round."""
        return cohort_size(self.frac, self.num_users)

    @property
    def d(self) -> int:
        """The number of candidates in the first round."""
        asked = self.num_users if self.seltype == "adapowd" and self.powd is None else self.powd
        return candidates_size(asked if "powd" in self.seltype else None, self.m, self.num_users, "powd")

    @property
    def label(self) -> str:
        """The selection and its number of candidates, in words."""
        return f"{self.seltype} d={self.d}" if "powd" in self.seltype else self.seltype

    def candidates(self) -> Array:
        """The number of candidates in every round."""
        if self.seltype != "adapowd":
            return np.full(self.epochs, self.d)
        return shrunk(self.d, self.m, self.epochs, self.until)

    def config(self) -> dict[str, Any]:
        """The configuration with which `arno run` computes the same run."""
        select: dict[str, Any] = {"kind": self.seltype}
        select |= {"d": self.d} if "powd" in self.seltype else {}
        select |= {"until": self.until} if self.seltype == "adapowd" else {}
        return {
            "method": {"kind": "fedavg"},
            "problem": {"kind": "quadratic", "dim": self.dim, "alpha": self.alpha, "spd": self.spd},
            "select": select,
            "clients": self.num_users,
            "participation": self.frac,
            "rounds": self.epochs,
            "weighting": "uniform",
            "local": {"epochs": self.le, "lr": self.lr},
            "seed": self.seed,
            "dtype": "float64",
        }


@dataclass(frozen=True)
class Setting:
    """The numbers that the rounds need, computed once from a study."""

    study: Study
    instance: Instance
    step: Array  # G_k H_k: [K] or [K, dim, dim]
    pull: Array  # G_k e_k: [K, dim]
    optima: Array  # w*_k
    reported: Array  # [K]: the mean of F_k over the local steps is reported · F_k(w̄); only if H_k = h_k·I
    curvature: Array  # Σ p_k H_k: [dim, dim]
    star: Array
    star_losses: Array

    @classmethod
    def of(cls, study: Study, instance: Instance | None = None) -> Setting:
        """Draw the instance, if it is not given, and compute the other numbers."""
        q = instance or draw(study.num_users, study.dim, study.alpha, study.spd, study.seed)
        eye = np.eye(study.dim)
        if q.h.ndim == 1:
            shrink = 1 - study.lr * q.h
            powers = shrink[:, None] ** np.arange(study.le)
            gain = study.lr * powers.sum(1)
            step, pull, optima = gain * q.h, gain[:, None] * q.e, q.e / q.h[:, None]
            reported = (powers**2).mean(1)
            curvature = (q.p @ q.h) * eye
        else:
            matrix = eye - study.lr * q.h
            gain, power = np.zeros_like(q.h), np.broadcast_to(eye, q.h.shape)
            for _ in range(study.le):
                gain, power = gain + study.lr * power, power @ matrix
            step, pull = gain @ q.h, np.einsum("kij,kj->ki", gain, q.e)
            optima, reported = np.linalg.solve(q.h, q.e[..., None])[..., 0], np.zeros(study.num_users)
            curvature = np.einsum("k,kij->ij", q.p, q.h)
        star = np.linalg.solve(curvature, q.p @ q.e)
        return cls(study, q, step, pull, optima, reported, curvature, star, losses(q.h, optima, star))

    @cached_property
    def base(self) -> int:
        """The key of the random numbers of the selection, as in `client_selection/`."""
        return key(self.study.seed, "select")

    @cached_property
    def rho_base(self) -> int:
        """The key of the random numbers of the selections that estimate ρ."""
        return key(self.study.seed, "select/rho")

    def cohorts(self) -> Array | None:
        """The cohorts of all rounds if they do not depend on the model, else None."""
        s = self.study
        if s.seltype == "rand":
            cumulated = np.cumsum(self.instance.p)
            u = uniforms(self.base, np.arange(s.epochs), s.m) * cumulated[-1]
            drawn: Array = np.searchsorted(cumulated, u, side="right").clip(max=s.num_users - 1)
            return drawn
        if s.seltype == "roundrobin":
            return (np.arange(s.m) + np.arange(s.epochs)[:, None] * s.m) % s.num_users
        if s.seltype == "uniform":
            if s.m >= s.num_users:
                return np.tile(np.arange(s.num_users), (s.epochs, 1))
            streams = (numpy_stream(s.seed, "select", t) for t in range(s.epochs))
            return np.array([rng.choice(s.num_users, s.m, replace=False) for rng in streams])
        return None


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation. Row t of `path` is w̄ before round t; `chosen` holds the cohorts."""

    study: Study
    instance: Instance
    star: Array
    path: Array
    chosen: Array
    gap: Array  # F(w̄) − F(w*) after every round
    distance: Array  # ‖w̄ − w*‖ after every round
    evaluations: Array  # how many losses the selection asked for, per round
    rho: Array  # ρ(S(w̄), w̄) before every round; empty without `Study.rho`
    rho_star: Array  # ρ(S(w̄), w*)

    @property
    def picks(self) -> Array:
        """How often each client was selected."""
        return np.bincount(self.chosen.ravel(), minlength=self.study.num_users)

    @property
    def skew(self) -> dict[str, float]:
        """ρ̄ = min ρ(S(w), w) and ρ̃/ρ̄ with ρ̃ = max ρ(S(w), w*), over the visited w."""
        if not len(self.rho):
            return {}
        return {"rho_bar": float(self.rho.min()), "rho_ratio": float(self.rho_star.max() / self.rho.min())}


Backend = Literal["auto", "numba", "numpy"]


def simulate(
    study: Study, *, cohorts: Array | None = None, instance: Instance | None = None, backend: Backend = "auto"
) -> Simulation:
    """Run one study. cohorts: [rounds, m], in place of its selection. instance: in place of a drawn problem."""
    return sweep([study], cohorts=cohorts, instance=instance, backend=backend)[0]


def sweep(
    studies: Sequence[Study],
    *,
    cohorts: Array | None = None,
    instance: Instance | None = None,
    backend: Backend = "auto",
    jobs: int | None = None,
) -> list[Simulation]:
    """Run many studies: by compiled code, one study per core; or by NumPy, all studies of the same shape at once."""
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverges is refused later, with its round
        settings = [Setting.of(study, instance) for study in studies]
    if backend == "auto":
        scanned = len(studies) == 1 and not studies[0].rho and "powd" not in studies[0].seltype
        # A scan takes less time than the import of numba.
        backend = "numba" if find_spec("numba") and not scanned else "numpy"
    if backend == "numpy":
        with np.errstate(over="ignore", invalid="ignore"):
            return _by_numpy(settings, cohorts)
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(lambda setting: _by_numba(setting, cohorts), settings))


KINDS = {"rand": 1, "powd": 2, "cpowd": 2, "adapowd": 2, "rpowd": 3}


def _by_numba(setting: Setting, cohorts: Array | None) -> Simulation:
    return _finish(setting, *compiled(setting, cohorts))


def compiled(setting: Setting, cohorts: Array | None = None) -> tuple[Array, Array, Array, Array]:
    """The rounds by compiled code: the path, the cohorts, ρ(S(w̄), w̄) and ρ(S(w̄), w*)."""
    from . import kernel

    study, q = setting.study, setting.instance
    forced = np.zeros((0, study.m), np.int64)
    if cohorts is not None:
        forced = cohorts.astype(np.int64)
    elif study.seltype in ("uniform", "roundrobin"):
        found = setting.cohorts()
        assert found is not None
        forced = found.astype(np.int64)
    cumulated = np.cumsum(q.p)
    out: tuple[Array, Array, Array, Array] = kernel.simulate(
        0 if len(forced) else KINDS[study.seltype],
        KINDS.get(study.seltype, 0),
        forced,
        study.epochs,
        forced.shape[1],
        study.candidates(),
        q.w0,
        setting.step,
        setting.pull,
        q.h,
        setting.optima,
        setting.reported,
        q.p,
        cumulated,
        np.searchsorted(cumulated, np.arange(4 * study.num_users) / (4 * study.num_users) * cumulated[-1], "right"),
        np.uint64(setting.base),
        np.uint64(setting.rho_base),
        study.samples if study.rho else 0,
        study.le,
        study.lr,
        setting.star_losses,
    )
    return out


def _by_numpy(settings: Sequence[Setting], cohorts: Array | None) -> list[Simulation]:
    """Run studies with known cohorts by a scan, and other studies in groups of equal shape, round by round."""
    done: dict[int, Simulation] = {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, setting in enumerate(settings):
        s = setting.study
        known = setting.cohorts() if cohorts is None else cohorts
        if known is not None and not s.rho:
            done[i] = _finish(setting, scan(setting, known), known, np.empty(0), np.empty(0))
        else:
            groups.setdefault((s.num_users, s.m, s.epochs, s.dim, s.spd, s.rho, s.samples), []).append(i)
    for members in groups.values():
        forced = [setting.cohorts() if cohorts is None else cohorts for setting in (settings[i] for i in members)]
        done |= dict(zip(members, _step_all([settings[i] for i in members], forced), strict=True))
    return [done[i] for i in range(len(settings))]


def scan(setting: Setting, cohorts: Array) -> Array:
    """w̄ before every round and after the last round, from w̄ ← A_t w̄ + b_t, by doubling (Hillis, Steele 1986)."""
    full = setting.step.ndim == 3
    b = setting.pull[cohorts].mean(1)
    a = np.eye(b.shape[1]) - setting.step[cohorts].mean(1) if full else (1 - setting.step[cohorts].mean(1))[:, None]
    a, b = np.concatenate([a[:1], a]), np.concatenate([setting.instance.w0[None], b])
    reach = 1
    while reach < len(b):  # after each pass (a, b)[t] combines the rounds t − reach + 1 … t
        later, earlier = a[reach:], b[:-reach]
        b[reach:] += np.einsum("tij,tj->ti", later, earlier) if full else later * earlier
        a[reach:] = later @ a[:-reach] if full else later * a[:-reach]
        reach *= 2
    return b


def _step_all(settings: Sequence[Setting], forced: Sequence[Array | None]) -> list[Simulation]:
    """Compute the rounds one after another, each for all runs at once."""
    one, runs = settings[0].study, len(settings)
    T, m, K, dim, samples = one.epochs, one.m, one.num_users, one.dim, one.samples if one.rho else 0
    step, pull, h, optima, p, reported = (
        np.stack(list(arrays))
        for arrays in zip(
            *((s.step, s.pull, s.instance.h, s.optima, s.instance.p, s.reported) for s in settings), strict=True
        )
    )
    w = np.stack([s.instance.w0 for s in settings])
    candidates = np.stack([s.study.candidates() for s in settings])
    last = np.full((runs, K), np.inf)
    by_report = np.array([s.study.seltype == "rpowd" for s in settings])
    blind = np.array([s.study.seltype not in ("powd", "cpowd", "adapowd", "rpowd") for s in settings])
    star_losses = np.stack([s.star_losses for s in settings])
    every, rows = np.arange(runs)[:, None], np.arange(runs)
    path, chosen = np.empty((T + 1, runs, dim)), np.empty((T, runs, m), np.int64)
    rho, rho_star = np.empty((T, runs if samples else 0)), np.empty((T, runs if samples else 0))
    for t in range(T):
        path[t] = w
        f = losses(h, optima, w[:, None])
        scores = np.where(by_report[:, None], last, f)
        times = np.stack([race(uniforms(s.base, t, K), s.instance.p) for s in settings])
        ids = _worst(times, scores, candidates[:, t], m)
        for r in rows[[known is not None for known in forced]]:
            ids[r] = forced[r][t]
        chosen[t] = ids
        for r in range(runs if samples else 0):
            counts = _sampled(settings[r], t, scores[r], int(candidates[r, t]), blind[r], forced[r])
            rho[t, r] = counts @ f[r] / (m * samples) / (p[r] @ f[r])
            rho_star[t, r] = counts @ star_losses[r] / (m * samples) / (p[r] @ star_losses[r])
        if by_report.any():
            last[every, ids] = _reported(settings, f, reported, w, ids)[every, ids]
        a, b = step[every, ids], pull[every, ids]
        w = w + (b - (np.einsum("rmij,rj->rmi", a, w) if a.ndim == 4 else a[..., None] * w[:, None])).mean(1)
    path[T] = w
    pieces = (path.swapaxes(0, 1), chosen.swapaxes(0, 1), rho.T, rho_star.T)
    none = np.empty(0)
    return [
        _finish(s, pieces[0][r], pieces[1][r], *((pieces[2][r], pieces[3][r]) if samples else (none, none)))
        for r, s in enumerate(settings)
    ]


def _worst(times: Array, scores: Array, d: Array, m: int) -> Array:
    """For each row: of the d clients with the smallest times (see `race`), the m clients with the largest scores."""
    order = np.argsort(times, axis=1)[:, : d.max()]
    s = np.take_along_axis(scores, order, 1)
    s = np.where(np.arange(order.shape[1]) < d[:, None], s, -1.0)
    return np.take_along_axis(order, np.argsort(-s, axis=1, kind="stable")[:, :m], 1)


def _sampled(setting: Setting, t: int, scores: Array, d: int, blind: bool, forced: Array | None) -> Array:
    """How often each client is in the cohorts of `samples` selections that are drawn for this model."""
    s, p = setting.study, setting.instance.p
    if s.seltype == "rand":
        cumulated = np.cumsum(p)
        u = uniforms(setting.rho_base, t * s.samples + np.arange(s.samples), s.m)
        ids = np.searchsorted(cumulated, u * cumulated[-1], side="right").clip(max=s.num_users - 1)
    elif blind:
        assert forced is not None
        ids = np.repeat(forced[t][None], s.samples, 0)
    else:
        u = uniforms(setting.rho_base, t * s.samples + np.arange(s.samples), s.num_users)
        ids = _worst(race(u, p), np.broadcast_to(scores, u.shape), np.full(s.samples, d), s.m)
    return np.bincount(ids.ravel(), minlength=s.num_users)


def _reported(settings: Sequence[Setting], f: Array, factor: Array, w: Array, ids: Array) -> Array:
    """The mean loss over its local steps, which each client would report."""
    out: Array = f * factor
    if settings[0].instance.h.ndim == 1:
        return out
    out = np.zeros_like(f)
    for r, s in enumerate(settings):
        off = w[r] - s.optima
        for _ in range(s.study.le):
            hessian = np.einsum("kij,kj->ki", s.instance.h, off)
            out[r] += 0.5 * (off * hessian).sum(1) / s.study.le
            off = off - s.study.lr * hessian
    return out


def losses(h: Array, optima: Array, w: Array) -> Array:
    """F_k(w) = ½ (w − w*_k)ᵀH_k(w − w*_k), for any number of leading axes."""
    off = w - optima
    out: Array = 0.5 * (h * (off * off).sum(-1) if h.ndim < off.ndim else np.einsum("...i,...ij,...j", off, h, off))
    return out


def _finish(setting: Setting, path: Array, chosen: Array, rho: Array, rho_star: Array) -> Simulation:
    """The result with gap and distance along the path; an error if the path is not finite."""
    study = setting.study
    off = path[1:] - setting.star
    if not np.isfinite(path[-1]).all():
        t = int(np.argmin(np.isfinite(path).all(1)))
        raise ArnoError(
            f"lr = {study.lr:g}", f"the model diverged in round {t}", "lower lr; see the warning about 2/max h"
        )
    gap = 0.5 * ((off @ setting.curvature) * off).sum(1)
    d = study.candidates()
    asks = study.seltype in ("powd", "cpowd", "adapowd")
    evaluations = np.where(d > study.m, d, 0) if asks else np.zeros(study.epochs, np.int64)
    distance = np.sqrt((off * off).sum(1))
    return Simulation(study, setting.instance, setting.star, path, chosen, gap, distance, evaluations, rho, rho_star)
