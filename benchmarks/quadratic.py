"""How much faster the quadratic simulation is than a plain loop, on this machine, in one run.

The plain loop is the study as its text describes it: every client has a matrix H_k, losses are ½wᵀHw − eᵀw + ½eᵀH⁻¹e
with the inverse taken for every client and round, gradient steps are taken one by one, and 100 selections a round are
sampled for ρ. It
runs 300 rounds and is scaled to 15,000; with and without the ρ estimates, so that like stands beside like. The fast
side is the kernel's time, the best of several, with compilation cached.

    python benchmarks/quadratic.py [--rounds 15000] [--loop 300]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import arno
from arno.quadratic import Instance, Setting, Study, compiled, draw, simulate, sweep

SAMPLES = 100


class Loop:
    """The plain loop."""

    def __init__(self, q: Instance, study: Study) -> None:
        self.study, self.p, self.w = study, q.p, q.w0.copy()
        self.e = list(q.e)
        self.h = [np.diag(np.full(study.dim, h)) for h in q.h]
        self.rng = np.random.default_rng(0)
        self.star = np.linalg.inv(sum(p * h for p, h in zip(self.p, self.h, strict=True))) @ (q.p @ q.e)
        self.each, self.at_star = self.losses(self.w), self.losses(self.star)

    def loss(self, k: int, w: np.ndarray) -> float:
        h, e = self.h[k], self.e[k]
        return 0.5 * w.T @ h @ w - e.T @ w + 0.5 * e.T @ np.linalg.inv(h) @ e

    def losses(self, w: np.ndarray) -> np.ndarray:
        return np.array([self.loss(k, w) for k in range(self.study.num_users)])

    def select(self) -> np.ndarray:
        s = self.study
        if s.seltype == "rand":
            return self.rng.choice(s.num_users, s.m, p=self.p)
        candidates = self.rng.choice(s.num_users, s.d, p=self.p, replace=False)
        return candidates[np.argsort(-self.each[candidates])[: s.m]]

    def rho(self, each: np.ndarray, cohorts: list[np.ndarray]) -> float:
        mean = np.mean([sum(each[k] for k in cohort) / self.study.m for cohort in cohorts])
        return float(mean / (self.p @ each))

    def round(self, rho: bool) -> tuple[float, float]:
        if rho:
            cohorts = [self.select() for _ in range(SAMPLES)]
            self.rho(self.each, cohorts)
            self.rho(self.at_star, cohorts)
        models = []
        for k in self.select():
            w = self.w.copy()
            for _ in range(self.study.le):
                w = w - self.study.lr * (self.h[k] @ w - self.e[k])
            models.append(w)
        self.w = np.mean(models, axis=0)
        self.each = self.losses(self.w)
        return float(self.p @ (self.each - self.at_star)), float(np.linalg.norm(self.w - self.star))


def seconds(job: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15000)
    parser.add_argument("--loop", type=int, default=300, help="rounds of the plain loop, scaled to --rounds")
    options = parser.parse_args()
    rounds, loop_rounds = options.rounds, options.loop
    missed = []
    print(f"K=30, m=3, dim 5, {rounds} rounds; the loop scaled from {loop_rounds}; s = seconds")
    print("rho: whether the loop and the fast side estimate it")
    print(f"{'strategy':<12}{'rho':>8}{'loop s':>9}{'fast s':>10}{'ratio':>10}{'bar':>8}")
    for study in (
        Study(seltype="rand", epochs=rounds),
        Study(seltype="powd", powd=9, epochs=rounds),
        Study(seltype="powd", powd=30, epochs=rounds),
    ):
        instance = draw(study.num_users, study.dim, study.alpha, study.spd, study.seed)
        simulate(replace(study, epochs=2))
        slow = {}
        for rho in (True, False):
            loop = Loop(instance, study)
            slow[rho] = seconds(lambda: [loop.round(rho) for _ in range(loop_rounds)], 1) * rounds / loop_rounds  # noqa: B023
        fast = {
            rho: seconds(partial(compiled, Setting.of(replace(study, rho=rho))), 3 if rho else 20)
            for rho in (True, False)
        }
        whole = seconds(partial(simulate, study), 5)
        for with_rho, fast_rho, bar in ((True, True, 200), (True, False, 5000), (False, False, None)):
            ratio = slow[with_rho] / fast[fast_rho]
            name = f"{'yes' if with_rho else 'no'}/{'yes' if fast_rho else 'no'}"
            shown = "" if bar is None else str(bar)
            print(f"{study.label:<12}{name:>8}{slow[with_rho]:>9.1f}{fast[fast_rho]:>10.4f}{ratio:>10,.0f}{shown:>8}")
            if bar is not None and ratio < bar:
                missed.append(f"{study.label} {name}: {ratio:.0f} < {bar}")
        print(f"{'':<12}without rho, with drawing the problem, gap and distance: {whole:.4f} s")
    grid = [Study(seltype=s, powd=d, epochs=rounds, seed=i) for s, d in STRATEGIES for i in range(20)]
    print(f"sweep of {len(grid)} runs: {seconds(lambda: sweep(grid), 1):.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        for seltype in ("rand", "powd"):
            command = [sys.executable, "-m", "arno", "quadratic", f"seltype={seltype}", f"epochs={rounds}"]
            paths = os.pathsep.join([str(Path(arno.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
            job = partial(subprocess.run, [*command, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = seconds(partial(job, env=os.environ | {"PYTHONPATH": paths}), 2)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 2
            print(
                f"arno quadratic seltype={seltype}: {spent:.2f} s (bar: 5), imports, records and picture included; ",
                end="",
            )
            print(f"{cpu:.2f} s of processor time")
            if spent >= 5:
                missed.append(f"the command with {seltype}: {spent:.2f} s")
    print("missed: " + "; ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


STRATEGIES = (("rand", None), ("powd", 6), ("powd", 9), ("powd", 15), ("powd", 30), ("adapowd", 30))

if __name__ == "__main__":
    sys.exit(main())
