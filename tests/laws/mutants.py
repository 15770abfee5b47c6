"""Mistakes that are easy to make, each with the law that must notice it. `broken.py` explains the patterns."""

from __future__ import annotations

from collections.abc import Mapping

from broken import Mutant

MUTANTS: list[Mutant] = []


def breaks(module: str, where: str, law: str, *changes: Mapping[str, str]) -> None:
    """Add mutants of one function to the table, all of which one law must notice."""
    MUTANTS.extend(Mutant(module, where, change, law) for change in changes)


# Local training

breaks(
    "core/local_sgd.py", "descend", "the_proximal_term_pulls_from_the_second_batch_on",
    {"G.add_(P - A, alpha=J.mu)": "G.add_(A - P, alpha=J.mu)"},
    {"G.add_(P - A, alpha=J.mu)": "G.add_(P, alpha=J.mu)"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "descend", "momentum_and_clipping_are_those_of_torch",
    {
        "G.add_(P - A, alpha=J.mu)": "G.add_(P - A, alpha=J.mu)",
        "if D: G.add_(P, alpha=D)": "if D: G.add_(A, alpha=D)",
    },
    {"A.clamp(max=1.0)": "A.clamp(max=1e9)"},
    {"V.mul_(S.momentum).add_(G)": "V.mul_(S.momentum).add_(G, alpha=1 - S.momentum)"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "descend", "scaffold_control_of_a_client_is_its_mean_gradient",
    {"if D is not None: G.add_(D)": "if D is not None: G.sub_(D)"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "descend", "conformance_cases_hold",
    {"if M is not None: G.mul_(M)": "pass"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "descend", "fedavg_with_one_step_of_everybody_is_gradient_descent",
    {"P.add_(G, alpha=-J.lr)": "P.add_(G, alpha=J.lr)"},
    {"torch.sub(W, S, out=D)": "D.copy_(W)"},
)  # fmt: skip

# The round

breaks(
    "core/federation.py", "Federation.round", "server_lr_scales_the_step",
    {"self.server_lr * V": "1.0 * V"},
)  # fmt: skip
breaks(
    "core/federation.py", "Federation.plain_blocks", "a_client_drawn_twice_trains_once_and_counts_twice",
    {"C.double() * W": "torch.ones(len(C)).double() * W"},
    {"W / W.sum()": "W / len(W)"},
)  # fmt: skip
breaks(
    "core/federation.py", "Federation.plain_blocks", "weight_decay_and_learning_rate_decay",
    {"self.local.lr_decay ** max(T, 0)": "self.local.lr_decay ** (max(T, 0) + 1)"},
)  # fmt: skip
breaks(
    "core/federation.py", "Federation.plain_blocks", "conformance_cases_hold",
    {'A if self.weighting == "samples" else 1': "A"},
)  # fmt: skip
breaks(
    "core/problem.py", "Clients.steps", "steps_are_counted_as_they_are_taken",
    {"-(-A // B)": "A // B"},
    {"E * -(-A // B)": "-(-A // B)"},
)  # fmt: skip
breaks(
    "core/table.py", "ClientTable.__setitem__", "fedvarp_removes_the_noise_of_participation",
    {"(R - self[I]).sum(0, dtype=T)": "R.sum(0, dtype=T)"},
)  # fmt: skip
breaks(
    "core/table.py", "ClientTable.mean", "fedvarp_remembers_the_last_update_of_every_client",
    {"self._total / self.n": "self._total / max(self.seen, 1)"},
)  # fmt: skip
breaks(
    "core/work.py", "Work.share", "a_client_drawn_twice_trains_once_and_counts_twice",
    {"A / self.cohort": "A / len(self.clients)"},
)  # fmt: skip
breaks(
    "core/work.py", "Work.masked", "conformance_cases_hold",
    {"A[J, W.index] = B[J, W.index]": "A[J] = B[J]"},
)  # fmt: skip

# The order of parts

breaks(
    "core/method_part.py", "ROLES", "a_later_role_acts_on_what_an_earlier_one_made",
    {'"mean"': '"server"', '"server"': '"mean"'},
    {'"server"': '"rate"', '"rate"': '"server"'},
    {'"window"': '"server"', '"server"': '"window"'},
    {'"mean"': '"rate"', '"rate"': '"mean"'},
)  # fmt: skip
breaks(
    "core/method_part.py", "ROLES", "clients_are_selected_before_they_are_ordered",
    {'"select"': '"order"', '"order"': '"select"'},
)  # fmt: skip
breaks(
    "core/method_part.py", "in_order", "the_order_in_which_parts_are_listed_does_not_matter",
    {"sorted(P, key=K)": "list(P)"},
)  # fmt: skip
breaks(
    "core/method_part.py", "_place", "a_part_with_several_roles_acts_at_the_first_of_them",
    {"min(P, default=D)": "max(P, default=D)"},
)  # fmt: skip
breaks(
    "core/method_part.py", "_refuse_conflict", "two_parts_in_one_role_are_refused",
    {"A - SHARED": "A - SHARED - A"},
)  # fmt: skip
breaks(
    "core/method_part.py", "_refuse_conflict", "parts_without_a_role_that_change_the_same_callback_are_refused",
    {"if A and B: raise C": "pass"},
)  # fmt: skip

# SCAFFOLD

breaks(
    "methods/scaffold.py", "Scaffold.send", "scaffold_control_of_a_client_is_its_mean_gradient",
    {"self.c - C": "C - self.c"},
    {"self.c - C": "self.c.expand_as(C)"},
)  # fmt: skip
breaks(
    "methods/scaffold.py", "Scaffold.receive", "scaffold_control_of_a_client_is_its_mean_gradient",
    {"-self.c - D": "-self.c + D"},
    {"-self.c - D": "-D"},
    {"self.ck[K] + D": "D"},
)  # fmt: skip
breaks(
    "methods/scaffold.py", "Scaffold.receive", "fedavg_stalls_where_scaffold_reaches_the_optimum",
    {"W.steps * W.lr": "W.lr"},
)  # fmt: skip
breaks(
    "methods/scaffold.py", "Scaffold.receive", "scaffold_control_is_the_mean_of_the_clients_controls",
    {"W.cohort / self.ck.n * (W.weight @ D)": "W.weight @ D"},
)  # fmt: skip
breaks(
    "methods/scaffold.py", "Scaffold.receive", "a_streamed_round_is_the_round",
    {"self._change += D": "self.c = self.c + D"},
)  # fmt: skip

# FedVARP and ClusterFedVARP

breaks(
    "methods/fedvarp.py", "Varp.receive", "fedvarp_removes_the_noise_of_participation",
    {"W.share @ (D - Y)": "W.share @ D"},
    {"self.y[K] = D": "self.y[K] += D"},
)  # fmt: skip
breaks(
    "methods/fedvarp.py", "Varp.finish", "fedvarp_removes_the_noise_of_participation",
    {"V + self._mean": "V"},
)  # fmt: skip
breaks(
    "methods/fedvarp.py", "Varp.finish", "fedvarp_with_everybody_is_fedavg",
    {"V + self._mean": "V + self.y.mean()"},
)  # fmt: skip
breaks(
    "methods/cluster_fedvarp.py", "ClusterVarp.finish", "cluster_memory_is_the_mean_of_its_participants",
    {"V + self._mean": "V"},
    {"self._sum[S] / C": "self._sum[S]"},
)  # fmt: skip
breaks(
    "methods/cluster_fedvarp.py", "ClusterVarp.begin", "cluster_memory_is_the_mean_of_its_participants",
    {"self._share @ self.y": "self.y.mean(0)"},
)  # fmt: skip
breaks(
    "methods/cluster_fedvarp.py", "ClusterVarp.receive", "cluster_memory_is_the_mean_of_its_participants",
    {"C[:, None] * O.delta": "O.delta"},
)  # fmt: skip
breaks(
    "methods/cluster_fedvarp.py", "ClusterVarp.receive", "conformance_cases_hold",
    {"W.masked(self.y[Q])": "self.y[Q]"},
)  # fmt: skip

# FedProx and windows

breaks(
    "methods/fedprox.py", "Proximal.send", "the_proximal_term_pulls_from_the_second_batch_on",
    {"W.mu + M": "W.mu - M"},
)  # fmt: skip
breaks(
    "methods/sub_models.py", "Window._window", "a_window_moves_only_its_units_and_rolls_over_all_of_them",
    {'T % N if self.rule == "rolling" else 0': "0"},
    {"int(B * N + 1e-9)": "int(B * N + 1)"},
)  # fmt: skip
breaks(
    "methods/sub_models.py", "Window.finish", "a_coordinate_is_averaged_over_those_who_hold_it",
    {"V / self._cover": "V"},
)  # fmt: skip
breaks(
    "methods/sub_models.py", "Window.start", "a_coordinate_is_averaged_over_those_who_hold_it",
    {'self.normalize == "coverage"': "True"},
)  # fmt: skip

# Servers

breaks(
    "methods/fedavgm.py", "ServerMomentum.finish", "server_momentum_adds_up_past_steps",
    {"self.momentum * self.M + V": "self.momentum * self.M + (1 - self.momentum) * V"},
)  # fmt: skip
breaks(
    "methods/fedopt.py", "ServerAdaptive.finish", "adaptive_servers_follow_their_formulas",
    {"torch.sign(self.V - S)": "torch.sign(S - self.V)"},
    {"self.beta2 * self.V + (1 - self.beta2) * S": "self.beta2 * self.V + S"},
    {"self.V.sqrt() + self.tau": "(self.V + self.tau).sqrt()"},
)  # fmt: skip
breaks(
    "methods/fedopt.py", "ServerAdaptive.start", "adaptive_servers_follow_their_formulas",
    {"self.tau ** 2": "0.0"},
)  # fmt: skip
breaks(
    "methods/server_lr.py", "ServerSchedule.factor", "a_server_schedule_scales_the_steps",
    {"pi * T / self._rounds": "pi * (T + 1) / self._rounds"},
)  # fmt: skip

# FedNova, FedDyn, MOON, selection

breaks(
    "methods/fednova.py", "Nova.finish", "fednova_counts_gradients_per_step",
    {"self._steps * V": "V"},
)  # fmt: skip
breaks(
    "methods/fednova.py", "Nova.receive", "fednova_counts_gradients_per_step",
    {"(W.weight / A) @ D": "W.weight @ D"},
)  # fmt: skip
breaks(
    "methods/fednova.py", "normaliser", "fednova_counts_gradients_per_step",
    {"R * (1 - R**S)": "(1 - R**S)"},
)  # fmt: skip
breaks(
    "methods/feddyn.py", "Dyn.send", "feddyn_reaches_the_optimum",
    {"-self.gk[K]": "self.gk[K]"},
)  # fmt: skip
breaks(
    "methods/feddyn.py", "Dyn.receive", "feddyn_reaches_the_optimum",
    {"G - self.alpha * O.delta": "G + self.alpha * O.delta"},
)  # fmt: skip
breaks(
    "methods/feddyn.py", "Dyn.finish", "feddyn_reaches_the_optimum",
    {"V - self.h / self.alpha": "V"},
    {"self.alpha / self.gk.n": "self.alpha"},
)  # fmt: skip
breaks(
    "methods/moon.py", "Contrast.__call__", "moon_contrasts_the_global_with_the_last_model",
    {"F.softplus(A - B)": "F.softplus(B - A)"},
)  # fmt: skip
breaks(
    "methods/moon.py", "Moon.receive", "moon_contrasts_the_global_with_the_last_model",
    {"O.trained(W)": "W.start"},
)  # fmt: skip
breaks(
    "client_selection/schedule.py", "Fixed.select", "fedavg_stalls_where_scaffold_reaches_the_optimum",
    {"self.cohorts[T % len(self.cohorts)]": "self.cohorts[0]"},
)  # fmt: skip

# Lorenzo

breaks(
    "methods/lorenzo.py", "Lorenzo.ranking", "it_is_the_pseudo_code",
    {'{"score": -1, "reverse": 1, "fixed": 0}': '{"score": 1, "reverse": 1, "fixed": 0}'},
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.sequential_pass", "it_is_the_pseudo_code",
    {"N.exchange(I, O, C, S)": "pass"},  # Jacobi only
    {
        "A, B = M.shares(), self.S[I].clone()": "A, B = M.shares(), self.S[I].clone()",
        "self._score.weight(float(S))": "self._score.weight(float(B))",
    },  # the old scores of trained peers
    {"W if self.with_global else None": "None"},
    {"self.H[I], self.S[I] = C, S": "self.S[I] = S"},  # history is not replaced
    {
        "Mean([*self.H, W], S)": "Mean([*self.H, W], S)",
        "N.value()[None]": "W[None]",
    },  # the pass starts from the global model
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Mean.exchange", "it_is_the_pseudo_code",
    {"self.s[I] = W": "pass"},
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Mean.value", "all_scores_zero_is_the_plain_mean",
    {"A if any(S) else B": "A if self.weighted.any() else B"},  # the running sum decides what is zero
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.send", "it_is_the_pseudo_code",
    {"W.round >= 0": "True"},  # the bootstrap trains as long as a round
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.send", "scaffolds_controls_are_mean_gradients",
    {"S.to(W.steps)": "W.steps"},  # the bootstrap counts the steps of a round
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.finish", "it_is_the_pseudo_code",
    {"Mean([*self.H], self.weights())": "Mean([*self.H], [1.0] * len(self.H))"},  # the plain mean as global model
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.score", "it_stops_when_patience_is_out",
    {"self.best_score + self.delta": "self.best_score"},
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.score", "it_is_the_pseudo_code",
    {"self.waited = 0": "pass"},
    {"self.s_g = float(S)": "self.s_g = self.s_g or float(S)"},  # the score of the round before last
)  # fmt: skip
breaks(
    "methods/lorenzo.py", "Lorenzo.stop", "it_stops_when_patience_is_out",
    {"self.waited >= self.patience": "self.waited > self.patience"},
)  # fmt: skip

# Metrics and the best model

breaks(
    "core/metric.py", "Metric.sign", "the_best_model_is_the_best_by_the_declared_direction",
    {"1 if B else -1": "1"},
)  # fmt: skip
breaks(
    "core/metric.py", "Metric.sign", "the_sign_of_a_metric_makes_more_better",
    {"1 if B else -1": "-1 if B else 1"},
)  # fmt: skip
breaks(
    "runs/loop.py", "Loop.round", "the_best_model_is_the_best_by_the_declared_direction",
    {"S.sign * R[N] > T": "R[N] > T"},
    {"S.sign * R[N] > T": "S.sign * R[N] < T"},
    {"A, B = S.sign * R[N], T": "A, B = R[N], T"},
)  # fmt: skip

# Tasks

breaks(
    "tasks/regression.py", "Regression.gradient", "a_written_out_gradient_is_that_of_the_loss",
    {"O - self.scaled(T, O)": "self.scaled(T, O) - O"},
    {"2 / E.numel()": "1 / E.numel()"},
)  # fmt: skip
breaks(
    "tasks/regression.py", "Regression.row_gradients", "gradients_of_many_models_are_those_of_each",
    {"2 / self.outputs": "1 / self.outputs"},
    {"O - self.scaled(T, O)": "self.scaled(T, O) - O"},
)  # fmt: skip
breaks(
    "tasks/regression.py", "Regression.scaled", "scores_are_those_of_scikit_learn",
    {"(Y - M) / S": "Y / S"},
)  # fmt: skip
breaks(
    "tasks/regression.py", "Regression.scores", "scores_are_those_of_scikit_learn",
    {"A - B.square() / N": "A"},
    {"Q.sqrt()": "Q"},
)  # fmt: skip
breaks(
    "tasks/classification.py", "Classification.gradient", "a_written_out_gradient_is_that_of_the_loss",
    {"P.sub_(O).div_(N)": "P.sub_(O)"},
    {"P.sub_(O).div_(N)": "P.add_(O).div_(N)"},
)  # fmt: skip
breaks(
    "tasks/classification.py", "Classification.row_gradients", "gradients_of_many_models_are_those_of_each",
    {"torch.full_like(P, -1, dtype=T)": "torch.full_like(P, 1, dtype=T)"},
)  # fmt: skip
breaks(
    "tasks/classification.py", "Classification.tally", "scores_are_those_of_scikit_learn",
    {"T * self.classes + A": "A * self.classes + T"},
)  # fmt: skip
breaks(
    "tasks/classification.py", "weighted_f1", "scores_are_those_of_scikit_learn",
    {"(F * T).sum()": "F.sum()"},
)  # fmt: skip
breaks(
    "tasks/task.py", "Task.row_gradients", "gradients_of_many_models_are_those_of_each",
    {"(E * W).sum(1)": "E.sum(1)"},
)  # fmt: skip

# Kernels

breaks(
    "kernels/dense.py", "Layers.backward", "a_kernel_has_the_gradient_of_autograd",
    {"A if self.tanh else H > 0": "A if self.tanh else H >= 0"},
    {"1 - H * H if self.tanh else B": "1 - H if self.tanh else B"},
    {"torch.sum(D, 0, out=T)": "pass"},
    {"product(D, W)": "D @ W.abs()"},
)  # fmt: skip
breaks(
    "kernels/dense.py", "Layers.outputs", "a_kernel_has_the_gradient_of_autograd",
    {"Z.tanh_() if self.tanh else R": "R"},
)  # fmt: skip
breaks(
    "kernels/strips.py", "Strips.weights", "a_kernel_has_the_gradient_of_autograd",
    {"D * self.h.gt_(0)": "D"},
)  # fmt: skip
breaks(
    "kernels/products.py", "descend", "stacked_gradients_are_those_of_each_model",
    {"torch.baddbmm(O, B.mT, H, alpha=-1, out=N)": "torch.baddbmm(O, B.mT, H, alpha=1, out=N)"},
)  # fmt: skip
breaks(
    "kernels/products.py", "descend", "both_libraries_have_the_same_products",
    {"torch.sub(X, T, out=Y)": "torch.add(X, T, out=Y)"},
)  # fmt: skip
breaks(
    "kernels/products.py", "turned_product", "both_libraries_have_the_same_products",
    {"faster()(B.t(), A.t(), None, 'none', [], '').t()": "faster()(B.t(), A.t(), None, 'none', [], '').view_as(to)"},
)  # fmt: skip
breaks(
    "kernels/stacked.py", "IntoRows.linear", "stacked_gradients_are_those_of_each_model",
    {"torch.sum(D, 1, out=V)": "pass"},
)  # fmt: skip
breaks(
    "kernels/program.py", "Program.backward", "a_program_has_the_gradient_of_autograd",
    {"T + F": "F"},
)  # fmt: skip
breaks(
    "kernels/checked_program.py", "_checked", "a_network_that_is_more_than_its_operations_is_left_to_autograd",
    {"state(M) != B": "False"},
)  # fmt: skip

# Baselines for label skew and client drift

breaks(
    "methods/fedlc.py", "Calibrated.__call__", "fedlc_without_margins_is_cross_entropy_over_the_clients_classes",
    {"C ** -0.25": "C ** -0.5"},
    {"A.masked_fill(~H, -torch.inf)": "A"},
    {"A.scatter(1, B, -torch.inf)": "A"},
)  # fmt: skip
breaks(
    "methods/fedntd.py", "Distillation.__call__", "fedntd_pulls_the_other_classes_to_the_received_model",
    {"self.tau**2": "1.0"},
    {
        "F.kl_div(M, T, reduction='batchmean', log_target=True)":
            "F.kl_div(T, M, reduction='batchmean', log_target=True)",
    },
)  # fmt: skip
breaks(
    "methods/feddecorr.py", "Correlation.__call__", "feddecorr_scales_differ_by_the_factor_of_the_released_program",
    {"G - torch.diag(D)": "G"},
    {"S / (N - 1) + 1e-8": "S / N + 1e-8"},
    {"Z / D**2": "Z / D"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "sam", "sam_takes_the_gradient_at_the_worst_point_nearby",
    {"L.add_(G, alpha=R / F)": "L.add_(G, alpha=-R / F)"},
    {"W.copy_(H)": "pass"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "svrg", "mime_corrects_every_batch_with_the_gradient_at_the_servers_model",
    {"G.sub_(T)": "pass"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "svrg", "mime_with_everybody_and_one_full_step_is_momentum_sgd",
    {"J.drift - D": "J.drift"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "whole_gradient", "mime_with_everybody_and_one_full_step_is_momentum_sgd",
    {"T / S + D * W": "T / S"},
    {"T.add_(G, alpha=S)": "T.add_(G)"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "descend", "fedcm_mixes_in_the_mean_gradient_of_the_last_round",
    {"torch.add(P, G, alpha=S, out=G)": "torch.add(P, G, out=G)"},
)  # fmt: skip
breaks(
    "methods/fedcm.py", "ClientMomentum.send", "fedcm_mixes_in_the_mean_gradient_of_the_last_round",
    {"(1 - A) * self.m": "self.m"},
)  # fmt: skip
breaks(
    "methods/fedcm.py", "ClientMomentum.receive", "fedcm_mixes_in_the_mean_gradient_of_the_last_round",
    {"W / (S * L)": "W / S"},
)  # fmt: skip
breaks(
    "methods/fedacg.py", "LookAhead.send", "fedacg_steps_from_its_look_ahead",
    {"A + self._rate * B * self.m": "A + B * self.m"},
    {"replace(W, start=S, mu=M)": "replace(W, start=S)"},
)  # fmt: skip
breaks(
    "methods/fedexp.py", "Extrapolation.finish", "fedexp_extrapolates_by_how_much_updates_disagree",
    {"max(1.0, S)": "S"},
    {"2 * D": "D"},
)  # fmt: skip
breaks(
    "methods/fedexp.py", "Extrapolation.evaluated", "fedexp_extrapolates_by_how_much_updates_disagree",
    {"(W + self.before) / 2": "W"},
)  # fmt: skip
breaks(
    "methods/feddc.py", "DriftCorrection.receive", "feddc_moves_twice_in_its_first_round",
    {"V + W @ H": "V"},
)  # fmt: skip
breaks(
    "methods/feddc.py", "DriftCorrection.finish", "feddc_moves_twice_in_its_first_round",
    {"V + self.h.mean()": "V"},
)  # fmt: skip
breaks(
    "methods/feddc.py", "DriftCorrection.send", "feddc_corrects_with_drift_and_last_updates",
    {"G - self._mean": "G"},
    {"self.alpha * self.h[C]": "0 * self.h[C]"},
)  # fmt: skip
breaks(
    "methods/mime.py", "MimeLite.finish", "mime_with_everybody_and_one_full_step_is_momentum_sgd",
    {"(1 - B) * self._gradient + M": "self._gradient + M"},
)  # fmt: skip

# Personal models

breaks(
    "methods/kept_layers.py", "Keep._own", "a_client_trains_its_own_values_and_the_shared_ones_of_today",
    {"M[:, self._mask] = self.kept[C]": "pass"},
)  # fmt: skip
breaks(
    "methods/kept_layers.py", "Keep.private", "what_is_kept_never_leaves_the_client",
    {"return self._mask": "return None"},
)  # fmt: skip
breaks(
    "core/federation.py", "Federation.round", "what_is_kept_never_leaves_the_client",
    {"S[self._private] = 0": "pass"},
)  # fmt: skip
breaks(
    "core/work.py", "Result.trained", "fedbn_keeps_running_statistics_and_is_fedavg_without_norms",
    {"M[:, A] += C": "pass"},
)  # fmt: skip
breaks(
    "methods/fedrep.py", "HeadThenBody.send", "fedrep_trains_the_head_first",
    {
        "Phase(epochs='head_epochs', moves='head')": "Phase(moves='body')",
        "Phase(moves='body')": "Phase(epochs='head_epochs', moves='head')",
    },
)  # fmt: skip
breaks(
    "methods/finetune.py", "FixedHead.send", "what_is_kept_never_leaves_the_client",
    {"Phase(moves='body')": "Phase(moves='head')"},
)  # fmt: skip
breaks(
    "methods/ditto.py", "PersonalModel.send", "ditto_goes_to_its_proximal_point",
    {"Phase(start='v', pulled=True, epochs=E, mu=M, keep='v')": "Phase(start='v', epochs=E, mu=M, keep='v')"},
    {"Phase(start='v', pulled=True, epochs=E, mu=M, keep='v')": "Phase(pulled=True, epochs=E, mu=M, keep='v')"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "apfl", "apfl_learns_its_share_within_bounds",
    {"V - L * A * T": "V - L * T"},
    {"max(0.0, A - L * B)": "max(0.0, A + L * B)"},
)  # fmt: skip
breaks(
    "methods/apfl.py", "Mixture.personal", "apfl_mixes_the_global_and_the_local_model",
    {"S * V + (1 - S) * W": "V"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "pfedme", "pfedme_is_fedavg_with_another_rate_for_one_inner_step",
    {"W - J.lr * L * (W - T)": "W - J.lr * (W - T)"},
    {"A + L * (T - W)": "A"},
)  # fmt: skip
breaks(
    "methods/pfedme.py", "Envelope.finish", "pfedme_is_fedavg_with_another_rate_for_one_inner_step",
    {"self.beta * V": "V"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "meta", "per_fedavg_takes_the_gradient_after_a_step",
    {"J.lr * (S - A * H)": "J.lr * (S + A * H)"},
    {"L.curvature(B, J, S) + D * S": "L.curvature(B, J, S)"},
    {"A / (2 * D)": "A / D"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "adapt", "per_fedavg_takes_the_gradient_after_a_step",
    {"U - A * M": "U + A * M"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "ala", "fedala_learns_weights_between_zero_and_one",
    {"A.clamp(0, 1)": "A"},
)  # fmt: skip
breaks(
    "methods/lg_fedavg.py", "lg_fedavg", "on_one_layer_fedper_is_local_training_and_lg_fedavg_is_fedavg",
    {"Keep('body')": "Keep('head')"},
)  # fmt: skip
breaks(
    "methods/fedper.py", "fedper", "on_one_layer_fedper_is_local_training_and_lg_fedavg_is_fedavg",
    {"Keep('head')": "Keep('body')"},
)  # fmt: skip
breaks(
    "methods/ditto.py", "PersonalModel.start", "ditto_with_a_full_pull_steps_from_the_global_model",
    {"F >= 2": "False"},
    {"(self._lam[A] * B).max()": "self._lam[A].max() * B.max()"},
)  # fmt: skip
breaks(
    "core/local_sgd.py", "sgd", "ditto_with_a_full_pull_steps_from_the_global_model",
    {"A if P.pulled else None": "None"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "apfl", "apfl_sends_the_mixture_to_the_clients_minimum_where_w_is_held",
    {"A * V + (1 - A) * W": "V"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "pfedme", "pfedme_without_a_pull_is_local_sgd_with_the_inner_rate",
    {"T - R * (G + D * T + P)": "T - job.lr * (G + D * T + P)"},
    {"G + D * T + P": "G + P"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "meta", "per_fedavg_contracts_quadratics_as_its_formula_says",
    {"G(W + D * S, B) - C": "G(W, B) - C"},
    {"W - J.lr * (S - A * H)": "W - J.lr * S"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "ala", "fedala_starts_at_the_global_model_outside_the_last_layers",
    {"torch.where(C, O + A * W, S)": "torch.where(C, O + A * W, O)"},
)  # fmt: skip
breaks(
    "core/federation.py", "Federation.round", "running_statistics_are_in_no_norm_and_no_momentum",
    {"V[self._hidden] = 0": "pass"},
)  # fmt: skip
breaks(
    "core/traffic.py", "traffic", "parts_declare_what_they_send",
    {"[M + D * V for M, V in S]": "[M for M, V in S]"},
    {"M + U * V + E": "M + E"},
    {"M + U * V + E": "M + U * V"},
)  # fmt: skip
breaks(
    "methods/fedlc.py", "Calibrated.__call__", "label_skew_baselines_without_anything_to_correct_are_fedavg",
    {"A ** -0.25": "A ** -0.25 * torch.arange(len(A))"},
)  # fmt: skip
breaks(
    "methods/feddc.py", "DriftCorrection.send", "feddc_of_one_client_has_no_gradient_correction",
    {"G - self._mean": "G"},
)  # fmt: skip

# What stays with the clients, and what their networks draw

breaks(
    "core/federation.py", "Federation.round", "what_is_kept_enters_no_state_of_the_server",
    {"V[self._hidden] = 0": "pass"},
    {"O.delta[:, self._hidden] = 0": "pass"},
)  # fmt: skip
breaks(
    "methods/fedcm.py", "ClientMomentum.start", "what_is_kept_enters_no_state_of_the_server",
    {"refuse_private(F, S, N, W)": "pass"},
)  # fmt: skip
breaks(
    "methods/mime.py", "MimeLite.start", "what_is_kept_enters_no_state_of_the_server",
    {"refuse_private(F, S, N, W)": "pass"},
)  # fmt: skip
breaks(
    "methods/moon.py", "Moon.receive", "moon_compares_with_the_model_that_the_client_kept",
    {"O.trained(W)": "W.start + O.delta"},
)  # fmt: skip
breaks(
    "core/work.py", "Job.sent", "terms_see_the_received_model_in_every_phase",
    {"A if B else C": "A"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "meta", "networks_draw_from_streams_of_the_clients",
    {"seeded(K)": "seeded(torch.initial_seed())"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "svrg", "networks_draw_from_streams_of_the_clients",
    {"torch.set_rng_state(D)": "pass"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "svrg", "mime_clips_the_difference_of_the_loss_gradients",
    {"L.g.clone()": "L.g + 0.5 * L.p", "D if C else E - F": "D if C else E"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "sam", "sam_in_a_masked_window_moves_no_weight_outside_it",
    {"L.g[S] = 0": "pass"},
)  # fmt: skip

# Switched off, a method is FedAvg or training alone

breaks(
    "methods/fedntd.py", "Distillation.__call__", "baselines_that_are_switched_off_are_fedavg",
    {"self.beta * T * K": "T * K"},
)  # fmt: skip
breaks(
    "methods/feddecorr.py", "Correlation.__call__", "baselines_that_are_switched_off_are_fedavg",
    {"self.beta * S / N / D": "S / N / D"},
)  # fmt: skip
breaks(
    "methods/fedsam.py", "Sam.send", "baselines_that_are_switched_off_are_fedavg",
    {"Rule('sam', {'rho': self.rho})": "Rule('sam', {'rho': self.rho or 0.05})"},
)  # fmt: skip
breaks(
    "methods/fedacg.py", "LookAhead.finish", "baselines_that_are_switched_off_are_fedavg",
    {"self.momentum * self.m + V": "self.m + V"},
)  # fmt: skip
breaks(
    "methods/fedacg.py", "LookAhead.send", "baselines_that_are_switched_off_are_fedavg",
    {"self._rate * self.momentum * self.m": "self._rate * self.m"},
)  # fmt: skip
breaks(
    "methods/fedexp.py", "Extrapolation.finish", "baselines_that_are_switched_off_are_fedavg",
    {"V + self.epsilon": "V"},
)  # fmt: skip
breaks(
    "methods/fedcm.py", "ClientMomentum.finish", "baselines_that_are_switched_off_are_fedavg",
    {"return V": "return V - self.m"},
)  # fmt: skip
breaks(
    "methods/mime.py", "MimeLite._steps", "baselines_that_are_switched_off_are_fedavg",
    {"self.beta * self.m": "self.m"},
)  # fmt: skip
breaks(
    "methods/fedntd.py", "Distillation.__call__", "fedntd_pulls_the_other_classes_to_the_received_model",
    {"self.others(V.frozen_outputs(S), Y)": "self.others(2 * V.frozen_outputs(S), Y)"},
)  # fmt: skip
breaks(
    "methods/fedntd.py", "Distillation.others", "label_skew_baselines_without_anything_to_correct_are_fedavg",
    {"Z[K].view(N, D) / self.tau": "Z / self.tau"},
)  # fmt: skip
breaks(
    "methods/fedbn.py", "fedbn", "fedbn_keeps_running_statistics_and_is_fedavg_without_norms",
    {"Keep('norm')": "Keep('head')"},
)  # fmt: skip
breaks(
    "methods/local.py", "local", "local_training_is_training_alone",
    {"Keep('full')": "Keep('head')"},
)  # fmt: skip
breaks(
    "methods/personal_adaptation.py", "adapted", "fedbabu_and_finetuning_adapt_the_last_model",
    {"W.start + O.delta": "W.start"},
    {"R[[P[int(C)] for C in W.clients]] = A": "R[: len(W.clients)] = A"},
)  # fmt: skip
breaks(
    "methods/finetune.py", "FineTune._asked", "fedbabu_and_finetuning_adapt_the_last_model",
    {"() if A else (B,)": "()"},
)  # fmt: skip
breaks(
    "methods/ditto.py", "PersonalModel.send", "ditto_goes_to_its_proximal_point",
    {"(Phase(), P)": "(Phase(pulled=True, mu=M), P)", "Phase(start='v', pulled=True, epochs=E, mu=M, keep='v')":
     "Phase(start='v', pulled=True, epochs=E, mu=M, keep='v')"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "apfl", "apfl_mixes_the_global_and_the_local_model",
    {"W, V, A = W - L * O, X, Y": "W, V, A = W - L * (1 - A) * O, X, Y"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "meta", "per_fedavg_takes_the_gradient_after_a_step",
    {"W - A * gradient(W, B)": "W - (A + 0.01) * gradient(W, B)"},
)  # fmt: skip
breaks(
    "core/local_rules.py", "ala", "fedala_learns_weights_between_zero_and_one",
    {"A - E * G * P": "A - G * P"},
)  # fmt: skip
