"""Human alignment: does a model's uncertainty rise and fall with that of people.

Notation: n documents, `x` and `y` float [n] are two measures of each, say the model's entropy and
the entropy of human answers, or a response time. Only their order matters. A matrix of results
has a row for each of M measures and a column for each of T targets.

A pair with a NaN on either side is dropped; how many were is part of the result. What cannot be
computed is NaN, with one `UndefinedMetricWarning` (in a matrix, with a reason in its cell). Shapes
that do not fit raise ValueError.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from .bootstrap import (
    MIN_DEFINED_SHARE,
    Counts,
    Statistic,
    UndefinedMetricError,
    UndefinedMetricWarning,
    _at_least,
    _check_level,
    interval,
    metric,
    resamples,
)
from .classification import Bools, Floats, Ints

# With fewer pairs, neither the bootstrap nor the t approximation of p means much.
MIN_PAIRS = 10


@dataclass(frozen=True)
class Alignment:
    """What `spearman` returns.

    Attributes:
        r: Spearman's rank correlation, -1..1.
        low, high: ends of its bootstrap percentile interval.
        n: number of pairs that it was computed from.
        p: two-sided p-value of "no monotone relation".
        dropped: number of pairs that were left out because of a NaN.
    """

    r: float
    low: float
    high: float
    n: int
    p: float
    dropped: int


def spearman(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, n: int = 1000, seed: int = 0
) -> Alignment:
    """Spearman's rank correlation of two measures, with its uncertainty (Spearman 1904).

    Args:
        x, y: two measures of each document, float [documents]; ties get average ranks.
        level: share of the bootstrap replicates inside the interval.
        n: number of resamples (of pairs).
        seed: of the random numbers.

    Returns:
        `Alignment`. p is ``scipy.stats.spearmanr``'s (t distribution with n - 2 degrees of
        freedom). Everything but the counts is NaN, with a warning, if fewer than `MIN_PAIRS`
        pairs are left or one side is constant.

    Raises:
        ValueError: `x` or `y` is not one number per document, lengths differ, n < 2, level outside
            (0, 1).
    """
    left, right, known = _pairs(x, y)
    pairs, dropped = int(known.sum()), int((~known).sum())
    left, right = left[known], right[known]
    try:
        r = _rank_correlation(left, right).at(np.ones(pairs, dtype=np.int64))
    except UndefinedMetricError as reason:
        warnings.warn(f"spearman is NaN: {reason}.", UndefinedMetricWarning, stacklevel=2)
        return Alignment(math.nan, math.nan, math.nan, pairs, math.nan, dropped)
    low, high = interval(spearman_r, left, right, n=n, seed=seed, level=level)
    p = float(scipy.stats.spearmanr(left, right).pvalue)
    return Alignment(r, low, high, pairs, p, dropped)


@metric(undefined=math.nan)
def spearman_r(x: ArrayLike, y: ArrayLike) -> Statistic[float]:
    """Spearman's rank correlation alone, -1..1: the form that `bootstrap.stderr` is fast with.

    Args:
        x, y: as `spearman`.

    Returns:
        NaN, with a warning, under the conditions of `spearman`. A resample is undefined only if
        it leaves one side constant.

    Raises:
        ValueError: as `spearman`.
    """
    left, right, known = _pairs(x, y)
    statistic = _rank_correlation(left[known], right[known])
    return Statistic(len(known), lambda counts: statistic.at(counts[known]))


def _rank_correlation(x: Floats, y: Floats) -> Statistic[float]:
    """Pearson's correlation of average ranks, as a function of the counts; no NaN in x, y."""
    if len(x) < MIN_PAIRS:
        raise UndefinedMetricError(
            f"there are {len(x)} pairs without NaN; it takes at least {MIN_PAIRS}"
        )
    # Which of the distinct values, in ascending order, each document has.
    x_level = np.unique(x, return_inverse=True)[1]
    y_level = np.unique(y, return_inverse=True)[1]

    def at(counts: Counts) -> float:
        x_rank, x_spread = _centred_ranks(x_level, counts)
        y_rank, y_spread = _centred_ranks(y_level, counts)
        for name, spread in (("x", x_spread), ("y", y_spread)):
            if spread == 0:
                raise UndefinedMetricError(f"{name} is constant, so it has no order")
        r = float((counts * x_rank[x_level]) @ y_rank[y_level] / math.sqrt(x_spread * y_spread))
        return min(1.0, max(-1.0, r))

    return Statistic(len(x), at)


