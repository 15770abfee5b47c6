"""The methods written out once more in plain NumPy, sample loops and all; nothing of the package is used here.

`run(case)` executes a case: networks of one or two linear layers (with batch normalisation on request), gradients by
hand, Hessian products by the complex step. It is slow and literal on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass
class Case:
    """Data, start and settings of a tiny federation. Settings of single clients are lists."""

    method: str
    settings: dict[str, Any]
    dims: tuple[int, int, int]  # features, hidden units (0: one layer), classes
    norm: bool
    w0: Array
    x: list[Array]
    y: list[Array]
    rounds: list[list[int]]
    epochs: list[int]
    batch: list[int]
    lr: list[float]
    decay: float = 0.0
    lr_decay: float = 1.0
    momentum: float = 0.0
    clip: float | None = None
    uniform: bool = True
    server_lr: float = 1.0


@dataclass
class Outcome:
    """The global model after every round, the personal models at the end, and named states."""

    w: list[Array] = field(default_factory=list)
    personal: Array | None = None
    state: dict[str, Any] = field(default_factory=dict)


class Net:
    """Linear, or linear – (batch norm) – tanh – linear; a model is one vector, buffers last."""

    def __init__(self, dims: tuple[int, int, int], norm: bool) -> None:
        f, h, c = self.dims = dims
        self.norm = norm
        shapes = [(h, f), (h,)] if h else []
        shapes += [(h,), (h,)] if norm else []
        shapes += [(c, h or f), (c,)]
        self.shapes, self.buffers = shapes, 2 * h if norm else 0
        self.d = sum(int(np.prod(shape)) for shape in shapes)
        self.size = self.d + self.buffers
        self.head = np.zeros(self.size, bool)
        self.head[self.d - c * (h or f) - c : self.d] = True
        self.norms = np.zeros(self.size, bool)
        if norm:
            self.norms[h * f + h : h * f + 3 * h] = True
            self.norms[self.d :] = True

    def group(self, name: str) -> Array:
        everything = np.ones(self.size, bool)
        return {"full": everything, "head": self.head, "body": ~self.head, "norm": self.norms}[name]

    def pieces(self, w: Array) -> list[Array]:
        found, at = [], 0
        for shape in self.shapes:
            found.append(w[at : at + int(np.prod(shape))].reshape(shape))
            at += int(np.prod(shape))
        return found

    def outputs(self, w: Array, x: Array) -> Array:
        """In use: running statistics."""
        p = self.pieces(w)
        if not self.dims[1]:
            return x @ p[0].T + p[1]
        a = x @ p[0].T + p[1]
        if self.norm:
            h = self.dims[1]
            mean, variance = w[self.d : self.d + h], w[self.d + h :]
            a = (a - mean) / np.sqrt(variance + 1e-5) * p[2] + p[3]
        return np.tanh(a) @ p[-2].T + p[-1]

    def gradient(self, w: Array, x: Array, y: Array, loss: Any = None) -> tuple[Array, Array]:
        """∇ℓ, and the buffers after this batch. loss(z, y, hidden) returns dz and d hidden."""
        p, n = self.pieces(w), len(y)
        tail = w[self.d :].copy()
        hidden = x
        if self.dims[1]:
            a = x @ p[0].T + p[1]
            if self.norm:
                h = self.dims[1]
                mean, variance = a.mean(0), ((a - a.mean(0)) ** 2).mean(0)
                root = np.sqrt(variance + 1e-5)
                u = (a - mean) / root
                tail[:h] = 0.9 * tail[:h] + 0.1 * mean
                tail[h:] = 0.9 * tail[h:] + 0.1 * variance * n / (n - 1)
                b = u * p[2] + p[3]
            else:
                b = a
            hidden = np.tanh(b)
        z = hidden @ p[-2].T + p[-1]
        dz, dh = (cross_entropy(z, y), 0.0) if loss is None else loss(z, y, hidden)
        grads = [dz.T @ hidden, dz.sum(0)]
        if self.dims[1]:
            db = (dz @ p[-2] + dh) * (1 - hidden**2)
            if self.norm:
                du = db * p[2]
                da = (du - du.mean(0) - u * (du * u).mean(0)) / root
                grads = [da.T @ x, da.sum(0), (db * u).sum(0), db.sum(0), *grads]
            else:
                grads = [db.T @ x, db.sum(0), *grads]
        return np.concatenate([g.ravel() for g in grads]), tail


def softmax(z: Array) -> Array:
    e = np.exp(z - z.real.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cross_entropy(z: Array, y: Array) -> Array:
    """Its gradient in the outputs."""
    p = softmax(z)
    p[np.arange(len(y)), y] -= 1
    return p / len(y)


class Run:
    """A case in progress."""

    def __init__(self, case: Case) -> None:
        self.case, self.net = case, Net(case.dims, case.norm)
        self.n, self.w, self.t = len(case.x), case.w0.copy(), 0
        self.s = case.settings

    # local training

    def batches(self, k: int) -> list[tuple[Array, Array]]:
        c = self.case
        return [(c.x[k][i : i + c.batch[k]], c.y[k][i : i + c.batch[k]]) for i in range(0, len(c.y[k]), c.batch[k])]

    def rate(self, k: int) -> float:
        return self.case.lr[k] * self.case.lr_decay**self.t

    def steps(self, k: int, epochs: int | None = None) -> int:
        return (self.case.epochs[k] if epochs is None else epochs) * len(self.batches(k))

    def f(self, w: Array, b: tuple[Array, Array]) -> Array:
        """∇f = ∇ℓ + wd·w."""
        return self.net.gradient(w, *b)[0] + self.case.decay * w[: self.net.d]

    def whole(self, w: Array, k: int) -> Array:
        """∇f_k over all samples, each once, in batches (which matters for batch normalisation alone)."""
        n = len(self.case.y[k])
        total: Array = sum(len(b[1]) / n * self.f(w, b) for b in self.batches(k))  # type: ignore[assignment]
        return total

    def phase(self, start: Array, k: int, epochs: int | None = None, moves: str = "full", **more: Any) -> Array:
        """One run of the kernel. more: anchor, mu, drift, scale, push, loss, gradient."""
        net, d, u, velocity = self.net, self.net.d, start.copy(), None
        group, anchor = net.group(moves), more.get("anchor", start)
        for _ in range(self.case.epochs[k] if epochs is None else epochs):
            for b in self.batches(k):
                if "gradient" in more:
                    g, tail = more["gradient"](u, b)
                else:
                    g, tail = net.gradient(u, *b, more.get("loss"))
                if self.case.clip is not None:
                    g = g * min(1.0, self.case.clip / (np.linalg.norm(g) + 1e-6))
                g = g + self.case.decay * u[:d] + more.get("mu", 0.0) * (u - anchor)[:d] + more.get("drift", 0.0)
                g = more.get("scale", 1.0) * g + more.get("push", 0.0)
                g = np.where(group[:d], g, 0.0)
                velocity = g if velocity is None else self.case.momentum * velocity + g
                u[:d] = u[:d] - self.rate(k) * velocity
                u[d:] = np.where(group[d:], tail, u[d:])
        return u

    # the server

    def weights(self, cohort: list[int]) -> dict[int, float]:
        raw = [1.0 if self.case.uniform else float(len(self.case.y[k])) for k in cohort]
        p: dict[int, float] = {}
        for k, share in zip(cohort, raw, strict=True):
            p[k] = p.get(k, 0.0) + share / sum(raw)
        return p

    def average(self, p: dict[int, float], models: dict[int, Array], shared: Array | None = None) -> None:
        """w ← w + η_s Σ p_k (w_k − w) on shared coordinates; buffers plainly."""
        step = sum(p[k] * (models[k] - self.w) for k in p)
        self.move(step, shared)

    def move(self, step: Any, shared: Array | None = None) -> None:
        d = self.net.d
        scaled = np.concatenate([self.case.server_lr * step[:d], step[d:]])
        self.w = self.w + (scaled if shared is None else np.where(shared, scaled, 0.0))


def run(case: Case) -> Outcome:
    """All rounds of a case."""
    now, out = Run(case), Outcome()
    method = METHODS[case.method](now)
    next(method)
    for t, cohort in enumerate(case.rounds):
        now.t = t
        if cohort:
            method.send(cohort)
        out.w.append(now.w.copy())
    now.t = max(len(case.rounds) - 1, 0)
    ended = method.send(None)
    personal, state = ended
    out.personal, out.state = personal, state
    return out


# Every method is a generator: it is sent cohorts, and None at the end, when it yields personal models and states.


def averaging(now: Run, train: Any, after: Any = None) -> Any:
    """FedAvg with this local training; `after(p, deltas)` may replace the server's step."""
    cohort = yield
    while cohort is not None:
        p = now.weights(cohort)
        models = {k: train(k) for k in p}
        if after is None:
            now.average(p, models)
        else:
            after(p, {k: model - now.w for k, model in models.items()})
        cohort = yield


