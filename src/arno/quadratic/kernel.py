"""The rounds of the simulation. numba compiles them on first use and caches them on disk (`cache=True`)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

STEP, MIX1, MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31, ONE = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(1)
SCALE = 2.0**-53
helper = njit(cache=True, nogil=True, error_model="numpy")
SORTED = 48  # up to so many candidates are kept in a sorted array, more candidates in a heap


@helper
def scramble(z):
    """The last step of SplitMix64, as in `core/selection_draws.py`."""
    z = (z ^ (z >> S30)) * MIX1
    z = (z ^ (z >> S27)) * MIX2
    return z ^ (z >> S31)


@helper
def uniform(begin, i):
    """The i-th uniform number of a stream."""
    return (np.float64(scramble(begin + np.uint64(i + 1) * STEP) >> S11) + 0.5) * SCALE


@helper
def draw(begin, cumulated, m, ids):
    """m draws with replacement."""
    last = len(cumulated) - 1
    for i in range(m):
        u, low, high = uniform(begin, i) * cumulated[last], 0, last
        while low < high:
            middle = (low + high) // 2
            if cumulated[middle] <= u:
                low = middle + 1
            else:
                high = middle
        ids[i] = low


@helper
def sink(times, order, held, time, k):
    """Replace the first entry of a heap by another entry, and restore the order of the heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child + 1 < held and times[child + 1] > times[child]:
            child += 1
        if child >= held or times[child] <= time:
            break
        times[at], order[at] = times[child], order[child]
        at = child
    times[at], order[at] = time, k


@helper
def keep(best, held, m, scores, k):
    """Insert k into the m largest scores; of equal scores the earlier one is first. Returns how many are stored."""
    score = scores[k]
    if held < m:
        at, held = held, held + 1
    elif score > scores[best[m - 1]]:
        at = m - 1
    else:
        return held
    while at > 0 and scores[best[at - 1]] < score:
        best[at] = best[at - 1]
        at -= 1
    best[at] = k
    return held


@helper
def sample(begin, p, cumulated, guide, scores, m, d, seen, stamp, times, best):
    """A selection with the same distribution as `choose`, but faster, for the many samples of ρ.

    It draws candidates with replacement and leaves repeats out, without logarithms. `guide` gives the position in
    `cumulated` where the search for a number begins. After many repeats, the remaining candidates are those with the
    smallest times, as in `choose`.
    """
    last, G = len(p) - 1, len(guide)
    drawn, held, i = 0, 0, 0
    while drawn < d and i < 4 * d:
        u = uniform(begin, i)
        i += 1
        k = guide[int(u * G)]
        u *= cumulated[last]
        while k < last and cumulated[k] <= u:
            k += 1
        if seen[k] != stamp:
            seen[k] = stamp
            drawn += 1
            held = keep(best, held, m, scores, k)
    if drawn < d:
        for k in range(last + 1):
            times[k] = np.inf if seen[k] == stamp else -math.log(uniform(begin, i + k)) / p[k]
        while drawn < d:
            k = 0
            for n in range(last + 1):
                if times[n] < times[k]:
                    k = n
            times[k] = np.inf
            drawn += 1
            held = keep(best, held, m, scores, k)


