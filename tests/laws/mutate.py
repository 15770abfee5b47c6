"""Break one line at a time and see whether a law notices: `python tests/laws/mutate.py [word of a mutant]`.

Each mutant runs in a forked child in which Arno is imported anew from the broken source. Prints `killed` or `SURVIVED`
for each, and exits with the number of survivors.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2] / "src" / "arno"

#: (file, what stands there, what a typical mistake would write, the law that must notice)
MUTANTS: list[tuple[str, str, str, str]] = [
    (
        "core/local.py",
        "g.add_(p - anchor, alpha=job.mu)",
        "g.add_(anchor - p, alpha=job.mu)",
        "the_proximal_term_pulls_from_the_second_batch_on",
    ),
    (
        "core/local.py",
        "g.add_(p - anchor, alpha=job.mu)",
        "g.add_(p, alpha=job.mu)",
        "the_proximal_term_pulls_from_the_second_batch_on",
    ),
    (
        "core/local.py",
        "g.add_(p, alpha=sgd.weight_decay)",
        "g.add_(anchor, alpha=sgd.weight_decay)",
        "momentum_and_clipping_are_those_of_torch",
    ),
    ("core/local.py", "g.add_(drift)", "g.sub_(drift)", "scaffold_control_of_a_client_is_its_mean_gradient"),
    ("core/local.py", "g.mul_(mask)", "pass", "conformance_cases_hold"),
    ("core/local.py", "alpha=-job.lr)", "alpha=job.lr)", "fedavg_with_one_step_of_everybody_is_gradient_descent"),
    ("core/local.py", "clamp(max=1.0)", "clamp(max=1e9)", "momentum_and_clipping_are_those_of_torch"),
    (
        "core/local.py",
        "velocity.mul_(sgd.momentum).add_(g)",
        "velocity.mul_(sgd.momentum).add_(g, alpha=1 - sgd.momentum)",
        "momentum_and_clipping_are_those_of_torch",
    ),
    (
        "core/local.py",
        "torch.sub(w, start, out=delta)",
        "delta.copy_(w)",
        "fedavg_with_one_step_of_everybody_is_gradient_descent",
    ),
    ("core/federation.py", "step = self.server_lr * v", "step = v", "server_lr_scales_the_step"),
    (
        "core/federation.py",
        "weight = count.double() *",
        "weight = torch.ones(len(count)).double() *",
        "a_client_drawn_twice_trains_once_and_counts_twice",
    ),
    (
        "core/federation.py",
        "weight = weight / weight.sum()",
        "weight = weight / len(weight)",
        "a_client_drawn_twice_trains_once_and_counts_twice",
    ),
    (
        "core/federation.py",
        "self.local.lr_decay ** max(t, 0)",
        "self.local.lr_decay ** (max(t, 0) + 1)",
        "weight_decay_and_learning_rate_decay",
    ),
    (
        "core/federation.py",
        'if self.weighting == "samples" else 1',
        "if True else 1",
        "conformance_cases_hold",
    ),
    ("core/table.py", "(rows - self[ids])", "rows", "fedvarp_removes_the_noise_of_participation"),
    (
        "core/table.py",
        "self._total / self.n",
        "self._total / max(self.seen, 1)",
        "fedvarp_remembers_the_last_update_of_every_client",
    ),
    ("core/work.py", "/ self.cohort", "/ len(self.clients)", "a_client_drawn_twice_trains_once_and_counts_twice"),
    ("core/work.py", "out[j, window.index] = rows[j, window.index]", "out[j] = rows[j]", "conformance_cases_hold"),
    (
        "methods/scaffold.py",
        "self.c - self.ck[work.clients])",
        "self.ck[work.clients] - self.c)",
        "scaffold_control_of_a_client_is_its_mean_gradient",
    ),
    (
        "methods/scaffold.py",
        "self.c - self.ck[work.clients])",
        "self.c)",
        "scaffold_control_of_a_client_is_its_mean_gradient",
    ),
    (
        "methods/scaffold.py",
        "work.masked(-self.c - out.delta",
        "work.masked(-self.c + out.delta",
        "scaffold_control_of_a_client_is_its_mean_gradient",
    ),
    (
        "methods/scaffold.py",
        "work.masked(-self.c - out.delta",
        "work.masked(-out.delta",
        "scaffold_control_of_a_client_is_its_mean_gradient",
    ),
    ("methods/scaffold.py", "(work.steps * work.lr)", "work.lr", "fedavg_stalls_where_scaffold_reaches_the_optimum"),
    ("methods/scaffold.py", "self.ck[work.clients] + dck", "dck", "scaffold_control_of_a_client_is_its_mean_gradient"),
    (
        "methods/scaffold.py",
        "work.cohort / self.ck.n * (work.weight @ dck)",
        "work.weight @ dck",
        "scaffold_control_is_the_mean_of_the_clients_controls",
    ),
    ("methods/scaffold.py", "self._change += work", "self.c = self.c + work", "a_streamed_round_is_the_round"),
    (
        "methods/fedvarp.py",
        "work.share @ (out.delta - y)",
        "work.share @ out.delta",
        "fedvarp_removes_the_noise_of_participation",
    ),
    ("methods/fedvarp.py", "return v + self._mean", "return v", "fedvarp_removes_the_noise_of_participation"),
    ("methods/fedvarp.py", "return v + self._mean", "return v + self.y.mean()", "fedvarp_with_everybody_is_fedavg"),
    (
        "methods/fedvarp.py",
        "self.y[work.clients] = out.delta",
        "self.y[work.clients] += out.delta",
        "fedvarp_removes_the_noise_of_participation",
    ),
    (
        "methods/cluster_fedvarp.py",
        "return v + self._mean",
        "return v",
        "cluster_memory_is_the_mean_of_its_participants",
    ),
    (
        "methods/cluster_fedvarp.py",
        "self._share @ self.y",
        "self.y.mean(0)",
        "cluster_memory_is_the_mean_of_its_participants",
    ),
    (
        "methods/cluster_fedvarp.py",
        "self._sum[seen] / self._count[seen, None]",
        "self._sum[seen]",
        "cluster_memory_is_the_mean_of_its_participants",
    ),
    (
        "methods/cluster_fedvarp.py",
        "count[:, None] * out.delta",
        "out.delta",
        "cluster_memory_is_the_mean_of_its_participants",
    ),
    ("methods/cluster_fedvarp.py", "work.masked(self.y[q])", "self.y[q]", "conformance_cases_hold"),
    (
        "methods/fedprox.py",
        "work.mu + self._mu",
        "work.mu - self._mu",
        "the_proximal_term_pulls_from_the_second_batch_on",
    ),
    (
        "methods/window.py",
        "first = t % n if",
        "first = 0 if",
        "a_window_moves_only_its_units_and_rolls_over_all_of_them",
    ),
    (
        "methods/window.py",
        "int(beta * n + 1e-9)",
        "int(beta * n + 1)",
        "a_window_moves_only_its_units_and_rolls_over_all_of_them",
    ),
    ("methods/window.py", "v / self._cover, 0)", "v, 0)", "a_coordinate_is_averaged_over_those_who_hold_it"),
    ("methods/window.py", 'self.normalize == "coverage" and', "", "a_coordinate_is_averaged_over_those_who_hold_it"),
    (
        "methods/fedavgm.py",
        "self.momentum * self.M + v",
        "self.momentum * self.M + (1 - self.momentum) * v",
        "server_momentum_adds_up_past_steps",
    ),
    (
        "methods/fedopt.py",
        "torch.sign(self.V - square)",
        "torch.sign(square - self.V)",
        "adaptive_servers_follow_their_formulas",
    ),
    (
        "methods/fedopt.py",
        "self.beta2 * self.V + (1 - self.beta2) * square",
        "self.beta2 * self.V + square",
        "adaptive_servers_follow_their_formulas",
    ),
    (
        "methods/fedopt.py",
        "self.V.sqrt() + self.tau",
        "(self.V + self.tau).sqrt()",
        "adaptive_servers_follow_their_formulas",
    ),
    ("methods/fedopt.py", "self.tau**2", "0.0", "adaptive_servers_follow_their_formulas"),
    ("methods/fednova.py", "return self._steps * v", "return v", "fednova_counts_gradients_per_step"),
    (
        "methods/fednova.py",
        "(work.weight / a) @ out.delta",
        "work.weight @ out.delta",
        "fednova_counts_gradients_per_step",
    ),
    ("methods/fednova.py", "rho * (1 - rho**steps)", "(1 - rho**steps)", "fednova_counts_gradients_per_step"),
    ("methods/feddyn.py", "-self.gk[work.clients]), mu", "self.gk[work.clients]), mu", "feddyn_reaches_the_optimum"),
    ("methods/feddyn.py", "- self.alpha * out.delta", "+ self.alpha * out.delta", "feddyn_reaches_the_optimum"),
    ("methods/feddyn.py", "return v - self.h / self.alpha", "return v", "feddyn_reaches_the_optimum"),
    ("methods/feddyn.py", "self.alpha / self.gk.n", "self.alpha", "feddyn_reaches_the_optimum"),
    (
        "methods/moon.py",
        "F.softplus(far - near)",
        "F.softplus(near - far)",
        "moon_contrasts_the_global_with_the_last_model",
    ),
    ("methods/moon.py", "work.start + out.delta", "work.start", "moon_contrasts_the_global_with_the_last_model"),
    (
        "methods/server_lr.py",
        "pi * t / self._rounds",
        "pi * (t + 1) / self._rounds",
        "a_server_schedule_scales_the_steps",
    ),
    (
        "selection.py",
        "self.cohorts[t % len(self.cohorts)]",
        "self.cohorts[0]",
        "fedavg_stalls_where_scaffold_reaches_the_optimum",
    ),
]


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of Arno from other source text."""

    def __init__(self, path: Path, source: str) -> None:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        self.name, self.path, self.source = ".".join(parts), path, source

    def find_spec(self, name, where, target=None):  # type: ignore[no-untyped-def]
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        exec(compile(self.source, self.path, "exec"), module.__dict__)


def killed(mutant: tuple[str, str, str, str]) -> bool:
    """Whether its law fails on the broken code (in a child of its own)."""
    file, old, new, law = mutant
    source = (ROOT / file).read_text()
    assert source.count(old) == 1, (
        f"{file}: {old!r} stands there {source.count(old)} times: bring the mutant up to date"
    )
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    status = 2
    try:
        sys.meta_path.insert(0, Broken(ROOT / file, source.replace(old, new)))
        from laws import LAWS

        status = 0
        try:
            LAWS[f"law_{law}"]()
        except Exception:
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main(words: list[str]) -> int:
    """Try every mutant whose line holds all the words."""
    torch.set_num_threads(1)
    survivors = 0
    for mutant in MUTANTS:
        if all(word in " ".join(mutant) for word in words):
            dead = killed(mutant)
            survivors += not dead
            fate = "killed  " if dead else "SURVIVED"
            print(f"{fate} {mutant[0]}: {mutant[1]}  →  {mutant[2]}  ({mutant[3]})", flush=True)
    return survivors


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(ROOT.parent)]
    sys.exit(main(sys.argv[1:]))
