"""The methods of `reference.py` written a second time, for any network: autograd of losses that are written as printed.

Nothing of the package is used here, and nothing of `reference.py` but its `Case` and `Outcome`. Every method is a class
with one `round`, as its paper states it; gradients of loss terms and Hessian products come from autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from reference import Case, Outcome
from torch import Tensor, nn
from torch.func import functional_call

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)


def network(case: Case) -> nn.Module:
    """The network of a case of `reference.py`."""
    f, h, c = case.dims
    norm = [nn.BatchNorm1d(h)] if case.norm else []
    hidden = [nn.Linear(f, h), *norm, nn.Tanh()] if h else []
    return nn.Sequential(*hidden, nn.Linear(h or f, c)).double()


class World:
    """A network as one vector, the clients' batches, the kernel and the weights of a mean."""

    def __init__(self, case: Case, module: nn.Module) -> None:
        self.case, self.module, self.n = case, module, len(case.x)
        self.names = [(name, p.shape, p.numel()) for name, p in module.named_parameters()]
        self.d = sum(count for *_, count in self.names)
        self.names += [(n, b.shape, b.numel()) for n, b in module.named_buffers() if b.is_floating_point()]
        self.size = sum(count for *_, count in self.names)
        self.w0 = torch.tensor(case.w0)
        self.w, self.t = self.w0.clone(), 0
        self.data = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(case.x, case.y, strict=True)]
        owners = {name: m for name, m in module.named_modules() if list(m.parameters(recurse=False))}
        self.layers = list(owners)
        self.last = self.layers[-1]
        assert isinstance(owners[self.last], nn.Linear)
        self.head = self.where(lambda layer: layer == self.last)
        self.norm = self.where(lambda layer: isinstance(owners[layer], NORMS))
        self.groups = {"full": self.head | True, "head": self.head, "body": ~self.head, "norm": self.norm}

    def where(self, choose: Callable[[str], bool]) -> Tensor:
        """The coordinates of layers, parameters and buffers."""
        return torch.cat([torch.full((count,), choose(name.rpartition(".")[0])) for name, _, count in self.names])

    def forward(self, u: Tensor, x: Tensor, train: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, the input of the last layer, and the buffers afterwards."""
        parts = dict(zip([n for n, *_ in self.names], u.split([c for *_, c in self.names]), strict=True))
        held = {name: parts[name].reshape(shape) for name, shape, _ in self.names}
        after = {name: value.detach().clone() for name, value in held.items()}
        for name in list(held)[len(list(self.module.parameters())) :]:
            held[name] = after[name]
        seen: list[Tensor] = []
        last = self.module.get_submodule(self.last)
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        outputs = functional_call(self.module.train(train), held, (x,))
        hook.remove()
        tail = torch.cat([after[name].flatten() for name, *_ in self.names])[self.d :]
        return outputs, seen[0], tail

    def batches(self, k: int) -> list[tuple[Tensor, Tensor]]:
        (x, y), size = self.data[k], self.case.batch[k]
        return list(zip(x.split(size), y.split(size), strict=True))

    def rate(self, k: int) -> float:
        return self.case.lr[k] * self.case.lr_decay**self.t

    def steps(self, k: int) -> int:
        return self.case.epochs[k] * -(-len(self.data[k][1]) // self.case.batch[k])

    def grad(self, u: Tensor, b: tuple[Tensor, Tensor], loss: Any = None, graph: bool = False) -> tuple[Tensor, Tensor]:
        """∇ℓ in the parameters, and the buffers afterwards."""
        p = u[: self.d] if graph else u[: self.d].detach().clone().requires_grad_()
        z, hidden, tail = self.forward(torch.cat([p, u[self.d :]]), b[0])
        value = entropy(z, b[1]) if loss is None else loss(z, b[1], hidden, b[0])
        return torch.autograd.grad(value, p, create_graph=graph)[0], tail

    def f(self, u: Tensor, b: tuple[Tensor, Tensor], graph: bool = False) -> Tensor:
        """∇f = ∇ℓ + wd·u."""
        return self.grad(u, b, graph=graph)[0] + self.case.decay * u[: self.d]

    def kernel(
        self,
        start: Tensor,
        k: int,
        epochs: int | None = None,
        moves: str = "full",
        *,
        mu: float = 0.0,
        anchor: Tensor | None = None,
        plus: Any = 0.0,
        loss: Any = None,
        slope: Any = None,
        finish: Any = lambda g: g,
    ) -> Tensor:
        """One phase. slope(u, b): ∇ℓ and buffers; finish(g): g after weight decay, proximal term and `plus`."""
        u, d, chosen, speed = start.clone(), self.d, self.groups[moves], None
        towards = start if anchor is None else anchor
        for _ in range(self.case.epochs[k] if epochs is None else epochs):
            for b in self.batches(k):
                g, tail = self.grad(u, b, loss) if slope is None else slope(u, b)
                if self.case.clip is not None:
                    g = g * min(1.0, self.case.clip / (float(g.norm()) + 1e-6))
                g = finish(g + self.case.decay * u[:d] + mu * (u - towards)[:d] + plus)
                speed = g if speed is None else self.case.momentum * speed + g
                after = torch.cat([u[:d] - self.rate(k) * speed, tail])
                u = torch.where(chosen, after, u)
        return u

    def p(self, cohort: list[int]) -> dict[int, float]:
        """p_k; a client drawn twice counts twice."""
        shares = {k: many * (1 if self.case.uniform else len(self.data[k][1])) for k, many in Counter(cohort).items()}
        return {k: share / sum(shares.values()) for k, share in shares.items()}

    def step(self, mean: Tensor, shared: Tensor | None = None) -> None:
        """w ← w + η_s·mean on shared parameters; w ← w + mean on shared buffers."""
        rate = torch.full((self.size,), self.case.server_lr, dtype=torch.float64)
        rate[self.d :] = 1.0
        moved = self.w + rate * mean
        self.w = moved if shared is None else torch.where(shared, moved, self.w)

    def mean(self, p: dict[int, float], sent: dict[int, Tensor]) -> Tensor:
        """Σ p_k (w_k − w)."""
        return torch.stack([p[k] * (sent[k] - self.w) for k in p]).sum(0)


def entropy(z: Tensor, y: Tensor) -> Tensor:
    return torch.stack([-(row[c] - row.logsumexp(0)) for row, c in zip(z, y, strict=True)]).mean()


class Method:
    """FedAvg with fine-tuning; the others override what their paper changes."""

    def __init__(self, world: World, settings: dict[str, Any]) -> None:
        self.o, self.s = world, settings
        self.prepare()

    def prepare(self) -> None: ...

    def local(self, k: int) -> Tensor:
        return self.o.kernel(self.o.w, k)

    def round(self, cohort: list[int]) -> None:
        o, p = self.o, self.o.p(cohort)
        o.step(o.mean(p, {k: self.local(k) for k in p}))

    def own(self, k: int) -> Tensor | None:
        """The personal model."""
        if "finetune_epochs" not in self.s:
            return None
        return self.o.kernel(self.o.w, k, self.s["finetune_epochs"], self.s["finetune_part"])

    def state(self) -> dict[str, Any]:
        return {}


class Kept(Method):
    """FedPer, LG-FedAvg, FedBN, local training: a group stays with the client."""

    group = "full"

    def prepare(self) -> None:
        self.keep = self.o.groups[self.group]
        self.mine = [self.o.w0] * self.o.n

    def start(self, k: int) -> Tensor:
        return torch.where(self.keep, self.mine[k], self.o.w)

    def local(self, k: int) -> Tensor:
        return self.o.kernel(self.start(k), k)

    def round(self, cohort: list[int]) -> None:
        o, p = self.o, self.o.p(cohort)
        sent = {k: self.local(k) for k in p}
        o.step(o.mean(p, sent), ~self.keep)
        for k in p:
            self.mine[k] = sent[k]

    own = start


class FedPer(Kept):
    group = "head"


class LG(Kept):
    group = "body"


class FedBN(Kept):
    group = "norm"


class FedRep(FedPer):
    def local(self, k: int) -> Tensor:
        first = self.o.kernel(self.start(k), k, self.s["head_epochs"][k], "head")
        return self.o.kernel(first, k, None, "body")


class FedBABU(Method):
    def local(self, k: int) -> Tensor:
        return self.o.kernel(self.o.w, k, None, "body")

    def round(self, cohort: list[int]) -> None:
        o, p = self.o, self.o.p(cohort)
        o.step(o.mean(p, {k: self.local(k) for k in p}), ~o.head)


class Ditto(Method):
    def prepare(self) -> None:
        self.v = [self.o.w0] * self.o.n

    def local(self, k: int) -> Tensor:
        o, s = self.o, self.s
        self.v[k] = o.kernel(self.v[k], k, s["personal_epochs"][k], mu=s["lam"][k], anchor=o.w)
        return o.kernel(o.w, k)

    def own(self, k: int) -> Tensor:
        return self.v[k]


class APFL(Method):
    def prepare(self) -> None:
        self.v, self.a = [self.o.w0] * self.o.n, list(self.s["alpha"])

    def local(self, k: int) -> Tensor:
        o, w, eta = self.o, self.o.w, self.o.rate(k)
        for i, b in enumerate(o.batches(k) * o.case.epochs[k]):
            v, a = self.v[k], self.a[k]
            slope = o.f(a * v + (1 - a) * w, b)
            if i == 0 and self.s["adaptive"]:
                self.a[k] = min(1.0, max(0.0, a - eta * float((v - w) @ slope)))
            w, self.v[k] = w - eta * o.f(w, b), v - eta * a * slope
        return w

    def own(self, k: int) -> Tensor:
        return self.a[k] * self.v[k] + (1 - self.a[k]) * self.o.w

    def state(self) -> dict[str, Any]:
        return {"a": np.array(self.a), "v": torch.stack(self.v).numpy()}


class PFedMe(Method):
    def prepare(self) -> None:
        self.theta: dict[int, Tensor] = {}

    def local(self, k: int) -> Tensor:
        o, s, w, theta = self.o, self.s, self.o.w, self.o.w
        for b in o.batches(k) * o.case.epochs[k]:
            for _ in range(s["inner_steps"]):
                theta = theta - s["inner_lr"] * (o.f(theta, b) + s["lam"] * (theta - w))
            w = w - o.rate(k) * s["lam"] * (w - theta)
        self.theta[k] = theta
        return w

    def round(self, cohort: list[int]) -> None:
        o, p, beta = self.o, self.o.p(cohort), self.s["beta"]
        mean = o.mean(p, {k: self.local(k) for k in p})
        o.w = (1 - beta) * o.w + beta * (o.w + o.case.server_lr * mean)

    def own(self, k: int) -> Tensor:
        return self.theta.get(k, self.o.w)


class PerFedAvg(Method):
    def local(self, k: int) -> Tensor:
        o, s, w = self.o, self.s, self.o.w
        alpha, delta, cut = s["alpha"], s["delta"], self.o.batches(k)
        for _ in range(o.case.epochs[k]):
            for i in range(len(cut)):
                b0, b1, b2 = cut[i], cut[(i + 1) % len(cut)], cut[(i + 2) % len(cut)]
                slope = o.f(w - alpha * o.f(w, b0), b1)
                h = torch.zeros_like(w)
                if s["variant"] == "hf":
                    h = (o.f(w + delta * slope, b2) - o.f(w - delta * slope, b2)) / (2 * delta)
                if s["variant"] == "exact":
                    u = w.clone().requires_grad_()
                    h = torch.autograd.grad(o.f(u, b2, graph=True) @ slope, u)[0]
                w = w - o.rate(k) * (slope - alpha * h)
        return w

    def own(self, k: int) -> Tensor:
        u = self.o.w
        for _ in range(self.s["adapt_steps"]):
            u = u - self.s["alpha"] * self.o.f(u, self.o.data[k])
        return u


class FedALA(Method):
    def prepare(self) -> None:
        o = self.o
        chosen = set(o.layers[-self.s["layers"] :])
        self.u = o.where(lambda layer: layer in chosen)
        self.mine, self.drawn, self.learned = [o.w0] * o.n, set[int](), set[int]()
        self.weights = [torch.ones(int(self.u.sum()), dtype=torch.float64)] * o.n

    def mixed(self, k: int) -> Tensor:
        u = self.o.w.clone()
        u[self.u] = self.mine[k][self.u] + (self.o.w - self.mine[k])[self.u] * self.weights[k]
        return u

    def local(self, k: int) -> Tensor:
        o, s, start = self.o, self.s, self.o.w
        if o.t > 0:
            epochs = s["weight_epochs"] if k in self.learned else s["start_epochs"]
            self.learned.add(k)
            for b in o.batches(k) * epochs:
                slope = o.grad(self.mixed(k), b)[0][self.u[: o.d]]
                moved = self.weights[k] - s["eta"] * slope * (o.w - self.mine[k])[self.u]
                self.weights[k] = moved.clamp(0, 1)
            start = self.mixed(k)
        self.mine[k] = o.kernel(start, k)
        self.drawn.add(k)
        return self.mine[k]

    def own(self, k: int) -> Tensor:
        return self.mine[k] if k in self.drawn else self.o.w

    def state(self) -> dict[str, Any]:
        return {"weights": torch.stack(self.weights).numpy()}


class FedLC(Method):
    def local(self, k: int) -> Tensor:
        counts = torch.bincount(self.o.data[k][1], minlength=self.o.case.dims[2]).double()
        others = self.s["denominator"] == "others"

        def loss(z: Tensor, y: Tensor, hidden: Tensor, x: Tensor) -> Tensor:
            total = 0.0 * z.sum()
            for row, true in zip(z, y.tolist(), strict=True):
                a = {c: row[c] - self.s["tau"] * counts[c] ** -0.25 for c in range(len(row)) if counts[c] > 0}
                below = [a[c] for c in a if not (others and c == true)]
                if below:
                    total = total - (a[true] - torch.stack(below).logsumexp(0))
            return total / len(y)

        return self.o.kernel(self.o.w, k, loss=loss)


class FedNTD(Method):
    def local(self, k: int) -> Tensor:
        received, tau = self.o.w, self.s["tau"]

        def loss(z: Tensor, y: Tensor, hidden: Tensor, x: Tensor) -> Tensor:
            theirs = self.o.forward(received, x, train=False)[0].detach()
            total = entropy(z, y)
            for row, other, true in zip(z, theirs, y.tolist(), strict=True):
                rest = torch.arange(len(row)) != true
                q, g = (row[rest] / tau).log_softmax(0), (other[rest] / tau).log_softmax(0)
                total = total + self.s["beta"] * tau**2 * (g.exp() * (g - q)).sum() / len(y)
            return total

        return self.o.kernel(self.o.w, k, loss=loss)


class FedDecorr(Method):
    def loss(self, z: Tensor, y: Tensor, hidden: Tensor, x: Tensor) -> Tensor:
        (n, d), beta = hidden.shape, self.s["beta"]
        total = entropy(z, y)
        if n == 1:
            return total
        c = hidden - hidden.mean(0)
        u = c / (c.square().sum(0) / (n - 1) + 1e-8).sqrt()
        g = u.T @ u
        if self.s["scale"] == "paper":
            return total + beta / d**2 * (g / (n - 1)).square().sum()
        apart = ~torch.eye(d, dtype=torch.bool)
        return total + (beta / (d * (d - 1)) * g[apart].square().sum() / n if d > 1 else 0.0)

    def local(self, k: int) -> Tensor:
        return self.o.kernel(self.o.w, k, loss=self.loss)


class FedSAM(Method):
    def slope(self, u: Tensor, b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, tail = self.o.grad(u, b)
        if float(a.norm()) > 0:
            u = torch.cat([u[: self.o.d] + self.s["rho"] * a / a.norm(), u[self.o.d :]])
        return self.o.grad(u, b)[0], tail

    def local(self, k: int) -> Tensor:
        return self.o.kernel(self.o.w, k, slope=self.slope)


class FedACG(Method):
    def prepare(self) -> None:
        self.m = torch.zeros(self.o.size, dtype=torch.float64)

    def round(self, cohort: list[int]) -> None:
        o, p, lam, eta = self.o, self.o.p(cohort), self.s["momentum"], self.o.case.server_lr
        ahead = o.w + eta * lam * self.m
        mean = torch.stack([p[k] * (o.kernel(ahead, k, mu=self.s["mu"][k]) - ahead) for k in p]).sum(0)
        self.m[: o.d] = lam * self.m[: o.d] + mean[: o.d]
        o.step(torch.cat([self.m[: o.d], mean[o.d :]]))

    def state(self) -> dict[str, Any]:
        return {"m": self.m.numpy()}


class FedExP(Method):
    def prepare(self) -> None:
        self.rates: list[float] = []

    def round(self, cohort: list[int]) -> None:
        o, p = self.o, self.o.p(cohort)
        sent = {k: self.local(k) for k in p}
        mean = o.mean(p, sent)
        above = sum(p[k] * float((sent[k] - o.w)[: o.d].square().sum()) for k in p)
        self.rates.append(max(1.0, above / (2 * (float(mean[: o.d].square().sum()) + self.s["epsilon"]))))
        o.step(torch.cat([self.rates[-1] * mean[: o.d], mean[o.d :]]))

    def state(self) -> dict[str, Any]:
        return {"server_step": self.rates}


class FedCM(Method):
    def prepare(self) -> None:
        self.m = torch.zeros(self.o.size, dtype=torch.float64)

    def round(self, cohort: list[int]) -> None:
        o, p, a, m = self.o, self.o.p(cohort), self.s["alpha"], self.m[: self.o.d]
        sent = {k: o.kernel(o.w, k, finish=lambda g: a * g + (1 - a) * m) for k in p}
        self.m = torch.zeros_like(self.m)
        for k in p:
            self.m[: o.d] -= p[k] * (sent[k] - o.w)[: o.d] / (o.steps(k) * o.rate(k))
        o.step(o.mean(p, sent))

    def state(self) -> dict[str, Any]:
        return {"m": self.m.numpy()}


class FedDC(Method):
    def prepare(self) -> None:
        self.h = torch.zeros(self.o.n, self.o.size, dtype=torch.float64)
        self.g = self.h.clone()

    def round(self, cohort: list[int]) -> None:
        o, p, a, d = self.o, self.o.p(cohort), self.s["alpha"], self.o.d
        average, sent = self.g.mean(0), {}
        for k in p:
            constant = a * self.h[k] + (self.g[k] - average) / (o.steps(k) * o.rate(k))
            sent[k] = o.kernel(o.w, k, mu=a, plus=constant[:d])
        for k in p:
            self.g[k, :d] = (sent[k] - o.w)[:d]
            self.h[k, :d] += self.g[k, :d]
        drift = self.h.mean(0) if self.s["drift"] == "all" else sum(p[k] * self.h[k] for k in p)
        o.step(o.mean(p, sent) + drift)

    def state(self) -> dict[str, Any]:
        return {"h": self.h.numpy(), "g": self.g.numpy()}


class Mime(FedCM):
    lite = False

    def round(self, cohort: list[int]) -> None:
        o, p, beta, m = self.o, self.o.p(cohort), self.s["beta"], self.m[: self.o.d]
        full = torch.zeros(o.d, dtype=torch.float64)
        for k in p:  # in batches, each sample once
            for b in o.batches(k):
                full = full + p[k] * o.f(o.w, b) * len(b[1]) / len(o.data[k][1])

        def slope(u: Tensor, b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            g, tail = o.grad(u, b)
            return (g if self.lite else g - o.grad(o.w, b)[0]), tail

        plus = 0.0 if self.lite else full - o.case.decay * o.w[: o.d]
        sent = {k: o.kernel(o.w, k, slope=slope, plus=plus, finish=lambda g: (1 - beta) * g + beta * m) for k in p}
        o.step(o.mean(p, sent))
        self.m[: o.d] = (1 - beta) * full + beta * m


class MimeLite(Mime):
    lite = True


METHODS: dict[str, type[Method]] = {
    "fedavg": Method, "local": Kept, "fedper": FedPer, "lg_fedavg": LG, "fedbn": FedBN, "fedrep": FedRep,
    "fedbabu": FedBABU, "ditto": Ditto, "apfl": APFL, "pfedme": PFedMe, "per_fedavg": PerFedAvg, "fedala": FedALA,
    "fedlc": FedLC, "fedntd": FedNTD, "feddecorr": FedDecorr, "fedsam": FedSAM, "fedacg": FedACG, "fedexp": FedExP,
    "fedcm": FedCM, "feddc": FedDC, "mime": Mime, "mimelite": MimeLite,
}  # fmt: skip


def run(case: Case, module: nn.Module | None = None) -> Outcome:
    """All rounds of a case; `module` replaces the network that its dimensions describe."""
    world, out = World(case, network(case) if module is None else module), Outcome()
    method = METHODS[case.method](world, case.settings)
    for world.t, cohort in enumerate(case.rounds):
        if cohort:
            method.round(cohort)
        out.w.append(world.w.numpy().copy())
    owned = [method.own(k) for k in range(world.n)]
    out.personal = None if owned[0] is None else torch.stack(owned).numpy()  # type: ignore[arg-type]
    out.state = method.state()
    return out