def tuned(now: Run) -> Array:
    return np.stack([
        now.phase(now.w, k, now.s["finetune_epochs"], now.s["finetune_part"]) for k in range(now.n)
    ])  # fmt: skip


def fedavg(now: Run) -> Any:
    yield from averaging(now, lambda k: now.phase(now.w, k))
    yield tuned(now), {}


def kept(group: str) -> Any:
    def method(now: Run) -> Any:
        mask = now.net.group(group)
        own = {k: now.case.w0.copy() for k in range(now.n)}
        cohort = yield
        while cohort is not None:
            p = now.weights(cohort)
            models = {k: now.phase(np.where(mask, own[k], now.w), k) for k in p}
            now.average(p, models, ~mask)
            own.update(models)
            cohort = yield
        yield np.stack([np.where(mask, own[k], now.w) for k in range(now.n)]), {}

    return method


def fedrep(now: Run) -> Any:
    mask = now.net.group("head")
    own = {k: now.case.w0.copy() for k in range(now.n)}
    cohort = yield
    while cohort is not None:
        p, models = now.weights(cohort), {}
        for k in p:
            first = now.phase(np.where(mask, own[k], now.w), k, now.s["head_epochs"][k], "head")
            models[k] = now.phase(first, k, None, "body")
        now.average(p, models, ~mask)
        own.update(models)
        cohort = yield
    yield np.stack([np.where(mask, own[k], now.w) for k in range(now.n)]), {}


