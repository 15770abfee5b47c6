"""What QR-Mix costs a client, the server and the network; writes docs/results/qrmix_cost.md.

    python benchmarks/studies/qrmix_cost.py [--repeats 10]

k = 10 pairs, 10 further columns, 2 power iterations, 500 images of 3 × 32 × 32 per client (CIFAR-10 over 100 clients),
5 clients in a round, one thread. Images are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from arno.analysis.statistics import Summary, summary
from arno.methods.qrmix import eigenpairs, hessian_product, mix
from arno.models import models
from arno.models.network import last_linear

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "qrmix_cost.md"
SAMPLES, CLIENTS, K, S, ITERATIONS, BATCH = 500, 5, 10, 10, 2, 100
TEXT = """\
# What QR-Mix costs

    make results NAME=qrmix_cost

The README of FedRCL with QR-Mix says: +1 to +3 s per client and round, +10 to +50 ms on the server, about 10 MB
of eigenpairs per client (k = 10, 10,000 parameters in the last layer). Here: k = 10, 10 further columns, 2 power
iterations; 500 images of 3 × 32 × 32 per client (CIFAR-10 over 100 clients), 5 clients in a round, one thread,
random images; mean and 95 % interval over {repeats} repeats. *Client*: one pass over the images, then the
eigenpairs. *Server*: the rule `seed`, in float64. *Sent*: eigenvalues and eigenvectors of one client in float32,
next to the model.

| network | parameters of the last layer | client, s | of it eigenpairs, s | server, ms | sent, MB | model, MB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

## What the numbers say

- **Client**: {client}.
- **Server**: {server}.
- **Bytes**: ten vectors of 10,000 float32 numbers are 0.4 MB ({sent:.2f} MB with 10,260 parameters), not 10 MB. Against
  the model it is {share}.

Whether QR-Mix improves the result is another question: [QR-Mix](qrmix.md).
"""


def seconds(job: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of a job, after one that is not counted."""
    job()
    out = []
    for _ in range(repeats):
        began = perf_counter()
        job()
        out.append(perf_counter() - began)
    return out


class Case:
    """A network with its last layer, and one client's images."""

    def __init__(self, label: str, kind: str, classes: int, **settings: int) -> None:
        torch.manual_seed(0)
        self.label, self.module = label, models.get(kind)((3, 32, 32), classes, **settings)
        found = last_linear(self.module)
        assert found is not None
        self.head, self.x = found[1], torch.randn(SAMPLES, 3, 32, 32)
        self.q = sum(p.numel() for p in self.head.parameters())
        self.size = sum(p.numel() for p in self.module.parameters())
        self.module.eval()

    def features(self) -> tuple[Tensor, Tensor]:
        """The inputs of the last layer and the softmax of its outputs."""
        inputs: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda layer, given: inputs.append(given[0]))
        with torch.no_grad():
            outputs = torch.cat([self.module(x) for x in self.x.split(BATCH)])
        hook.remove()
        return torch.cat(inputs), outputs.softmax(1)

    def pairs(self, f: Tensor, p: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(seed)
        return eigenpairs(lambda v: hessian_product(f, p, v), self.q, K, S, ITERATIONS, random, like=f)

    def row(self, repeats: int) -> dict[str, Summary | float]:
        f, p = self.features()
        made = [self.pairs(f[i::CLIENTS], p[i::CLIENTS], i) for i in range(CLIENTS)]
        deltas, share = torch.randn(CLIENTS, self.q), torch.full((CLIENTS,), 1 / CLIENTS)
        evals, evecs = made[0]
        return {
            "client": summary(seconds(lambda: self.pairs(*self.features()), repeats)),
            "pairs": summary(seconds(lambda: self.pairs(f, p), repeats)),
            "server": summary([1e3 * s for s in seconds(lambda: mix(made, deltas, share, beta=0.01), repeats)]),
            "sent": 4e-6 * (evals.numel() + evecs.numel()),
            "model": 4e-6 * self.size,
        }


def told(s: Summary, digits: int) -> str:
    return f"{s.mean:.{digits}f} [{s.low:.{digits}f}, {s.high:.{digits}f}]"


def inside(rows: list[dict[str, Summary | float]], name: str, low: float, high: float, unit: str) -> str:
    """The range over the networks, next to the range that the README claims."""
    means = [row[name].mean for row in rows]
    where = "below" if max(means) < low else "above" if min(means) > high else "not for all networks in"
    where = "in" if low <= min(means) <= max(means) <= high else where
    return f"{min(means):.3g} to {max(means):.3g} {unit}, {where} the README's {low:g} to {high:g} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        Case("`lenet5`, 10 classes", "lenet5", 10),
        Case("`simple5layercnn`, 10 classes", "simple5layercnn", 10),
        Case("`resnet18` of width 16, 10 classes", "resnet18", 10, width=16),
        Case("`resnet18`, 10 classes", "resnet18", 10),
        Case("`resnet18`, 20 classes", "resnet18", 20),
        Case("`resnet18`, 100 classes", "resnet18", 100),
    ]
    rows = [case.row(options.repeats if "16" in case.label or "net18" not in case.label else 3) for case in cases]
    lines = []
    for case, row in zip(cases, rows, strict=True):
        cells = [case.label, f"{case.q:,}"]
        cells += [told(row[name], digits) for name, digits in (("client", 2), ("pairs", 3), ("server", 1))]
        cells += [f"{row[name]:.2f}" for name in ("sent", "model")]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    shares = [float(row["sent"]) / float(row["model"]) for row in rows]
    PAGE.write_text(
        TEXT.format(
            repeats=f"{options.repeats} (3 with the full-width `resnet18`)",
            rows="\n".join(lines),
            client=inside(rows, "client", 1, 3, "s"),
            server=inside(rows, "server", 10, 50, "ms"),
            sent=next(float(row["sent"]) for case, row in zip(cases, rows, strict=True) if case.q == 10_260),
            share=f"{100 * min(shares):.1f} to {100 * max(shares):.0f} %",
        )
    )
    print(PAGE)


if __name__ == "__main__":
    main()
