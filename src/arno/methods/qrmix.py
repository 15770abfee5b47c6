"""QR-Mix (`ServerQRFC`): the server averages the last linear layer with the curvature of the clients' losses.

    client i, after training: f (n × D) are the inputs of the last linear layer, P (n × C) the softmax of its outputs.
    H_i is the Hessian of the mean cross-entropy in the q = C + C·D parameters of this layer (bias, then weight row by
    row). H_i is never stored; only products with it are computed:
        H V = (1/n) (Uᵀ1, Uᵀf),   U = P∘Z − P·(P∘Z)1,   Z = f V_wᵀ + V_b            (all columns of V at once)
        V ← qr(random q × (k+s));  power_iters times V ← qr(H V);  Rayleigh–Ritz on VᵀHV; top k: (λ_i, V_i)
    server, on the last layer, with C participants:
        [Q, R] ← qr([V_1 … V_C]);  K ← R diag(λ/C) Rᵀ;  b ← (1/C) Σ V_i λ_i V_iᵀ Δ_i;  Δ̄ ← (1/C) Σ Δ_i
        rule=seed:  θ ← θ + γ [τ Q z + (b − QQᵀb)],  z = (K + τI)⁻¹ Qᵀb
        rule=lsq:   θ ← θ + γ d,  d = argmin (1/C) Σ ½ (d − Δ_i)ᵀ H_i (d − Δ_i) + τ/2 ‖d − Δ̄‖²
                                    = Δ̄ + Q (K + τI)⁻¹ Qᵀ(b − H̄Δ̄)
    the rest of the model: the mean of the deltas (`backbone=average`), or unchanged (`freeze`)

There is no paper about QR-Mix yet; it extends FedRCL (Seo et al., CVPR 2024, arXiv:2401.04928).

Deviations, and points that the rules leave open: b is in the span of Q, so `rule=seed` equals γ τ (H̄ + τI)⁻¹ b. This
step goes to zero with τ, and it is proportional to the curvature. `rule=lsq` is the least-squares problem from which
`rule=seed` was derived. Pairs whose eigenvalue is negative or not finite are dropped. If there is no pair, and in
rounds that compute none (`every_round`), the step is γ Δ̄. The server's learning rate multiplies the whole step.
Running statistics of BatchNorm are averaged even if the backbone is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Job, Result, Vec, Work
from ..errors import ArnoError
from ..models.network import last_linear
from ..problems.supervised import Supervised, SupervisedLearner
from . import methods, parts
from .finetune import has_personal_models
from .panels import Chart, Panel, Records, curves_of, messages, panels

Rule = Literal["seed", "lsq", "mean"]


@methods.register(
    "qrmix",
    family="server",
    paper="no paper yet; extends Seo et al., CVPR 2024, arXiv:2401.04928",
    formula="H_i ≈ V_i λ_i V_iᵀ of the last layer;  θ ← θ + γ τ (H̄ + τI)⁻¹ (1/C) Σ H_i Δ_i, or its least-squares form",
    tune={"beta": "log(0.001, 0.1)", "gamma": "log(0.3, 3)", "rank_k": "int(2, 20)"},
)
def qrmix(
    *,
    rank_k: int = 10,
    oversampling: int = 10,
    power_iters: int = 2,
    rule: Rule = "seed",
    beta: float = 0.01,
    gamma: float = 1.0,
    backbone: Literal["average", "freeze"] = "average",
    at: Literal["local", "global"] = "local",
    every_client: int = 1,
    every_round: int = 1,
    adaptive: float | None = None,
    block: int = 1024,
) -> list[Part]:
    """The server averages the last layer with the curvature of each client's loss.

    Helps: in a second stage, from a trained model, on networks with a wide last layer.
    Hurts: from a random model, and with a small τ under rule=seed, because the step becomes nearly zero.

    rank_k, oversampling, power_iters: eigenpairs per client; further columns while they are computed; iterations.
    rule: seed (as its authors wrote it), lsq (the regularised least squares) or mean (γ Δ̄, for comparison).
    beta: τ, the regularisation.
    gamma: γ, a factor of the step.
    backbone: average or freeze the rest of the model.
    at: compute eigenpairs at the trained model (local) or at the received model (global).
    every_client, every_round: only clients and rounds whose number is a multiple of this compute eigenpairs.
    adaptive: instead of rank_k, keep as many pairs as make up this share of the eigenvalues' sum (e.g. 0.95).
    block: samples per block of a Hessian product; it is halved if there is not enough memory.

    >>> qrmix(rule="lsq")[0].rule
    'lsq'
    """
    return [
        QRMix(
            rank_k,
            oversampling,
            power_iters,
            rule,
            beta,
            gamma,
            backbone,
            at,
            every_client,
            every_round,
            adaptive,
            block,
        )
    ]


@parts.register("qrmix")
@dataclass
class QRMix(Part):
    """Asks clients for eigenpairs, and replaces the last layer in the update of the server."""

    rank_k: int = 10
    oversampling: int = 10
    power_iters: int = 2
    rule: Rule = "seed"
    beta: float = 0.01
    gamma: float = 1.0
    backbone: Literal["average", "freeze"] = "average"
    at: Literal["local", "global"] = "local"
    every_client: int = 1
    every_round: int = 1
    adaptive: float | None = None
    block: int = 1024
    roles: ClassVar[frozenset[str]] = frozenset({"mean"})

    def start(self, fed: Federation) -> None:
        """Find the last linear layer; refuse settings and networks that cannot work."""
        self._check(fed)
        weight, bias = self._head(fed)
        places = [torch.arange(s.start, s.stop) for s in (bias, weight)]
        self._index = torch.cat(places).to(fed.w.device)  # the coordinates of this layer, bias first
        self.loss: float | None = None  # the training loss of the clients, smoothed over the rounds
        self.lowest: float | None = None
        self.lowest_at = 0
        self._said: set[str] = set()
        self._numbers: dict[str, float] = {}

    def begin(self, t: int) -> None:
        """Begin this round with empty lists."""
        self._pairs: list[Pairs] = []
        self._deltas: list[Tensor] = []
        self._share: list[Tensor] = []
        self._notes: list[dict[str, Tensor]] = []
        self._trained = self._seconds = 0.0

    def send(self, work: Work) -> Work:
        """Ask for eigenpairs in the rounds that compute them."""
        if not self._due(work.round):
            return work
        if work.probe is not None:
            rule = "a client can run only one probe after training"
            raise ArnoError("QR-Mix with another probe", rule, "leave one of them out")
        probe = Eigenpairs(
            self.rank_k, self.oversampling, self.power_iters, self.at, self.every_client, self.adaptive, self.block
        )
        return replace(work, probe=probe)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Store the pairs, and the updates of the last layer."""
        for row in out.extra:
            self._pairs.append((row["evals"], row["evecs"]) if "evals" in row else None)
            self._notes += [row] if row else []
        self._pairs += [None] * (len(work) - len(out.extra))
        self._deltas.append(out.delta[:, self._index])
        self._share.append(work.share)
        self._trained += float(work.weight.cpu().double() @ out.loss.double())
        self._seconds += float(out.seconds.sum())
        return v

    def answered(self, out: Result) -> list[int]:
        """The numbers of eigenvalues and eigenvectors."""
        sent = [sum(row[name].numel() for name in ("evals", "evecs") if name in row) for row in out.extra]
        return sent + [0] * (len(out.loss) - len(sent))

    def finish(self, t: int, v: Vec) -> Vec:
        """The rule gives the step of the last layer; the other layers take their usual step, or none."""
        if not self._deltas:
            return v
        mixed = mix(
            self._pairs,
            torch.cat(self._deltas),
            torch.cat(self._share),
            rule=self.rule,
            beta=self.beta,
            gamma=self.gamma,
        )
        v = v.clone() if self.backbone == "average" else torch.zeros_like(v)
        v[self._index] = mixed.update.to(v.dtype)
        self.loss = self._trained if self.loss is None else 0.7 * self.loss + 0.3 * self._trained
        if self.lowest is None or self.loss < 0.995 * self.lowest:
            self.lowest, self.lowest_at = self.loss, t
        self._numbers = self._diagnose(mixed)
        self._t, self._mixed = t, mixed
        self._pairs, self._deltas = [], []
        return v

    def record(self) -> dict[str, float]:
        """Mean eigenvalues over the clients, their share of the trace, the step and the plain mean, dropped pairs."""
        return self._numbers

    def _due(self, t: int) -> bool:
        return self.rule != "mean" and t % self.every_round == 0

    def _diagnose(self, mixed: Mixed) -> dict[str, float]:
        size, plain = float(mixed.update.norm()), float(mixed.mean.norm())
        row = {
            "qrmix_update_norm": size,
            "qrmix_mean_norm": plain,
            "qrmix_cosine": float(mixed.update @ mixed.mean) / max(size * plain, 1e-30),
            "qrmix_pairs": mixed.used,
            "qrmix_dropped": mixed.negative + mixed.broken,
        }
        if self._notes:
            row["qrmix_energy"] = float(torch.stack([note["energy"] for note in self._notes]).nanmean().nan_to_num())
            row["qrmix_seconds"] = sum(float(note["seconds"]) for note in self._notes)
            row["qrmix_uploaded"] = sum(note["evals"].numel() + note["evecs"].numel() for note in self._notes)
        values = [pair[0].double().cpu() for pair in self._pairs if pair is not None]
        for i in range(max((len(x) for x in values), default=0)):
            there = torch.stack([x[i] for x in values if len(x) > i])
            if len(there := there[there.isfinite()]):
                row[f"qrmix_eigenvalue_{i + 1}"] = float(there.mean())
        return row

    def _advice(self) -> dict[str, str]:
        """Advice about problems of the last round, by the name of the problem."""
        if not self._numbers:
            return {}
        mixed, row, spent, say = self._mixed, self._numbers, self._seconds, dict[str, str]()
        size, plain, eigen = row["qrmix_update_norm"], row["qrmix_mean_norm"], row.get("qrmix_seconds", 0.0)
        block = min((int(note["block"]) for note in self._notes), default=self.block)
        if mixed.negative:
            say["negative"] = (
                f"{mixed.negative} pairs with a negative eigenvalue were dropped; this Hessian has such pairs only "
                "because of rounding: lower rank_k, or extend stage 1"
            )
        if mixed.broken:
            say["nan"] = (
                f"{mixed.broken} pairs with NaN or Inf were dropped; lower rank_k, raise beta, "
                "and lower local.lr if the losses grow"
            )
        if not mixed.used and self._due(self._t):
            say["none"] = "no eigenpair is left, so the step of the last layer is γ times the plain mean"
        if block < self.block:
            say["memory"] = f"there was not enough memory, so it used fewer samples at a time: set block={block}"
        if mixed.used and size < 0.01 * plain:
            say["shrunk"] = (
                f"the last layer's step is {size / plain:.2%} of the plain mean's; raise beta or gamma, or try rule=lsq"
            )
        if self._t - self.lowest_at >= PATIENCE:
            say["gain"] = (
                f"the clients' loss has not fallen for {PATIENCE} rounds; tune beta between 0.001 and 0.1, "
                "or try rule=lsq"
            )
        if spent > 1 and eigen > spent / 2:
            say["slow"] = (
                f"eigenpairs take {eigen / spent:.0%} of the clients' time; lower power_iters or "
                "rank_k, or raise every_round"
            )
        return say

    def _check(self, fed: Federation) -> None:
        for name in ("rank_k", "every_client", "every_round", "block"):
            if getattr(self, name) < 1:
                raise ArnoError(f"method.{name} = {getattr(self, name)}", "it must be at least 1", "see arno methods")
        for name in ("oversampling", "power_iters"):
            if getattr(self, name) < 0:
                raise ArnoError(f"method.{name} = {getattr(self, name)}", "it must not be negative", "try 2")
        if not self.beta > 0:
            raise ArnoError(f"method.beta = {self.beta:g}", "τ must be positive", "try 0.001 to 0.1")
        if self.adaptive is not None and not 0 < self.adaptive <= 1:
            rule = "it must be above 0 and at most 1, a share of the eigenvalues' sum"
            raise ArnoError(f"method.adaptive = {self.adaptive:g}", rule, "try 0.95")
        if has_personal_models(fed):
            raise ArnoError("QR-Mix with personal models", "it averages the last layer of all clients", "leave one out")
        if any("window" in part.roles for part in fed.parts):
            raise ArnoError("QR-Mix with sub-models", "the clients then hold different last layers", "leave one out")

    def _head(self, fed: Federation) -> tuple[slice, slice]:
        """The slices of the last layer's weight and bias in the vector; an error if there is no such layer."""
        problem = fed.problem
        found = last_linear(problem.module) if isinstance(problem, Supervised) else None
        if not isinstance(problem, Supervised) or found is None:
            raise ArnoError("QR-Mix on this model", "it needs a last linear layer", "try another model")
        if not problem.task.classes:
            rule = "its Hessian is that of the cross-entropy"
            raise ArnoError(f"QR-Mix on task {problem.task.name}", rule, "use a classification task")
        if found[1].bias is None or found[1].out_features != problem.task.classes:
            raise ArnoError(
                f"QR-Mix on {type(problem.module).__name__}",
                f"its last linear layer ({found[0]}) has no bias, or its outputs are not the scores of the classes",
                "end the network in a linear layer with a bias",
            )
        return problem.head


