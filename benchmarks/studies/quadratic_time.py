"""How long 15,000 rounds of the quadratic study take, with and without MLflow; writes docs/results/quadratic_time.md.

    python benchmarks/studies/quadratic_time.py [--repeats 3] [--loop 1000]

The README of the study says 3 minutes, and 3 hours (60 times) with MLflow. Four programs, with and without MLflow (an
SQLite store), in alternation: `arno quadratic`, `arno run` with the same settings, and a plain loop as the text
describes it, without and with 100 sampled selections a round for ρ, which writes every round into the store itself.
The plain loop runs --loop rounds (a tenth of them with ρ or MLflow) and is scaled.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import perf_counter

import numpy as np

from arno.analysis.statistics import Summary, summary
from arno.quadratic import Study, draw

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
loops, tracking = import_module("quadratic"), import_module("tracking")
PAGE = ROOT / "docs" / "results" / "quadratic_time.md"
ROUNDS, TIMES = 15_000, 60
STUDY = Study(seltype="powd", powd=9, epochs=ROUNDS)
QUADRATIC, RUN, LOOP, RHO = "`arno quadratic`", "`arno run`", "plain loop", "plain loop that also estimates ρ"
COMMANDS = {
    QUADRATIC: ["quadratic", "seltype=powd", "powd=9", f"epochs={ROUNDS}"],
    RUN: ["run", "--config", str(ROOT / "examples" / "configs" / "quadratic.yaml"), "engine=serial"],
}
TEXT = """\
# 15,000 quadratic rounds, with and without MLflow

    make results NAME=quadratic_time

The README of the power-of-choice study says: 15,000 rounds take 3 minutes on an Intel i7-1370H, and MLflow slows
them down by about 60 times, to 3 hours. Here: K = 30 clients, m = 3 a round, dim 5, two local steps, lr 2e-5,
power-of-choice with d = 9. The seconds are those of the whole command on {cores} cores, with start, records and
pictures; mean and 95 % interval over {repeats} repeats, in alternation. The plain loop is written as the text
describes the study. It ran {rounds:,} rounds ({few:,} with MLflow or ρ), without its start, and is scaled. It
writes two values after every round with `mlflow.log_metrics`. All stores are SQLite files on the same machine. A server
on the internet, as the README used, was not measured: every request then also waits for the network.

| program | seconds | with MLflow | ratio |
| --- | --- | --- | --- |
{rows}

