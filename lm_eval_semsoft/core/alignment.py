"""Human alignment: does a model's uncertainty rise and fall with that of people.

Notation: n documents, `x` and `y` float [n] are two measures of each, say the model's entropy and
the entropy of human answers, or a response time. Only their order matters.

A pair with a NaN on either side is dropped; how many were is part of the result. What cannot be
computed is NaN, with one `UndefinedMetricWarning`. Shapes that do not fit raise ValueError.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from .bootstrap import (
    Counts,
    Statistic,
    UndefinedMetricError,
    UndefinedMetricWarning,
    interval,
    metric,
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
