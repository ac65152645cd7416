"""Rank correlation against scipy, on the documents and on resamples of them."""

import dataclasses
import math
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm_eval_semsoft.core.alignment import (
    Alignment,
    holm,
    spearman,
    spearman_differences,
    spearman_matrix,
    spearman_r,
    wilcoxon,
)
from lm_eval_semsoft.core.bootstrap import (
    UndefinedMetricWarning,
    interval,
    paired,
    replicates,
    resamples,
    stderr,
)


@st.composite
def measures(draw):
    """Two columns, from all tied to hardly tied, now and then with a NaN or an infinity."""
    n, steps = draw(st.integers(10, 40)), draw(st.sampled_from([1, 3, 10**6]))
    values = st.integers(0, steps).map(float)
    if draw(st.booleans()):
        values |= st.sampled_from([math.nan, math.inf, -math.inf])
    columns = [draw(st.lists(values, min_size=n, max_size=n)) for _ in range(2)]
    return np.array(columns)


def scipy_r(x, y):
    known = ~(np.isnan(x) | np.isnan(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        result = stats.spearmanr(x[known], y[known])
    return result.statistic, result.pvalue


@settings(max_examples=100, deadline=None)
@given(measures())
def test_it_is_scipys(columns):
    dropped = int(np.isnan(columns).any(axis=0).sum())
    pairs = columns.shape[1] - dropped
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = spearman(*columns, n=20)
    assert (got.n, got.dropped) == (pairs, dropped)
    constant = any(len(set(c[~np.isnan(columns).any(axis=0)])) < 2 for c in columns)
    if pairs < 10 or constant:
        assert np.isnan([got.r, got.low, got.high, got.p]).all()
        assert [str(w.message).split(":")[0] for w in seen] == ["spearman is NaN"]
    else:
        r, p = scipy_r(*columns)
        assert got.r == pytest.approx(r, abs=1e-12)
        assert got.p == pytest.approx(p, abs=1e-9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert spearman_r(*columns) == got.r


@pytest.mark.parametrize("levels", [2, 5, 10**9])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_ranks_of_a_resample_are_those_of_repeated_rows(levels, missing):
    rng = np.random.default_rng(0)
    x = rng.integers(levels, size=60).astype(float)
    y = x + rng.integers(levels, size=60)
    x[rng.random(60) < missing] = np.nan
    got = replicates(spearman_r, x, y, n=100, seed=3)
    expected = []
    for counts in resamples(60, 100, 3):
        rows = np.repeat(np.arange(60), counts)
        expected.append(scipy_r(x[rows], y[rows])[0])
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_the_interval_is_that_of_resampled_pairs():
    rng = np.random.default_rng(0)
    x = rng.random(150)
    y = x + rng.random(150)
    got = spearman(x, y, level=0.9, n=1000, seed=1)
    assert (got.low, got.high) == interval(spearman_r, x, y, n=1000, seed=1, level=0.9)
    theirs = stats.bootstrap(
        (x, y), lambda a, b: stats.spearmanr(a, b).statistic, paired=True, vectorized=False,
        n_resamples=1000, confidence_level=0.9, method="percentile", rng=1,
    ).confidence_interval  # fmt: skip
    width = got.high - got.low
    assert got.low == pytest.approx(theirs.low, abs=0.1 * width)
    assert got.high == pytest.approx(theirs.high, abs=0.1 * width)


def test_dropped_pairs_change_nothing_else():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 30))
    clean = spearman(x, y)
    holes = np.full(5, np.nan)
    with_holes = spearman(np.append(x, [*holes, *range(5)]), np.append(y, [*range(5), *holes]))
    assert with_holes == dataclasses.replace(clean, dropped=10)


@settings(max_examples=50, deadline=None)
@given(measures(), st.randoms(use_true_random=False))
def test_only_the_order_of_values_matters_and_that_of_rows_does_not(columns, random):
    order = list(range(columns.shape[1]))
    random.shuffle(order)
    x, y = columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        r = spearman_r(x, y)
        for other in (
            spearman_r(x[order], y[order]),
            spearman_r(y, x),
            spearman_r(np.arctan(x / 1e6), y),
            -spearman_r(-x, y),
        ):
            assert other == pytest.approx(r, abs=1e-12, nan_ok=True)
    assert math.isnan(r) or -1 <= r <= 1


def test_perfect_and_independent_measures():
    x = np.arange(50.0)
    assert spearman(x, np.exp(x / 10)) == Alignment(1.0, 1.0, 1.0, 50, 0.0, 0)
    assert spearman(x, -x).r == -1
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        got = spearman(rng.random(60), rng.random(60), level=0.9, n=100)
        inside += got.low <= 0 <= got.high
    assert 80 <= inside <= 99


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 pairs without NaN; it takes at least 10"),
        ([1.0], [2.0], "1 pairs"),
        (range(9), range(9), "9 pairs"),
        ([*range(9), np.nan], range(10), "9 pairs"),
        ([0.5] * 10, range(10), "x is constant"),
        ([*range(10), 10], [*[0.5] * 10, np.nan], "y is constant"),
    ],
)
def test_no_value_is_nan_with_one_warning(x, y, reason):
    for measure in (spearman, spearman_r):
        with pytest.warns(
            UndefinedMetricWarning, match=f"{measure.__name__} is NaN: .*{reason}"
        ) as w:
            got = measure(x, y)
        assert math.isnan(getattr(got, "r", got))
        assert len(w) == 1
        assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if len(x):
            assert math.isnan(stderr(spearman_r, x, y))