def fedbabu(now: Run) -> Any:
    mask = now.net.group("head")
    cohort = yield
    while cohort is not None:
        p = now.weights(cohort)
        now.average(p, {k: now.phase(now.w, k, None, "body") for k in p}, ~mask)
        cohort = yield
    yield tuned(now), {}


def ditto(now: Run) -> Any:
    v = {k: now.case.w0.copy() for k in range(now.n)}
    cohort = yield
    while cohort is not None:
        p = now.weights(cohort)
        for k in p:
            v[k] = now.phase(v[k], k, now.s["personal_epochs"][k], anchor=now.w, mu=now.s["lam"][k])
        now.average(p, {k: now.phase(now.w, k) for k in p})
        cohort = yield
    yield np.stack(list(v.values())), {}


def apfl(now: Run) -> Any:
    v = {k: now.case.w0.copy() for k in range(now.n)}
    a = list(now.s["alpha"])
    cohort = yield
    while cohort is not None:
        p, models = now.weights(cohort), {}
        for k in p:
            w, first, eta = now.w.copy(), True, now.rate(k)
            for _ in range(now.case.epochs[k]):
                for b in now.batches(k):
                    mixed = a[k] * v[k] + (1 - a[k]) * w
                    ours, theirs = now.f(w, b), now.f(mixed, b)
                    alpha = a[k] - eta * np.dot(v[k] - w, theirs)
                    w, v[k] = w - eta * ours, v[k] - eta * a[k] * theirs
                    if first and now.s["adaptive"]:
                        a[k] = min(1.0, max(0.0, float(alpha)))
                    first = False
            models[k] = w
        now.average(p, models)
        cohort = yield
    yield np.stack([a[k] * v[k] + (1 - a[k]) * now.w for k in range(now.n)]), {
        "a": np.array(a), "v": np.stack(list(v.values()))
    }  # fmt: skip