After a tracked run of Arno the store holds all 15,000 values of every metric (read back through MLflow's client).

## What the numbers say

- **3 minutes**: `arno quadratic` takes {fast:.1f} s, of which the rounds are a small part
  (`benchmarks/quadratic.py`). The plain loop takes {plain:.0f} s, and {rho:.0f} s if it samples 100 selections a
  round for ρ. Whether the README's program did that, it does not say; its processor was another one. The claim is
  neither confirmed nor refuted.
- **60 times**: {verdict}. These loops wait for MLflow in every round. Arno's rounds do not wait: a second process
  sends the records. `arno run` takes {run:.1f} times as long with MLflow. `arno quadratic` takes {quadratic:.1f}
  times as long: its rounds take little time, and at its end the command waits until the store has every value.
- **w***: the README gives w* = Σ e_k / Σ p_k h_k. The gradient of F = Σ p_k F_k is Σ p_k (h_k w − e_k), which is
  zero at Σ p_k e_k / Σ p_k h_k. At seed 0 the norm of the gradient is {here:.1g} there, and {there:,.0f} at the
  README's point. Arno uses the formula with p_k. With the README's point, gaps and distances would not fall to
  zero.
"""
Times = dict[tuple[str, bool], list[float]]


def plain_loop(rounds: int, rho: bool, store: Path | None) -> float:
    """Seconds of the plain loop, scaled to all rounds; with a store, every round is written before the next begins."""
    q = draw(STUDY.num_users, STUDY.dim, STUDY.alpha, STUDY.spd, STUDY.seed)
    loop = loops.Loop(q, STUDY)
    loop.round(rho)
    if store is None:
        began = perf_counter()
        for _ in range(rounds):
            loop.round(rho)
        return (perf_counter() - began) * ROUNDS / rounds
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{store / 'plain.db'}")
    with mlflow.start_run():
        mlflow.log_metrics({"gap": 1.0, "distance": 1.0}, step=0)  # the store is made
        began = perf_counter()
        for t in range(rounds):
            gap, distance = loop.round(rho)
            mlflow.log_metrics({"gap": gap, "distance": distance}, step=t + 1)
        return (perf_counter() - began) * ROUNDS / rounds


def measured(repeats: int, rounds: int) -> tuple[Times, dict[str, set[int]]]:
    """Seconds of every program, and how many values of each metric the store holds after a tracked one."""
    times: Times = {}
    held: dict[str, set[int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tracking.command(folder, "quadratic", "epochs=10")  # compiled
        for i in range(repeats):
            for label, words in COMMANDS.items():
                for track in (False, True):
                    run = folder / f"{i}-{words[0]}-{track}"
                    extra = [f"out={run}", *(["track=mlflow"] if track else [])]
                    times.setdefault((label, track), []).append(tracking.command(folder, *words, *extra))
                    if track:
                        held.setdefault(label, set()).update(tracking.stored(folder, run).values())
                    print(label, track, f"{times[label, track][-1]:.2f} s", flush=True)
            for label, store in ((LOOP, None), (LOOP, folder), (RHO, None), (RHO, folder)):
                key, few = (label, store is not None), label == RHO or store is not None
                times.setdefault(key, []).append(plain_loop(rounds // 10 if few else rounds, label == RHO, store))
                print(label, key[1], f"{times[key][-1]:.2f} s", flush=True)
    return times, held


def told(s: Summary, unit: str = "") -> str:
    """A mean with its interval; no end of it is below 0."""
    digits = 1 if s.mean >= 10 else 2
    return f"{s.mean:.{digits}f}{unit} [{max(s.low, 0):.{digits}f}, {s.high:.{digits}f}]"


def optimum() -> tuple[float, float]:
    """The norm of ∇F at Σ p_k e_k / Σ p_k h_k and at Σ e_k / Σ p_k h_k, the formula of the README."""
    q = draw(STUDY.num_users, STUDY.dim, STUDY.alpha, STUDY.spd, STUDY.seed)
    points = (q.p @ q.e / (q.p @ q.h), q.e.sum(0) / (q.p @ q.h))
    norms = [float(np.linalg.norm(q.p @ (q.h[:, None] * w - q.e))) for w in points]
    return norms[0], norms[1]


def page(times: Times, held: dict[str, set[int]], rounds: int) -> str:
    ratios = {}
    rows = []
    for label in (QUADRATIC, RUN, LOOP, RHO):
        off, on = times[label, False], times[label, True]
        ratios[label] = summary([b / a for a, b in zip(off, on, strict=True)])
        rows.append(f"| {label} | {told(summary(off))} | {told(summary(on))} | {told(ratios[label], '×')} |")
    here, there = optimum()
    assert all(counts == {ROUNDS} for counts in held.values()), held
    return TEXT.format(
        cores=os.cpu_count(),
        repeats=len(times[LOOP, False]),
        rounds=rounds,
        few=rounds // 10,
        rows="\n".join(rows),
        fast=summary(times[QUADRATIC, False]).mean,
        plain=summary(times[LOOP, False]).mean,
        rho=summary(times[RHO, False]).mean,
        verdict="; ".join(f"{label}: {verdict(ratios[label])}" for label in (LOOP, RHO)),
        run=ratios[RUN].mean,
        quadratic=ratios[QUADRATIC].mean,
        here=here,
        there=there,
    )


def verdict(ratio: Summary) -> str:
    said = "more than 60" if ratio.low > TIMES else "less than 60" if ratio.high < TIMES else "60 is in the interval"
    return f"{ratio.mean:.1f} times, {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop", type=int, default=3000, help="rounds of the plain loop, scaled to 15,000")
    options = parser.parse_args()
    times, held = measured(options.repeats, options.loop)
    PAGE.write_text(page(times, held, options.loop))
    print(PAGE)


if __name__ == "__main__":
    main()
