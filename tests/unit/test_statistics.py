"""Statistics of a comparison, against scipy and against numbers that anybody can check."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from arno.analysis.statistics import area, differences, holm, paired_t, ranks, student, summary, wilcoxon, winner

#: Student's sleep data, the hours that each patient gained: the paired example of every textbook.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
GAPS = [a - b for a, b in zip(FIRST, SECOND, strict=True)]
TIED = [1.0, -1.0, 2.0, 2.0, 2.0, 3.0, -2.0, 4.0]


@pytest.mark.parametrize("values", [FIRST, SECOND, TIED, [0.5, 0.7]])
def test_the_interval_is_students(values):
    s = summary(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (s.n, s.mean) == (len(values), pytest.approx(np.mean(values)))
    assert s.std == pytest.approx(np.std(values, ddof=1))
    assert (s.low, s.high) == pytest.approx((low, high))


def test_one_value_has_no_interval_and_none_has_no_mean():
    s = summary([0.25])
    assert (s.n, s.mean) == (1, 0.25)
    assert all(math.isnan(x) for x in (s.std, s.low, s.high))
    assert math.isnan(summary([]).mean)
    assert math.isnan(paired_t([0.3]))
    assert math.isnan(wilcoxon([0.3]))


def test_the_paired_t_test_of_the_sleep_data():
    assert paired_t(GAPS) == pytest.approx(stats.ttest_rel(FIRST, SECOND).pvalue, rel=1e-9)
    assert paired_t(GAPS) == pytest.approx(0.002833, abs=1e-6)  # as printed in textbooks
    assert paired_t([-x for x in GAPS]) == paired_t(GAPS)


def test_the_t_test_where_all_differences_are_the_same():
    assert paired_t([0.0, 0.0, 0.0]) == 1
    assert paired_t([0.25, 0.25, 0.25]) == 0
    s = summary([0.0, 0.0])
    assert (s.low, s.high) == (0, 0)


@pytest.mark.parametrize("n", [2, 5, 6, 12, 30])
def test_wilcoxon_without_ties(n):
    gaps = np.random.default_rng(n).normal(0.4, 1, n)
    assert wilcoxon(list(gaps)) == pytest.approx(stats.wilcoxon(gaps, method="exact").pvalue, rel=1e-9)


@pytest.mark.parametrize("gaps", [TIED, [1.0, 1.0, 1.0, -1.0], [0.5, 0.5, 1.0, 1.0, 1.0, 2.0], [x - 1 for x in TIED]])
def test_wilcoxon_with_ties_and_zeros_is_the_permutation_test(gaps):
    kept = [x for x in gaps if x != 0]
    exact = stats.wilcoxon(kept, method=stats.PermutationMethod(n_resamples=np.inf)).pvalue
    assert wilcoxon(gaps) == pytest.approx(exact, rel=1e-9)


def test_what_wilcoxon_cannot_show():
    assert [wilcoxon([1.0] * n) for n in (2, 3, 5, 6)] == [0.5, 0.25, 0.0625, 0.03125]
    assert wilcoxon([0.0, 0.0, 0.0]) == 1


def test_ranks_are_those_of_scipy():
    values = [abs(x) for x in TIED]
    assert ranks(values) == list(stats.rankdata(values))


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([0.02]) == [0.02]
    untested = holm([0.01, float("nan"), 0.04])
    assert untested[::2] == pytest.approx([0.02, 0.04])
    assert math.isnan(untested[1])
    assert holm([]) == []


def test_the_quantile():
    assert student(9) == pytest.approx(stats.t.ppf(0.975, 9))


def test_the_area_is_the_trapezoids_over_the_whole_of_the_run():
    x, y = [1, 2, 5, 10], [0.1, 0.5, 0.7, 0.8]
    assert area(x, y, 10) == pytest.approx(np.trapezoid(y, x) / 9)
    assert area(x, y, 20) == pytest.approx((np.trapezoid(y, x) + 8) / 19), "it keeps its last value"
    assert area([5], [0.5], 5) == 0.5


def test_differences_are_of_the_same_seed():
    assert differences({0: 1.0, 1: 5.0, 3: 2.0}, {3: 1.5, 1: 1.0, 2: 9.0}) == [4.0, 0.5]


def test_a_winner_is_better_than_everybody_for_sure():
    a = {0: 0.90, 1: 0.80, 2: 0.70}
    sure = {seed: x - 0.05 - 0.001 * seed for seed, x in a.items()}  # paired: the seeds' own spread does not matter
    unsure = {0: 0.80, 1: 0.81, 2: 0.60}
    assert winner({"a": a, "sure": sure}) == "a"
    assert winner({"sure": sure, "a": a}) == "a"
    assert winner({"a": a, "sure": sure, "unsure": unsure}) is None, "one is enough to spoil it"
    assert winner({"a": a, "same": dict(a)}) is None
    assert winner({"a": a}) is None
    assert winner({"a": a, "gone": {}}) is None
    assert winner({"a": {0: 0.9}, "b": {0: 0.1}}) is None, "one seed"
    assert winner({"a": a, "b": {5: 0.1, 6: 0.1}}) is None, "no seed in common"