def _centred_ranks(level: Ints, counts: Counts) -> tuple[Floats, float]:
    """Average rank of each level minus the mean rank, and the sum of their squares over documents.

    A level that W documents share after B others has the ranks B+1..B+W, on average B + (W+1)/2;
    the mean of all N ranks is (N+1)/2. Halves of integers: the arithmetic is exact.
    """
    weight = np.bincount(level, counts)
    rank = np.cumsum(weight) - weight / 2 - weight.sum() / 2
    return rank, float(weight @ rank**2)


def _pairs(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats, Bools]:
    """x and y as floats, and which pairs have no NaN."""
    left, right = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    for name, values in (("x", left), ("y", right)):
        if values.ndim != 1:
            raise ValueError(
                f"{name} has the shape {list(values.shape)}; it must be one value per document"
            )
    if len(left) != len(right):
        raise ValueError(
            f"x has {len(left)} values but y has {len(right)}; "
            "they must describe the same documents"
        )
    return left, right, ~(np.isnan(left) | np.isnan(right))


# --------------------------------------------------------------------------------------------
# many measures at once
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AlignmentMatrix:
    """What `spearman_matrix` returns; all [M, T], each cell as in `Alignment`.

    Attributes:
        r, low, high, p: float; NaN where `why` is not empty.
        n, dropped: int.
        why: the reason why there is no r; "" where there is one.
    """

    r: Floats
    low: Floats
    high: Floats
    p: Floats
    n: Ints
    dropped: Ints
    why: NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Differences:
    """What `spearman_differences` returns; all [M, T].

    Attributes:
        difference: r of a minus r of b, over the documents where neither is NaN.
        low, high: ends of its paired bootstrap percentile interval.
        probability: share of the resamples in which a has the larger r, ties counted one half.
        n: documents.
        why: the reason why there is no difference; "" where there is one.
    """

    difference: Floats
    low: Floats
    high: Floats
    probability: Floats
    n: Ints
    why: NDArray[np.object_]


def spearman_matrix(
    measures: ArrayLike, targets: ArrayLike, level: float = 0.95, n: int = 1000, seed: int = 0
) -> AlignmentMatrix:
    """`spearman` of every measure with every target: the same numbers, many times faster.

    Args:
        measures: float [documents, M].
        targets: float [documents, T].
        level, n, seed: as `spearman`.

    Raises:
        ValueError: not two tables of the same documents; n, level as `spearman`.
    """
    _at_least("n", n, 2)
    _check_level(level)
    x, y = _tables(measures, targets)
    shape = (x.shape[1], y.shape[1])
    r, low, high, p = (np.full(shape, np.nan) for _ in range(4))
    pairs, why = np.zeros(shape, dtype=np.int64), np.full(shape, "", dtype=object)
    for column in range(shape[1]):
        for known, rows in _same_gaps([x], y[:, column]):
            own, target = x[np.ix_(known, rows)], y[known, column]
            pairs[rows, column] = known.sum()
            why[rows, column] = _reasons(own, target)
            good = rows[why[rows, column] == ""]
            if not len(good):
                continue
            at = _rank_correlations(x[np.ix_(known, good)], target)
            r[good, column] = at(np.ones(len(target), dtype=np.int64))
            drawn = np.array([at(counts) for counts in resamples(len(target), n, seed)])
            low[good, column], high[good, column] = _percentiles_of(drawn, level)
            p[good, column] = _p_value(r[good, column], len(target))
    return AlignmentMatrix(r, low, high, p, pairs, len(x) - pairs, why)