def test_ten_pairs_are_enough():
    got = spearman(range(10), [0, 2, 1, 4, 3, 6, 5, 8, 7, 9])
    assert 0 < got.low < got.r < got.high <= 1
    assert got.p < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spearman([1, 2], [1]), "x has 2 values but y has 1"),
        (lambda: spearman_r([1, 2], [[1, 2]]), r"y has the shape \[1, 2\]"),
        (lambda: spearman(3.0, [1]), r"x has the shape \[\]"),
        (lambda: spearman(range(20), range(20), level=95), "level=95"),
        (lambda: spearman(range(20), range(20), n=1), "n=1 is not allowed"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_thousands_of_pairs_take_no_time():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 5000)).round(2)
    begin = time.process_time()
    stderr(spearman_r, x, y, n=200)
    assert time.process_time() - begin < 2  # ranking anew for each resample takes longer


# ------------------------------------------------------------------ many measures


def tables(n=60, m=6, t=3, seed=0, holes=0.1):
    """Measures and targets from all tied to not tied, with NaN in some columns."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, m)), rng.normal(size=(n, t))
    x[:, :2] = x[:, :2].round()
    y[:, 0] += x[:, 0]
    y[:, 1] = y[:, 1].round()
    x[rng.random(n) < holes, 1] = np.nan
    y[rng.random(n) < holes, 2] = np.nan
    return x, y


def test_the_matrix_holds_what_single_calls_return():
    x, y = tables()
    got = spearman_matrix(x, y, level=0.9, n=50, seed=2)
    for i, j in np.ndindex(6, 3):
        one = spearman(x[:, i], y[:, j], level=0.9, n=50, seed=2)
        cell = [a[i, j] for a in (got.r, got.low, got.high, got.p)]
        np.testing.assert_allclose(cell, [one.r, one.low, one.high, one.p], atol=1e-12)
        assert (got.n[i, j], got.dropped[i, j], got.why[i, j]) == (one.n, one.dropped, "")


def test_cells_without_a_value_have_a_reason_and_the_others_a_value():
    x, y = tables()
    x[:, 3] = 0.7
    x[7:, 4] = np.nan
    y[:, 1] = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = spearman_matrix(x, y, n=20)
    assert set(got.why[3]) == {"the measure is constant", "the target is constant"}
    assert (got.why[:, 1] != "").all()
    assert got.why[4, 0].startswith("7 pairs without NaN; it takes at least 10")
    for values in (got.r, got.low, got.high, got.p):
        np.testing.assert_array_equal(np.isnan(values), got.why != "")
    assert (got.why == "").sum() == 4 * 2


def test_a_rare_value_leaves_most_resamples_constant():
    x = np.zeros((40, 2))
    x[3, 0] = 1.0
    x[:, 1] = np.arange(40)
    y = np.arange(40.0)[:, None]
    got = spearman_matrix(x, y, n=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        one = spearman(x[:, 0], y[:, 0], n=200)
    np.testing.assert_allclose(
        [got.r[0, 0], got.low[0, 0], got.high[0, 0]], [one.r, one.low, one.high], atol=1e-12
    )
    assert got.low[1, 0] == got.high[1, 0] == 1


def test_an_empty_matrix():
    assert spearman_matrix(np.empty((20, 0)), np.empty((20, 2))).r.shape == (0, 2)
    got = spearman_matrix(np.empty((0, 2)), np.empty((0, 1)))
    assert got.why[0, 0].startswith("0 pairs")


def test_differences_are_those_of_the_paired_bootstrap():
    x, y = tables()
    other = x + np.random.default_rng(1).normal(size=x.shape)
    got = spearman_differences(x, other, y, level=0.9, n=60, seed=4)
    for i, j in np.ndindex(6, 3):
        known = ~np.isnan(x[:, i] + other[:, i] + y[:, j])
        a, b = x[known, i], other[known, i]
        one = paired(
            spearman_r, (a, y[known, j]), (b, y[known, j]), level=0.9, n=60, seed=4
        )  # fmt: skip
        cell = [a[i, j] for a in (got.difference, got.low, got.high, got.probability)]
        np.testing.assert_allclose(
            cell, [one.difference, one.low, one.high, one.probability], atol=1e-12
        )
        assert (got.n[i, j], got.why[i, j]) == (one.n, "")


def test_a_difference_needs_both():
    x, y = tables()
    other = x.copy()
    other[:, 0] = 1.0
    got = spearman_differences(x, other, y, n=20)
    assert set(got.why[0]) == {"the measure is constant"}
    assert np.isnan(got.difference[0]).all()
    assert (got.difference[1:] == 0).all()
    assert (got.probability[1:] == 0.5).all()


def test_a_real_difference_is_found():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(300, 1))
    near, far = y + rng.normal(size=(300, 1)), y + 4 * rng.normal(size=(300, 1))
    got = spearman_differences(near, far, y, n=300)
    assert got.low[0, 0] > 0
    assert got.probability[0, 0] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spearman_matrix([1, 2], [[1], [2]]), r"measures has the shape \[2\]"),
        (lambda: spearman_matrix([[1], [2]], [[1]]), "measures has 2 rows but targets has 1"),
        (lambda: spearman_differences([[1]], [[1, 2]], [[1]]), r"shape \[1, 1\] but b \[1, 2\]"),
        (lambda: spearman_matrix(*tables(), level=2), "level=2"),
        (lambda: spearman_matrix(*tables(), n=1), "n=1 is not allowed"),
        (lambda: holm([0.1, 1.2]), "outside"),
    ],
)
def test_misuse_of_tables_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_study_takes_seconds():
    """421 documents, 40 measures, 4 targets, 1000 resamples."""
    rng = np.random.default_rng(0)
    begin = time.process_time()
    spearman_matrix(rng.random((421, 40)), rng.random((421, 4)))
    assert time.process_time() - begin < 20


# ------------------------------------------------------------------ many tests


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, and never below an earlier one.
    got = holm([[0.01, 0.04], [0.03, 0.005]])
    np.testing.assert_allclose(got, [[0.03, 0.06], [0.06, 0.02]])
    np.testing.assert_allclose(holm([0.5, np.nan, 0.6]), [1, np.nan, 1])
    assert holm([]).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values):
    p = np.array(p_values)
    corrected = holm(p)
    assert (corrected >= p).all()
    assert (corrected <= 1).all()
    for alpha in (0.01, 0.05, 0.3):
        rejected = set()
        for i in sorted(range(len(p)), key=lambda i: p[i]):
            if p[i] * (len(p) - len(rejected)) > alpha:
                break
            rejected.add(i)
        assert rejected == set(np.flatnonzero(corrected <= alpha))


def test_wilcoxon_is_scipys():
    rng = np.random.default_rng(0)
    a = rng.normal(size=25)
    b = a - 0.3 + rng.normal(size=25)
    b[3] = a[3]
    got = wilcoxon([*a, np.nan], [*b, 1.0])
    assert got.p == stats.wilcoxon(a, b).pvalue
    assert (got.median, got.n) == (np.median(a - b), 25)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([1.0] * 9, [2.0] * 9, "9 pairs"),
        ([1.0] * 12, [1.0] * 12, "no pair differs"),
        ([np.nan] * 12, [1.0] * 12, "0 pairs"),
    ],
)
def test_no_wilcoxon_is_nan_with_one_warning(a, b, reason):
    with pytest.warns(UndefinedMetricWarning, match=f"wilcoxon is NaN: .*{reason}") as w:
        got = wilcoxon(a, b)
    assert math.isnan(got.p)
    assert len(w) == 1