def pfedme(now: Run) -> Any:
    theta: dict[int, Array] = {}
    lam, inner, beta = now.s["lam"], now.s["inner_lr"], now.s["beta"]
    cohort = yield
    while cohort is not None:
        p, models = now.weights(cohort), {}
        for k in p:
            w, mine = now.w.copy(), now.w.copy()
            for _ in range(now.case.epochs[k]):
                for b in now.batches(k):
                    for _ in range(now.s["inner_steps"]):
                        mine = mine - inner * (now.f(mine, b) + lam * (mine - w))
                    w = w - now.rate(k) * lam * (w - mine)
            models[k], theta[k] = w, mine
        before = now.w
        now.average(p, models)
        now.w = (1 - beta) * before + beta * now.w
        cohort = yield
    yield np.stack([theta.get(k, now.w) for k in range(now.n)]), {}


def per_fedavg(now: Run) -> Any:
    alpha, delta, variant = now.s["alpha"], now.s["delta"], now.s["variant"]

    def train(k: int) -> Array:
        w, b = now.w.copy(), now.batches(k)
        for _ in range(now.case.epochs[k]):
            for i in range(len(b)):
                one, two, three = (b[(i + j) % len(b)] for j in range(3))
                s = now.f(w - alpha * now.f(w, one), two)
                h = np.zeros_like(s)
                if variant == "hf":
                    h = (now.f(w + delta * s, three) - now.f(w - delta * s, three)) / (2 * delta)
                if variant == "exact":
                    h = now.f(w + 1e-30j * s, three).imag / 1e-30
                w = w - now.rate(k) * (s - alpha * h)
        return w

    def adapted(k: int) -> Array:
        u = now.w
        for _ in range(now.s["adapt_steps"]):
            u = u - alpha * now.whole(u, k)
        return u

    yield from averaging(now, train)
    yield np.stack([adapted(k) for k in range(now.n)]), {}


def fedala(now: Run) -> Any:
    net, f, h, c = now.net, *now.case.dims
    layers = [slice(0, h * f + h)] if h else []
    layers.append(slice(net.d - c * (h or f) - c, net.d))
    chosen = np.zeros(net.size, bool)
    for layer in layers[-now.s["layers"] :]:
        chosen[layer] = True
    own = {k: now.case.w0.copy() for k in range(now.n)}
    weights = {k: np.ones(int(chosen.sum())) for k in range(now.n)}
    learned, seen = set[int](), set[int]()

    def mixture(k: int) -> Array:
        u = now.w.copy()
        u[chosen] = own[k][chosen] + (now.w - own[k])[chosen] * weights[k]
        return u

    cohort = yield
    while cohort is not None:
        p, models = now.weights(cohort), {}
        for k in p:
            start = now.w
            if now.t > 0:
                for _ in range(now.s["weight_epochs"] if k in learned else now.s["start_epochs"]):
                    for b in now.batches(k):
                        g = net.gradient(mixture(k), *b)[0][chosen]
                        moved = weights[k] - now.s["eta"] * g * (now.w - own[k])[chosen]
                        weights[k] = np.clip(moved, 0.0, 1.0)
                learned.add(k)
                start = mixture(k)
            models[k] = now.phase(start, k)
            seen.add(k)
        now.average(p, models)
        own.update(models)
        cohort = yield
    personal = np.stack([own[k] if k in seen else now.w for k in range(now.n)])
    yield personal, {"weights": np.stack(list(weights.values()))}