@messages.register
def _(part: QRMix) -> list[str]:
    """Problems and what to do about them; each problem is named once."""
    new = {name: advice for name, advice in part._advice().items() if name not in part._said}
    part._said |= new.keys()
    return [f"QR-Mix, round {part._t + 1}: {advice}" for advice in new.values()]


@panels.register
def _(part: QRMix, run: Records) -> list[Panel]:
    rows = run.rows
    count = len({name for row in rows for name in row if name.startswith("qrmix_eigenvalue_")})
    values = {f"qrmix_eigenvalue_{i}": f"λ{i}" for i in range(1, count + 1)}
    shares = {"qrmix_energy": "share of the Hessian's trace", "qrmix_cosine": "cosine of step and plain mean"}
    norms = {"qrmix_update_norm": "QR-Mix", "qrmix_mean_norm": "plain mean"}
    about = "The largest eigenvalues of the last layer's Hessian, as means over the clients."
    step = "The norm of the last layer's step, and the norm of the plain mean of the clients' updates."
    return [
        Chart("Eigenvalues", about, curves_of(rows, values), y="eigenvalue", log=True),
        Chart(
            "Curvature kept",
            "How much of the curvature the eigenpairs contain.",
            curves_of(rows, shares),
            y="share",
            high=1,
        ),
        Chart("Step", step, curves_of(rows, norms), y="norm", low=0),
    ]


