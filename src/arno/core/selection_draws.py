"""The arithmetic of selecting clients, without torch; used by `client_selection/` and by the fast simulation.

Random numbers come from SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), started at a key. To start a stream takes little
time, and compiled code draws the same numbers.
"""

from __future__ import annotations

import numpy as np

from ..errors import ArnoError

_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def cohort_size(participation: float, n: int) -> int:
    """m = max(⌊λN⌋, 1).

    >>> cohort_size(0.1, 100), cohort_size(0.29, 100), cohort_size(0.001, 100)
    (10, 29, 1)
    """
    if not 0 < participation <= 1:
        raise ArnoError(
            f"participation = {participation:g}", "it must be above 0 and at most 1", "try participation=0.1"
        )
    return max(int(participation * n + 1e-9), 1)


def candidates_size(d: int | None, m: int, n: int, setting: str = "select.d") -> int:
    """How many candidates power-of-choice considers: d if given, else twice the cohort. setting: its name, for errors.

    >>> candidates_size(None, 3, 30), candidates_size(9, 3, 30)
    (6, 9)
    """
    d = min(2 * m, n) if d is None else d
    if not m <= d <= n:
        rule = f"it must be from {m} (the cohort) to {n} (all clients)"
        raise ArnoError(f"{setting} = {d}", rule, f"try {setting}={min(2 * m, n)}")
    return d


def shrunk(d: int, m: int, rounds: int, until: float) -> np.ndarray:
    """The number of candidates in every round; it decreases geometrically from d to m in the share `until` of the run.

    >>> shrunk(30, 3, 100, 0.5)[[0, 10, 25, 49, 50, 99]].tolist()
    [30, 19, 9, 3, 3, 3]
    """
    share = np.minimum(np.arange(rounds) / (until * rounds), 1.0)
    return np.rint(d * (m / d) ** share).astype(np.int64).clip(min=m)


def uniforms(base: int, t: int | np.ndarray, n: int) -> np.ndarray:
    """n uniform random numbers in (0, 1) from stream t of the key `base`. If t is an array: one row per stream.

    >>> a, b = uniforms(7, 0, 100_000), uniforms(7, 1, 100_000)
    >>> round(float(a.mean()), 2), round(float(a.std() ** 2 * 12), 2), round(abs(float(np.corrcoef(a, b)[0, 1])), 1)
    (0.5, 1.0, 0.0)
    """
    begin = (np.asarray(t, dtype=np.int64) + 1).astype(np.uint64)[..., None]  # t = −1: the round 0 of a method
    begin = _scramble(begin * np.uint64(_STEP) + np.uint64(base))
    z = _scramble(begin + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_STEP))
    out: np.ndarray = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return out


def race(u: np.ndarray, p: np.ndarray) -> np.ndarray:
    """−ln(u_k)/p_k. The d smallest values are d draws without replacement with probability p, in the order of draws.

    This is the Gumbel top-d rule: it takes the largest values of ln p_k − ln(−ln u_k), which is the negative logarithm
    of −ln(u_k)/p_k, so the order is the same.
    """
    with np.errstate(divide="ignore"):  # p = 0: a client without data has the value ∞ and is last
        out: np.ndarray = -np.log(u) / p
    return out


def first(times: np.ndarray, d: int) -> np.ndarray:
    """The positions of the d smallest values, in rising order.

    >>> first(np.array([0.3, 0.1, 0.9, 0.2]), 2).tolist()
    [1, 3]
    """
    found = np.argpartition(times, d - 1)[:d] if d < len(times) else np.arange(len(times))
    chosen: np.ndarray = found[np.argsort(times[found])]
    return chosen


def heaviest(scores: np.ndarray, m: int) -> np.ndarray:
    """The positions of the m largest scores; of equal scores the earlier position comes first.

    >>> heaviest(np.array([1.0, 3.0, 3.0, np.inf]), 2).tolist()
    [3, 1]
    """
    chosen: np.ndarray = np.argsort(-scores, kind="stable")[:m]
    return chosen


def _scramble(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    out: np.ndarray = z ^ (z >> np.uint64(31))
    return out