def spearman_differences(
    a: ArrayLike,
    b: ArrayLike,
    targets: ArrayLike,
    level: float = 0.95,
    n: int = 1000,
    seed: int = 0,
) -> Differences:
    """Which of two models' measures is aligned better: the paired bootstrap (Koehn 2004).

    Both correlations are computed on the same resamples of the same documents, so what makes a
    resample easy or hard for both cancels in the difference.

    Args:
        a, b: float [documents, M], the same measures of two models.
        targets: float [documents, T].
        level, n, seed: as `spearman`.

    Raises:
        ValueError: as `spearman_matrix`; a and b of different shapes.
    """
    _at_least("n", n, 2)
    _check_level(level)
    x, y = _tables(a, targets)
    other, _ = _tables(b, targets)
    if x.shape != other.shape:
        raise ValueError(f"a has the shape {list(x.shape)} but b {list(other.shape)}")
    shape = (x.shape[1], y.shape[1])
    difference, low, high, probability = (np.full(shape, np.nan) for _ in range(4))
    pairs, why = np.zeros(shape, dtype=np.int64), np.full(shape, "", dtype=object)
    for column in range(shape[1]):
        for known, rows in _same_gaps([x, other], y[:, column]):
            target = y[known, column]
            first, second = (_reasons(side[np.ix_(known, rows)], target) for side in (x, other))
            pairs[rows, column] = known.sum()
            why[rows, column] = np.where(first == "", second, first)
            good = rows[why[rows, column] == ""]
            if not len(good):
                continue
            sides = [_rank_correlations(side[np.ix_(known, good)], target) for side in (x, other)]
            drawn = np.array([sides[0](c) - sides[1](c) for c in resamples(len(target), n, seed)])
            everyone = np.ones(len(target), dtype=np.int64)
            difference[good, column] = sides[0](everyone) - sides[1](everyone)
            low[good, column], high[good, column] = _percentiles_of(drawn, level)
            share = np.where(np.isnan(drawn), np.nan, (drawn > 0) + (drawn == 0) / 2)
            probability[good, column] = np.nanmean(share, axis=0)
    return Differences(difference, low, high, probability, pairs, why)