#: Rounds without a lower loss after which QR-Mix gives advice.
PATIENCE = 20
#: A client's eigenvalues [k] and eigenvectors [q × k]; None if it computed none.
Pairs = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Eigenpairs:
    """The client's probe: the largest eigenpairs of the last layer's Hessian on all data of the client."""

    rank_k: int = 10
    oversampling: int = 10
    power_iters: int = 2
    at: Literal["local", "global"] = "local"
    every_client: int = 1
    adaptive: float | None = None
    block: int = 1024

    def __call__(self, learner: SupervisedLearner, job: Job) -> dict[str, Tensor]:
        """`evals`, `evecs`, the share of the Hessian's trace in the eigenvalues, the block size, and the seconds."""
        if job.client % self.every_client:
            return {}
        began = perf_counter()
        if self.at == "global":
            learner.w.copy_(job.start)
        f, p = last_layer(learner, job.client)

        def compute(block: int) -> tuple[Tensor, Tensor]:
            return eigenpairs(
                lambda v: hessian_product(f, p, v, block),
                p.shape[1] * (f.shape[1] + 1),
                self.rank_k,
                self.oversampling,
                self.power_iters,
                job.stream("qrmix"),
                like=f,
                adaptive=self.adaptive,
            )

        (evals, evecs), block = halving(compute, min(self.block, len(f)))
        share = evals.clamp(min=0).sum() / hessian_trace(f, p).clamp(min=torch.finfo(f.dtype).tiny)
        used = self.block if block == min(self.block, len(f)) else block
        seconds = perf_counter() - began
        numbers = {"energy": share, "block": torch.tensor(used), "seconds": torch.tensor(seconds)}
        return {"evals": evals, "evecs": evecs, **numbers}