def fedlc(now: Run) -> Any:
    classes, tau = now.case.dims[2], now.s["tau"]

    def train(k: int) -> Array:
        counts = np.bincount(now.case.y[k], minlength=classes)

        def loss(z: Array, y: Array, hidden: Array) -> tuple[Array, float]:
            dz = np.zeros_like(z)
            for i, true in enumerate(y):
                held = [c for c in range(classes) if counts[c] > 0]
                if now.s["denominator"] == "others":
                    held = [c for c in held if c != true]
                if not held:
                    continue
                a = np.array([z[i, c] - tau * counts[c] ** -0.25 for c in held])
                e = np.exp(a - a.max())
                dz[i, held] += e / e.sum()
                dz[i, true] -= 1
            return dz / len(y), 0.0

        return now.phase(now.w, k, loss=loss)

    yield from averaging(now, train)
    yield None, {}


def fedntd(now: Run) -> Any:
    beta, tau = now.s["beta"], now.s["tau"]

    def train(k: int) -> Array:
        received = now.w.copy()

        def gradient(u: Array, b: tuple[Array, Array]) -> tuple[Array, Array]:
            theirs = now.net.outputs(received, b[0])

            def loss(z: Array, y: Array, hidden: Array) -> tuple[Array, float]:
                dz = cross_entropy(z, y)
                for i, true in enumerate(y):
                    others = [c for c in range(z.shape[1]) if c != true]
                    mine, other = (softmax(row[None, others] / tau)[0] for row in (z[i], theirs[i]))
                    dz[i, others] += beta * tau * (mine - other) / len(y)
                return dz, 0.0

            return now.net.gradient(u, *b, loss)

        return now.phase(now.w, k, gradient=gradient)

    yield from averaging(now, train)
    yield None, {}


def feddecorr(now: Run) -> Any:
    def loss(z: Array, y: Array, hidden: Array) -> tuple[Array, Any]:
        n, dims = hidden.shape
        dz = cross_entropy(z, y)
        paper = now.s["scale"] == "paper"
        if n < 2 or (dims < 2 and not paper):
            return dz, 0.0
        centred = hidden - hidden.mean(0)
        s = np.sqrt((centred**2).sum(0) / (n - 1) + 1e-8)
        u = centred / s
        g = u.T @ u
        if paper:
            dg = now.s["beta"] * 2 * g / (n - 1) ** 2 / dims**2
        else:
            dg = now.s["beta"] * 2 * (g - np.diag(np.diag(g))) / n / (dims * (dims - 1))
        du = 2 * u @ dg
        dc = du / s - centred * (du * centred).sum(0) / s**3 / (n - 1)
        return dz, dc - dc.mean(0)

    yield from averaging(now, lambda k: now.phase(now.w, k, loss=loss))
    yield None, {}


def fedsam(now: Run) -> Any:
    d = now.net.d

    def gradient(u: Array, b: tuple[Array, Array]) -> tuple[Array, Array]:
        g, tail = now.net.gradient(u, *b)
        worst = u.copy()
        if np.linalg.norm(g) > 0:
            worst[:d] += now.s["rho"] * g / np.linalg.norm(g)
        return now.net.gradient(worst, *b)[0], tail

    yield from averaging(now, lambda k: now.phase(now.w, k, gradient=gradient))
    yield None, {}


def fedacg(now: Run) -> Any:
    m, lam, d = np.zeros(now.net.size), now.s["momentum"], now.net.d
    cohort = yield
    while cohort is not None:
        p = now.weights(cohort)
        ahead = now.w + now.case.server_lr * lam * m
        moved = sum(p[k] * (now.phase(ahead, k, mu=now.s["mu"][k]) - ahead) for k in p)
        tail = moved[d:].copy()
        m[:d] = lam * m[:d] + moved[:d]
        now.w = now.w + np.concatenate([now.case.server_lr * m[:d], tail])
        cohort = yield
    yield None, {"m": m}


