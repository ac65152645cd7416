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

from lm_eval_semsoft.core.alignment import Alignment, spearman, spearman_r
from lm_eval_semsoft.core.bootstrap import (
    UndefinedMetricWarning,
    interval,
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