def last_layer(learner: SupervisedLearner, client: int) -> tuple[Tensor, Tensor]:
    """The inputs f of the last linear layer and the softmax P of its outputs, on all of a client's samples."""
    problem, module = learner.problem, learner.module
    found = last_linear(module)
    assert found is not None
    inputs: list[Tensor] = []
    hook = found[1].register_forward_pre_hook(lambda layer, given: inputs.append(given[0]))
    module.eval()
    try:
        with torch.no_grad():
            rows = problem.partition[client].to(problem.device)
            outputs = [module(problem.inputs(problem.x[r])) for r in rows.split(problem.eval_batch)]
    finally:
        hook.remove()
        module.train()
    return torch.cat(inputs), torch.cat(outputs).softmax(1)


def hessian_product(f: Tensor, p: Tensor, v: Tensor, block: int = 1024) -> Tensor:
    """H V for all columns of V [q × c]: the Hessian of the mean cross-entropy of softmax(f Wᵀ + b) in (b, W).

    >>> f, p = torch.tensor([[1.0], [2.0]]), torch.full((2, 2), 0.5)
    >>> hessian_product(f, p, torch.eye(4)).tolist()[0]
    [0.25, -0.25, 0.375, -0.375]
    """
    (n, d), c, columns = f.shape, p.shape[1], v.shape[1]
    v_b = v[:c]
    v_w = v[c:].view(c, d, columns).transpose(0, 1).reshape(d, c * columns)
    h_b, h_w = torch.zeros_like(v_b), v.new_zeros(c * columns, d)
    for at in range(0, n, block):
        part, share = f[at : at + block], p[at : at + block, :, None]
        z = (part @ v_w).view(len(part), c, columns) + v_b
        z *= share  # P∘Z
        u = z.sub_(share * z.sum(1, keepdim=True))
        h_b += u.sum(0)
        h_w.addmm_(u.view(len(part), -1).T, part)
    return torch.cat([h_b, h_w.view(c, columns, d).transpose(1, 2).reshape(c * d, columns)]) / n