def fedexp(now: Run) -> Any:
    rates, d = [], now.net.d

    def after(p: dict[int, float], deltas: dict[int, Array]) -> None:
        mean = sum(p[k] * deltas[k] for k in p)
        squares = sum(p[k] * (deltas[k][:d] ** 2).sum() for k in p)
        rates.append(max(1.0, squares / (2 * ((mean[:d] ** 2).sum() + now.s["epsilon"]))))
        now.move(np.concatenate([rates[-1] * mean[:d], mean[d:]]))

    yield from averaging(now, lambda k: now.phase(now.w, k), after)
    yield None, {"server_step": rates}


def fedcm(now: Run) -> Any:
    m, d, alpha = np.zeros(now.net.size), now.net.d, now.s["alpha"]

    def after(p: dict[int, float], deltas: dict[int, Array]) -> None:
        m[:d] = -sum(p[k] * deltas[k][:d] / (now.steps(k) * now.rate(k)) for k in p)
        now.move(sum(p[k] * deltas[k] for k in p))

    yield from averaging(now, lambda k: now.phase(now.w, k, scale=alpha, push=(1 - alpha) * m[:d]), after)
    yield None, {"m": m}


def feddc(now: Run) -> Any:
    size, d, alpha = now.net.size, now.net.d, now.s["alpha"]
    h, g = np.zeros((now.n, size)), np.zeros((now.n, size))

    def train(k: int) -> Array:
        drift = alpha * h[k] + (g[k] - g.mean(0)) / (now.steps(k) * now.rate(k))
        return now.phase(now.w, k, mu=alpha, drift=drift[:d])

    def after(p: dict[int, float], deltas: dict[int, Array]) -> None:
        mean = sum(p[k] * deltas[k] for k in p)
        for k in p:
            h[k, :d] += deltas[k][:d]
            g[k, :d] = deltas[k][:d]
        more = h.mean(0) if now.s["drift"] == "all" else sum(p[k] * h[k] for k in p)
        now.move(mean + more)

    yield from averaging(now, train, after)
    yield None, {"h": h, "g": g}


def mime(lite: bool) -> Any:
    def method(now: Run) -> Any:
        m, d, beta = np.zeros(now.net.size), now.net.d, now.s["beta"]
        cohort = yield
        while cohort is not None:
            p, here = now.weights(cohort), now.w.copy()
            mean = sum(p[k] * now.whole(here, k) for k in p)

            def gradient(u: Array, b: tuple[Array, Array], here: Array = here, mean: Any = mean) -> Any:
                g, tail = now.net.gradient(u, *b)
                if not lite:
                    g = g - now.f(here, b) + mean
                return g, tail

            models = {k: now.phase(here, k, gradient=gradient, scale=1 - beta, push=beta * m[:d]) for k in p}
            now.average(p, models)
            m[:d] = (1 - beta) * mean + beta * m[:d]
            cohort = yield
        yield None, {"m": m}

    return method


METHODS: dict[str, Any] = {
    "fedavg": fedavg,
    "local": kept("full"),
    "fedper": kept("head"),
    "lg_fedavg": kept("body"),
    "fedbn": kept("norm"),
    "fedrep": fedrep,
    "fedbabu": fedbabu,
    "ditto": ditto,
    "apfl": apfl,
    "pfedme": pfedme,
    "per_fedavg": per_fedavg,
    "fedala": fedala,
    "fedlc": fedlc,
    "fedntd": fedntd,
    "feddecorr": feddecorr,
    "fedsam": fedsam,
    "fedacg": fedacg,
    "fedexp": fedexp,
    "fedcm": fedcm,
    "feddc": feddc,
    "mime": mime(lite=False),
    "mimelite": mime(lite=True),
}