def _tables(measures: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(measures, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    for name, table in (("measures", x), ("targets", y)):
        if table.ndim != 2:
            raise ValueError(
                f"{name} has the shape {list(table.shape)}; it must be one row per document"
            )
    if len(x) != len(y):
        raise ValueError(
            f"measures has {len(x)} rows but targets has {len(y)}; "
            "they must describe the same documents"
        )
    return x, y


def _same_gaps(sides: list[Floats], target: Floats) -> Iterator[tuple[Bools, Ints]]:
    """Columns of the sides whose pairs with the target are the same documents: which, and whose."""
    gaps = np.isnan(target)[:, None] | np.logical_or.reduce([np.isnan(side) for side in sides])
    if gaps.shape[1]:
        patterns, which = np.unique(gaps, axis=1, return_inverse=True)
        for number in range(patterns.shape[1]):
            yield ~patterns[:, number], np.flatnonzero(which.ravel() == number)


def _reasons(x: Floats, y: Floats) -> NDArray[np.object_]:
    """Why each column of x has no rank correlation with y; "" where it has. No NaN in x, y."""
    if len(y) < MIN_PAIRS:
        few = f"{len(y)} pairs without NaN; it takes at least {MIN_PAIRS}"
        return np.full(x.shape[1], few, dtype=object)
    if (y == y[0]).all():
        return np.full(x.shape[1], "the target is constant", dtype=object)
    constant = (x == x[0]).all(axis=0)
    return np.where(constant, "the measure is constant", "").astype(object)


def _rank_correlations(x: Floats, y: Floats) -> Callable[[Counts], Floats]:
    """Rank correlation of each column of x [N, M] with y [N], as a function of the counts.

    The arithmetic of `_rank_correlation`, on the levels of all columns one after the other. NaN
    where a resample leaves a side constant.
    """
    columns = [np.unique(x[:, j], return_inverse=True)[1] for j in range(x.shape[1])]
    sizes = np.array([column.max() + 1 for column in columns])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    levels = np.stack(columns, axis=0) + starts[:, None]  # [M, N]
    y_level = np.unique(y, return_inverse=True)[1]

    def at(counts: Counts) -> Floats:
        total = counts.sum()
        weight = np.bincount(
            levels.ravel(), np.tile(counts, len(levels)), minlength=int(sizes.sum())
        )
        before = np.repeat(np.arange(len(levels)) * total, sizes)  # all of earlier columns
        rank = np.cumsum(weight) - before - weight / 2 - total / 2
        spread = np.add.reduceat(weight * rank**2, starts)
        y_rank, y_spread = _centred_ranks(y_level, counts)
        together = rank[levels] @ (counts * y_rank[y_level])
        with np.errstate(invalid="ignore", divide="ignore"):
            # A constant side has rank 0 everywhere: 0 / 0.
            return np.asarray(np.clip(together / np.sqrt(spread * y_spread), -1, 1))

    return at


def _percentiles_of(drawn: Floats, level: float) -> Floats:
    """Both ends of a percentile interval, [2, M], of replicates [n, M]; as `bootstrap.interval`."""
    ends = np.full((2, drawn.shape[1]), np.nan)
    defined = (~np.isnan(drawn)).sum(axis=0) >= max(2, MIN_DEFINED_SHARE * len(drawn))
    if defined.any():
        quantiles = [(1 - level) / 2, (1 + level) / 2]
        ends[:, defined] = np.nanquantile(drawn[:, defined], quantiles, axis=0)
    return ends


def _p_value(r: Floats, n: int) -> Floats:
    """Two-sided, t distribution with n - 2 degrees of freedom, as ``scipy.stats.spearmanr``."""
    with np.errstate(divide="ignore"):
        t = r * np.sqrt((n - 2) / ((1 + r) * (1 - r)))
    return np.asarray(2 * scipy.stats.t.sf(np.abs(t), n - 2))


# --------------------------------------------------------------------------------------------
# many tests at once
# --------------------------------------------------------------------------------------------


def holm(p_values: ArrayLike) -> Floats:
    """p-values corrected for how many there are: the step-down procedure of Holm (1979).

    The i-th smallest of m becomes max over j <= i of (m - j + 1) p_j, at most 1. Rejecting what
    stays below alpha keeps the chance of any false rejection below alpha.

    Args:
        p_values: of any shape; NaN stays NaN and counts as no test.

    Returns:
        float64, of the same shape.

    Raises:
        ValueError: a p-value outside [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    flat = p.ravel()
    if ((flat < 0) | (flat > 1)).any():
        raise ValueError("p_values holds numbers outside [0, 1]")
    order = np.argsort(flat, kind="stable")[: (~np.isnan(flat)).sum()]  # NaN comes last
    steps = flat[order] * np.arange(len(order), 0, -1)
    corrected = np.full(len(flat), np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return corrected.reshape(p.shape)


@dataclass(frozen=True)
class SignedRank:
    """What `wilcoxon` returns.

    Attributes:
        median: of a - b.
        p: two-sided p-value of "a - b is symmetric around 0".
        n: pairs without NaN, those of no difference included.
    """

    median: float
    p: float
    n: int


def wilcoxon(a: ArrayLike, b: ArrayLike) -> SignedRank:
    """Do two models differ over all measures: the signed-rank test of Wilcoxon (1945).

    Measures of one model are no independent samples (most are entropies of the same distribution),
    so the p-value describes this set of measures, as in the study; it is too small for a claim
    about others.

    Args:
        a, b: a number per measure [M], such as correlations; a pair with a NaN is left out.

    Returns:
        `SignedRank`, p as ``scipy.stats.wilcoxon``'s: pairs of no difference are dropped. NaN, with
        a warning, if fewer than `MIN_PAIRS` pairs are left or none of them differs.

    Raises:
        ValueError: a or b is not one number per measure, or lengths differ.
    """
    left, right, known = _pairs(a, b)
    differences = (left - right)[known]
    reason = ""
    if len(differences) < MIN_PAIRS:
        reason = f"there are {len(differences)} pairs without NaN; it takes at least {MIN_PAIRS}"
    elif not differences.any():
        reason = "no pair differs"
    if reason:
        warnings.warn(f"wilcoxon is NaN: {reason}.", UndefinedMetricWarning, stacklevel=2)
        return SignedRank(math.nan, math.nan, len(differences))
    p = float(scipy.stats.wilcoxon(differences).pvalue)
    return SignedRank(float(np.median(differences)), p, len(differences))