def hessian_trace(f: Tensor, p: Tensor) -> Tensor:
    """tr H = mean over the samples of (1 + ‖f‖²)(1 − ‖P‖²)."""
    return ((1 + f.square().sum(1)) * (1 - p.square().sum(1))).mean()


def eigenpairs(
    product: Callable[[Tensor], Tensor],
    q: int,
    rank_k: int,
    oversampling: int,
    power_iters: int,
    random: torch.Generator,
    *,
    like: Tensor,
    adaptive: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The largest eigenpairs of a symmetric q × q operator by randomised subspace iteration, the largest first.

    >>> h = torch.diag(torch.tensor([1.0, 5.0, 3.0, 0.1, 0.2, 0.3]))
    >>> evals, evecs = eigenpairs(lambda v: h @ v, 6, 2, 2, 20, torch.Generator().manual_seed(0), like=h)
    >>> [round(x, 4) for x in evals.tolist()], evecs.abs().round().T.tolist()[0]
    ([5.0, 3.0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    """
    columns = min(rank_k + oversampling, q)
    v = torch.linalg.qr(torch.randn(q, columns, generator=random, dtype=torch.float64).to(like)).Q
    for _ in range(power_iters):
        v = torch.linalg.qr(product(v)).Q
    ritz = (v.T @ product(v)).double()
    if not ritz.isfinite().all():
        return like.new_full((min(rank_k, q),), torch.nan), like.new_zeros(q, min(rank_k, q))
    evals, vectors = torch.linalg.eigh((ritz + ritz.T) / 2)
    evals, vectors = evals.flip(0), vectors.flip(1)
    keep = min(rank_k, q)
    if adaptive is not None:
        held = evals.clamp(min=0).cumsum(0)
        keep = min(int(torch.searchsorted(held, adaptive * held[-1])) + 1, columns)
    return evals[:keep].to(like), v @ vectors[:, :keep].to(like)


@dataclass(frozen=True)
class Mixed:
    """The last layer's step; the plain mean, for comparison; how many pairs were used and dropped."""

    update: Tensor
    mean: Tensor
    used: int
    negative: int
    broken: int


def mix(
    pairs: Sequence[Pairs], deltas: Tensor, share: Tensor, *, rule: Rule = "seed", beta: float, gamma: float = 1.0
) -> Mixed:
    """The server's step on the last layer, in float64. share: 1/C for each draw of a client.

    >>> v = torch.eye(3)
    >>> pairs = [(torch.tensor([2.0]), v[:, :1]), (torch.tensor([1.0]), v[:, 1:2])]
    >>> deltas = torch.tensor([[1.0, 9.0, 1.0], [9.0, 2.0, 1.0]])
    >>> mix(pairs, deltas, torch.tensor([0.5, 0.5]), rule="lsq", beta=1e-9).update.round(decimals=6).tolist()
    [1.0, 2.0, 1.0]
    """
    deltas, share = deltas.double(), share.double()
    mean = share @ deltas
    values, vectors, owners = [], [], []
    negative = broken = 0
    for i, pair in enumerate(pairs):
        if pair is None:
            continue
        evals, evecs = pair[0].to(deltas), pair[1].to(deltas)
        finite = evals.isfinite() & evecs.isfinite().all(0)
        keep = finite & ~(evals < 0)
        broken += int((~finite).sum())
        negative += int((finite & (evals < 0)).sum())
        values.append(evals[keep])
        vectors.append(evecs[:, keep])
        owners += [i] * int(keep.sum())
    if not owners:
        return Mixed(gamma * mean, mean, 0, negative, broken)

    v, weight = torch.cat(vectors, 1), torch.cat(values) * share[owners]  # λ/C
    q, r = torch.linalg.qr(v)
    kernel = r * weight @ r.T
    b = v @ (weight * (v * deltas[owners].T).sum(0))
    if rule == "seed":
        step = beta * q @ solve(kernel, beta, q.T @ b) + (b - q @ (q.T @ b))
    else:
        step = mean + q @ solve(kernel, beta, q.T @ b - kernel @ (q.T @ mean))
    return Mixed(gamma * step, mean, len(owners), negative, broken)


def solve(kernel: Tensor, tau: float, x: Tensor) -> Tensor:
    """(K + τI)⁻¹ x for x in the range of a positive semi-definite K.

    Rounding makes K not quite symmetric, and moves x slightly out of the range of K. Therefore K is symmetrised, and
    the part of x outside the range is set to zero: a division by a tiny τ would make it large.
    """
    values, vectors = torch.linalg.eigh((kernel + kernel.T) / 2)
    real = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    part: Tensor = vectors @ torch.where(real, (vectors.T @ x) / (values + tau), 0)
    return part


def halving(compute: Callable[[int], Any], block: int) -> tuple[Any, int]:
    """`compute(block)`; while there is not enough memory, the block is halved. Returns the result and the block."""
    while True:
        try:
            return compute(block), block
        except (MemoryError, RuntimeError) as error:
            words = str(error).lower()
            short = isinstance(error, MemoryError) or "out of memory" in words or "not enough memory" in words
            if block <= 1 or not (short or "can't allocate memory" in words):
                raise
        block //= 2