@helper
def choose(begin, p, scores, m, d, ordered, times, order, best):
    """Write the d clients with the smallest times into `order`, and the m of them with the largest scores into `best`.

    The time of client k is −ln(u_k)/p_k, see `race` in `core/selection_draws.py`.
    """
    K = len(p)
    if d >= K and not ordered:
        for k in range(K):
            order[k] = k
    else:
        held = 0
        for k in range(K):
            u = uniform(begin, k)
            if held == d and (1 - u) * (1.5 - 0.5 * u) > times[d - 1 if d <= SORTED else 0] * p[k]:
                continue  # −ln u ≥ (1−u) + (1−u)²/2, so the logarithm is not needed
            time = -math.log(u) / p[k]
            if d <= SORTED:  # insert into a sorted array
                if held < d:
                    at, held = held, held + 1
                elif time < times[d - 1]:
                    at = d - 1
                else:
                    continue
                while at > 0 and times[at - 1] > time:
                    times[at], order[at] = times[at - 1], order[at - 1]
                    at -= 1
                times[at], order[at] = time, k
            elif held < d:  # insert into a heap whose first entry has the largest time
                at, held = held, held + 1
                while at > 0 and times[(at - 1) // 2] < time:
                    times[at], order[at] = times[(at - 1) // 2], order[(at - 1) // 2]
                    at = (at - 1) // 2
                times[at], order[at] = time, k
            elif time < times[0]:
                sink(times, order, d, time, k)
        if d > SORTED and ordered:
            while held > 1:
                held -= 1
                time, k = times[held], order[held]
                times[held], order[held] = times[0], order[0]
                sink(times, order, held, time, k)
    held = 0
    for i in range(min(d, K)):
        held = keep(best, held, m, scores, order[i])


@helper
def evaluate(h, optima, w, out):
    """F_k(w) of every client."""
    K, dim = optima.shape
    for k in range(K):
        total = 0.0
        for j in range(dim):
            if h.ndim == 1:
                total += (w[j] - optima[k, j]) ** 2
            else:
                for i in range(dim):
                    total += (w[j] - optima[k, j]) * h[k, j, i] * (w[i] - optima[k, i])
        out[k] = 0.5 * total * h[k] if h.ndim == 1 else 0.5 * total


@helper
def report(h, optima, w, k, le, lr, loss, factor):
    """The mean of F_k over client k's local steps from w."""
    if h.ndim == 1:
        return loss * factor
    dim = len(w)
    off, turn, total = np.empty(dim), np.empty(dim), 0.0
    for j in range(dim):
        off[j] = w[j] - optima[k, j]
    for _ in range(le):
        for j in range(dim):
            turn[j] = 0.0
            for i in range(dim):
                turn[j] += h[k, j, i] * off[i]
            total += 0.5 * off[j] * turn[j]
        for j in range(dim):
            off[j] -= lr * turn[j]
    return total / le


@helper
def count_selected(
    t, rule, forced, m, d, p, f, last, cumulated, guide, rho_base, samples, times, order, ids, seen, counts
):
    """How often each client is in the cohorts of `samples` selections drawn in round t."""
    K = len(p)
    for k in range(K):
        counts[k] = 0.0
    for s in range(samples):
        other = scramble(rho_base + np.uint64(t * samples + s + 1) * STEP)
        if rule == 0:
            for i in range(m):
                ids[i] = forced[t, i]
        elif rule == 1:
            draw(other, cumulated, m, ids)
        elif d >= K and rule == 2:
            choose(other, p, f, m, d, False, times, order, ids)
        else:
            scores = last if rule == 3 else f
            sample(other, p, cumulated, guide, scores, m, d, seen, t * samples + s, times, ids)
        for i in range(m):
            counts[ids[i]] += 1.0


@helper
def skews(counts, draws, p, f, star_losses, star):
    """ρ(S(w̄), w̄) and ρ(S(w̄), w*), from how often each client is in the cohorts. draws: the sum of the counts."""
    here, there, mean = 0.0, 0.0, 0.0
    for k in range(len(p)):
        here += counts[k] * f[k]
        there += counts[k] * star_losses[k]
        mean += p[k] * f[k]
    return here / draws / mean, there / draws / star


@helper
def descend(h, step, pull, ids, m, w, new):
    """w ← the mean of the trained models of the selected clients."""
    dim = len(w)
    for j in range(dim):
        new[j] = 0.0
    for i in range(m):
        k = ids[i]
        for j in range(dim):
            if h.ndim == 1:
                new[j] += pull[k, j] - step[k] * w[j]
            else:
                new[j] += pull[k, j]
                for n in range(dim):
                    new[j] -= step[k, j, n] * w[n]
    for j in range(dim):
        w[j] += new[j] / m


@njit(cache=True, nogil=True, error_model="numpy")
def simulate(
    kind, rule, forced, rounds, m, candidates, w0, step, pull, h, optima, factor, p, cumulated, guide, base, rho_base,
    samples, le, lr, star_losses,
):  # fmt: skip
    """All rounds. kind and rule: 0 given cohorts, 1 rand, 2 largest loss, 3 largest reported loss."""
    K, dim = optima.shape
    w, new = w0.copy(), np.empty(dim)
    path, chosen = np.empty((rounds + 1, dim)), np.empty((rounds, m), np.int64)
    rho, rho_star = np.empty(rounds if samples else 0), np.empty(rounds if samples else 0)
    f, last, times, counts = np.empty(K), np.full(K, np.inf), np.empty(K), np.empty(K)
    order, ids, seen = np.empty(K, np.int64), np.empty(m, np.int64), np.full(K, -1, np.int64)
    star = 0.0
    for k in range(K):
        star += p[k] * star_losses[k]
    for t in range(rounds):
        for j in range(dim):
            path[t, j] = w[j]
        begin = scramble(base + np.uint64(t + 1) * STEP)
        if kind >= 2 or samples:
            evaluate(h, optima, w, f)
        if samples:
            count_selected(
                t, rule, forced, m, candidates[t], p, f, last, cumulated, guide, rho_base, samples, times, order, ids,
                seen, counts,
            )  # fmt: skip
            rho[t], rho_star[t] = skews(counts, m * samples, p, f, star_losses, star)
        if kind == 0:
            for i in range(m):
                ids[i] = forced[t, i]
        elif kind == 1:
            draw(begin, cumulated, m, ids)
        else:
            choose(begin, p, last if kind == 3 else f, m, candidates[t], kind == 3, times, order, ids)
        for i in range(m):
            k = ids[i]
            chosen[t, i] = k
            if kind == 3:
                last[k] = report(h, optima, w, k, le, lr, f[k], factor[k])
        descend(h, step, pull, ids, m, w, new)
    for j in range(dim):
        path[rounds, j] = w[j]
    return path, chosen, rho, rho_star
