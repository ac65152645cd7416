"""Calibration errors and proper scores: do confidences mean what they say.

Notation: n documents, L labels; `confidence` float [n] is the probability of the predicted label,
`correct` [n] is 1 where that label is right; `probs` float [n, L] has rows that sum to 1, `target`
is as in `classification` (label numbers [n], or booleans [n, L] of which `resolve_target` picks
one per row).

A calibration error groups documents of similar confidence into bins and compares, bin by bin, the
share of right answers with the mean confidence: (sum_b n_b |acc_b - conf_b|^p / n)^(1/p).

Bad values that a model can produce (NaN, a confidence outside [0, 1]) give NaN and one
`UndefinedMetricWarning`. Bad values that only a caller can produce (shapes, lengths, options)
raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike

from .bootstrap import Counts, Statistic, UndefinedMetricError, mean_of, metric, of_many
from .classification import (
    Bools,
    Floats,
    Ints,
    confidence_and_correct,
    scores_and_target,
    sums_by,
    tie_starts,
)
from .errors import check_choice

Ties = Literal["group", "split"]

# Rounding of low-precision models, not mistakes: bf16 probabilities miss 1 by this much.
ROUNDING = 0.01

# Bin edges that are looked at in one go by the sweep: enough to hide numpy's overhead.
EDGES_AT_ONCE = 1 << 18

# The sweep looks at so few bins for all resamples at once: it hardly ever needs more.
EARLY = 16

# Cells of the grid that `smooth_ece` smooths on. A result is its own bandwidth, so only results
# of about a cell are rounded (by up to 1e-4); others are right to 1e-5.
CELLS = 1 << 11


class SweepECE(NamedTuple):
    """What `ece_sweep` returns.

    Attributes:
        value: the calibration error, 0..1.
        n_bins: number of bins it was computed with (those that hold documents).
    """

    value: float
    n_bins: int


class BrierDecomposition(NamedTuple):
    """What `brier_decomposition` returns; all summed over labels.

    Brier score = reliability - resolution + uncertainty + remainder.

    Attributes:
        reliability: how far the mean probability of a bin is from the label's frequency in it,
            squared; 0 is perfect.
        resolution: how far the frequency in a bin is from the overall frequency, squared; the
            higher the better.
        uncertainty: variance of the outcomes; the model has no part in it.
        remainder: what probabilities vary within bins; it may be negative.
    """

    reliability: float
    resolution: float
    uncertainty: float
    remainder: float


@metric(undefined=math.nan)
def ece(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, norm: float = 1
) -> Statistic[float]:
    """Expected calibration error with equal-width bins, 0..1 (Naeini et al. 2015; Guo et al. 2017).

    Bin i is [i/n_bins, (i+1)/n_bins); the last bin includes 1.

    Args:
        confidence: float [n], in [0, 1].
        correct: 1 or True where the predicted label is right, else 0 or False [n].
        n_bins: number of bins.
        norm: the exponent p, 1 as published (2 is the root-mean-square form).

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1, n_bins < 1, norm < 1.
    """
    _check_options(n_bins, norm)
    conf, right = _confidence_and_correct(confidence, correct)
    totals = bin_totals(conf, right.astype(np.float64), n_bins)
    return of_many(len(conf), lambda counts: _error(totals(counts), norm))


def bin_totals(conf: Floats, right: Floats, n_bins: int) -> Callable[[Floats], Floats]:
    """Documents, right answers and summed confidence of equal-width bins.

    Args:
        conf: [n].
        right: [n], 0 or 1.

    Returns:
        counts [n, R] -> [3, n_bins, R].
    """
    bins = _equal_width_bins(conf, n_bins)
    parts = [sums_by(bins, n_bins, values) for values in (np.ones_like(conf), right, conf)]
    return lambda counts: np.stack([part @ counts for part in parts])


@metric(undefined=math.nan)
def ece_mass(
    confidence: ArrayLike,
    correct: ArrayLike,
    n_bins: int = 15,
    norm: float = 1,
    ties: Ties = "group",
) -> Statistic[float]:
    """Expected calibration error with equal-mass bins, 0..1 (Nguyen & O'Connor 2015).

    The i-th document in order of confidence falls into bin floor(i/n * n_bins), so every bin
    holds (nearly) the same number of documents. Bins that stay empty are left out.

    Args:
        confidence, correct, n_bins, norm: as `ece`.
        ties: as `ece_sweep`.

    Raises:
        ValueError: as `ece`, and ties is neither "group" nor "split".
    """
    _check_options(n_bins, norm, ties)
    conf, right = _confidence_and_correct(confidence, correct)
    rank = _ranker(conf, right, ties)

    def at(counts: Counts) -> float:
        return _binned_error(rank(counts), n_bins, norm).value

    if ties == "split":
        return Statistic(len(conf), at)
    rank_many = _ranker_of_many(conf, right)

    def many(counts: Floats) -> Floats:
        ranked, everyone = rank_many(counts), np.arange(counts.shape[1])
        return _error(ranked.totals(ranked.edges(n_bins, everyone), everyone), norm)

    return Statistic(len(conf), at, many)


@metric(undefined=SweepECE(math.nan, 0))
def ece_sweep(
    confidence: ArrayLike, correct: ArrayLike, norm: float = 2, ties: Ties = "group"
) -> Statistic[SweepECE]:
    """Calibration error with as many equal-mass bins as keep accuracy monotone, 0..1.

    The monotonic sweep of Roelofs et al. 2022 (arXiv 2012.08668, algorithm 1, as in
    google-research/caltrain): with b = 2, 3, ... n-1 bins, take the last b before the accuracies
    of the bins first fail to be non-decreasing. The i-th document in order of confidence falls
    into bin min(b-1, floor((i/n)*b)), evaluated in floating point as published.

    Args:
        confidence: float [n], in [0, 1].
        correct: 1 or True where the predicted label is right, else 0 or False [n].
        norm: the exponent p, 2 as published.
        ties: "group" keeps documents of equal confidence together: all of them go into the bin of
            their middle position (the mean of their first and last i), so the order of the rows
            never matters. "split" is as published: ties are parted in the order of the rows. The
            two agree if no two confidences are equal.

    Returns:
        `SweepECE`; value NaN and n_bins 0, with a warning, if it cannot be computed.

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1, norm < 1, ties is
            neither "group" nor "split".
    """
    _check_options(norm=norm, ties=ties)
    conf, right = _confidence_and_correct(confidence, correct)
    rank = _ranker(conf, right, ties)

    def at(counts: Counts) -> SweepECE:
        ranked = rank(counts)
        return _binned_error(ranked, _last_monotone(ranked), norm)

    if ties == "split":
        return Statistic(len(conf), at)
    rank_many = _ranker_of_many(conf, right)

    def many(counts: Floats) -> Floats:
        values = _swept(rank_many(counts), norm)
        for unknown in np.flatnonzero(np.isnan(values)):
            values[unknown] = at(counts[:, unknown].astype(np.int64)).value
        return values

    return Statistic(len(conf), at, many)


@metric(undefined=math.nan)
def smooth_ece(confidence: ArrayLike, correct: ArrayLike) -> Statistic[float]:
    """Calibration error without bins, 0..1 (Błasiok & Nakkiran 2023, arXiv 2309.12236).

    Smooth the gaps between outcome and confidence with a Gaussian of deviation sigma that is
    reflected at 0 and 1, and integrate what does not cancel:

        smECE_sigma = integral over t in [0, 1] of | mean_i (y_i - c_i) K_sigma(t, c_i) |

    The wider the kernel, the more cancels, so exactly one sigma equals its own smECE_sigma, and
    that is the result. It changes continuously with the confidences, where binned errors jump.

    Args:
        confidence: float [n], in [0, 1].
        correct: 1 or True where the predicted label is right, else 0 or False [n].

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1.
    """
    conf, right = _confidence_and_correct(confidence, correct)
    # Every gap is shared by the two grid points around its confidence.
    position = np.clip(conf, 0, 1) * CELLS
    cell = np.minimum(position.astype(np.int64), CELLS - 1)
    gap, upper = right - conf, position - cell
    shares = sums_by(cell, CELLS + 1, gap * (1 - upper)) + sums_by(cell + 1, CELLS + 1, gap * upper)

    def many(counts: Floats) -> Floats:
        return _smoothed_to_its_own_width((shares @ counts / counts.sum(axis=0)).T)

    return of_many(len(conf), many)


@metric(undefined=math.nan)
def mean_confidence(confidence: ArrayLike) -> Statistic[float]:
    """Mean probability of the predicted label, 0..1; above the accuracy: overconfident.

    Args:
        confidence: float [n], in [0, 1].

    Raises:
        ValueError: `confidence` is not one number per document.
    """
    conf, _ = _confidence_and_correct(confidence, np.zeros(np.shape(confidence)))
    return mean_of(conf)


@metric(undefined=math.nan)
def brier(probs: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """Brier score (Brier 1950): mean over documents of sum_l (p_l - [l is the target])^2, 0..2.

    Args:
        probs: float [n, L], rows sum to 1.
        target: label numbers [n], or booleans [n, L] (see `classification.resolve_target`).

    Raises:
        ValueError: shapes or lengths do not fit, label numbers outside 0..L-1.
    """
    distribution, labels = _probs_and_target(probs, target)
    of_target = distribution[np.arange(len(labels)), labels]
    return mean_of((distribution**2).sum(axis=1) - 2 * of_target + 1)


@metric(undefined=math.nan)
def confidence_brier(confidence: ArrayLike, correct: ArrayLike) -> Statistic[float]:
    """Brier score of a confidence: mean of (confidence - correct)^2, 0..1.

    Half of what `brier` gives for the two classes right and wrong.

    Args:
        confidence: float [n], in [0, 1].
        correct: 1 or True where the answer is right, else 0 or False [n].

    Raises:
        ValueError: lengths differ, or values outside these ranges.
    """
    conf, right = _confidence_and_correct(confidence, correct)
    return mean_of((conf - right) ** 2)


@metric(undefined=BrierDecomposition(math.nan, math.nan, math.nan, math.nan))
def brier_decomposition(
    probs: ArrayLike, target: ArrayLike, n_bins: int = 15
) -> Statistic[BrierDecomposition]:
    """The Brier score in parts (Murphy 1973), label by label: calibration and discrimination.

    For each label, its probabilities p fall into equal-width bins as in `ece`, with the outcome
    y = [the label is the target]. With m_b documents and the means p_b, y_b in bin b, and y the
    overall frequency: reliability = sum_b m_b (p_b - y_b)^2 / n, resolution =
    sum_b m_b (y_b - y)^2 / n, uncertainty = y (1 - y). Murphy's three parts are exact if all p of
    a bin are equal; the remainder, within-bin variance of p minus twice its covariance with y
    (Stephenson et al. 2008), makes the sum exact always.

    Args:
        probs: float [n, L], rows sum to 1.
        target: label numbers [n], or booleans [n, L] (see `classification.resolve_target`).
        n_bins: number of bins.

    Raises:
        ValueError: as `brier`, and n_bins < 1.
    """
    _check_options(n_bins)
    p, labels = _probs_and_target(probs, target)
    n, size = p.shape
    y = (labels[:, None] == np.arange(size)).astype(np.float64)
    bins = (_equal_width_bins(p, n_bins) + n_bins * np.arange(size)).ravel()

    def at(counts: Counts) -> BrierDecomposition:
        def per_bin(values: Floats) -> Floats:
            total = np.bincount(bins, (counts[:, None] * values).ravel(), n_bins * size)
            return total.reshape(size, n_bins).astype(np.float64)

        documents = counts.sum()
        size_of = per_bin(np.ones_like(p))
        held = np.maximum(size_of, 1)
        p_mean, y_mean, base = per_bin(p) / held, per_bin(y) / held, counts @ y / documents
        p_variance = per_bin(p**2) / held - p_mean**2
        covariance = per_bin(p * y) / held - p_mean * y_mean

        def mean(of_bins: Floats) -> float:
            return float((size_of * of_bins).sum() / documents)

        return BrierDecomposition(
            reliability=mean((p_mean - y_mean) ** 2),
            resolution=mean((y_mean - base[:, None]) ** 2),
            uncertainty=float((base * (1 - base)).sum()),
            remainder=mean(p_variance - 2 * covariance),
        )

    return Statistic(n, at)


@metric(undefined=math.nan)
def nll(probs: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """Negative log-likelihood: mean over documents of -ln p_target, in nats, 0..infinity.

    Nothing is clipped: a target with probability 0 makes the score infinite.

    Args:
        probs: float [n, L], rows sum to 1.
        target: label numbers [n], or booleans [n, L] (see `classification.resolve_target`).

    Raises:
        ValueError: as `brier`.
    """
    distribution, labels = _probs_and_target(probs, target)
    of_target = np.clip(distribution[np.arange(len(labels)), labels], 0, None)
    impossible = of_target == 0
    return mean_loss(np.where(impossible, np.inf, -np.log(np.where(impossible, 1, of_target))))


def mean_loss(losses: Floats) -> Statistic[float]:
    """The mean of one loss per document, [n]; infinite where an infinite one counts."""
    impossible = np.isposinf(losses)
    finite = np.where(impossible, 0.0, losses)

    def many(counts: Floats) -> Floats:
        mean = finite @ counts / counts.sum(axis=0)
        return np.where(counts[impossible].any(axis=0), np.inf, mean)

    return of_many(len(losses), many)


@dataclass(frozen=True)
class _Ranked:
    """Groups of documents in ascending order of confidence; no group is empty.

    A group is all documents of one confidence, or a single document if ties are split.
    """

    confidence: Floats
    count: Ints
    right: Ints

    @cached_property
    def n(self) -> int:
        return int(self.count.sum())

    @cached_property
    def count_before(self) -> Ints:
        return np.append(0, np.cumsum(self.count))

    @cached_property
    def right_before(self) -> Ints:
        return np.append(0, np.cumsum(self.right))

    @cached_property
    def twice_middle(self) -> Ints:
        """First plus last position of each group: integers, where the middle can be a half."""
        return self.count_before[:-1] + self.count_before[1:] - 1

    def bin_of(self, group: int | Ints, b: int | Ints) -> Ints:
        """The bin of a group among b equal-mass bins: the published floating-point expression."""
        position = self.twice_middle[group] / 2
        bins: Ints = np.minimum(b - 1, np.floor((position / self.n) * b).astype(np.int64))
        return bins

    def first_of(self, k: Ints, b: int | Ints) -> Ints:
        """The first group that falls into bin k or a later one, among b bins.

        Exact arithmetic finds it in O(log n). Rounding can only push a position that lies exactly
        on the edge below it (if n < 3e7), hence the one look at the published expression.
        """
        group: Ints = np.searchsorted(self.twice_middle, -(-2 * k * self.n // b))
        inside = np.minimum(group, len(self.count) - 1)
        rounded_down = (self.bin_of(inside, b) < k) & (group == inside)
        group += rounded_down
        return group


def _ranker(conf: Floats, right: Bools, ties: Ties) -> Callable[[Counts], _Ranked]:
    """Sort once; afterwards each vector of counts gives its `_Ranked` in O(n)."""
    order = np.argsort(conf, kind="stable")
    ranked_conf, ranked_right = conf[order], right[order].astype(np.int64)
    starts = tie_starts(ranked_conf)

    def grouped(counts: Counts) -> _Ranked:
        drawn = counts[order]
        count = np.add.reduceat(drawn, starts)
        rights = np.add.reduceat(drawn * ranked_right, starts)
        used = np.flatnonzero(count)
        return _Ranked(ranked_conf[starts][used], count[used], rights[used])

    def split(counts: Counts) -> _Ranked:
        drawn = np.repeat(np.arange(len(order)), counts[order])
        return _Ranked(ranked_conf[drawn], np.ones_like(drawn), ranked_right[drawn])

    return grouped if ties == "group" else split


def _binned_error(ranked: _Ranked, b: int, norm: float) -> SweepECE:
    starts = ranked.first_of(np.arange(b), b)
    starts = np.unique(starts[starts < len(ranked.count)])
    each = (ranked.count, ranked.right, ranked.confidence * ranked.count)
    totals = np.stack([np.add.reduceat(values, starts) for values in each])
    return SweepECE(float(_error(totals, norm)), len(starts))


def _last_monotone(ranked: _Ranked) -> int:
    """The last b in 1..n-1 before the accuracies of b bins first decrease."""
    most = max(1, ranked.n - 1)
    accuracy = ranked.right / ranked.count
    if (accuracy[1:] >= accuracy[:-1]).all():
        return most  # merging neighbours keeps the order, so no number of bins can fail
    b = 2
    while b <= most:
        tried, failing = _first_failing(ranked, np.arange(b, min(max(2 * b, 16), most + 1)))
        if failing is not None:
            return failing - 1
        b += tried
    return most


def _first_failing(ranked: _Ranked, candidates: Ints) -> tuple[int, int | None]:
    """How many of the candidate numbers of bins were tried, and which one failed first."""
    tried, b, edge = _edges(ranked, candidates)
    count = np.diff(ranked.count_before[edge])
    right = np.diff(ranked.right_before[edge])
    used = (count > 0) & (b[1:] == b[:-1])
    b, accuracy = b[1:][used], right[used] / count[used]
    decreases = (accuracy[1:] < accuracy[:-1]) & (b[1:] == b[:-1])
    return tried, int(b[np.argmax(decreases)]) if decreases.any() else None


def _edges(ranked: _Ranked, candidates: Ints) -> tuple[int, Ints, Ints]:
    """The bin edges that decide about the first few candidates, one after the other.

    Bins before the first right answer have accuracy 0, bins after the last wrong one have 1, so
    only those between can be out of order. Where there are more of them than groups, most are
    empty, and the bins of the groups are listed instead: a repeated edge is an empty bin.

    Returns:
        How many candidates are covered; for each edge the number of bins b it belongs to; and the
        group that begins there. The last edge of each b ends its last bin.
    """
    first = int(np.flatnonzero(ranked.right)[0])
    last = int(np.flatnonzero(ranked.right < ranked.count)[-1])
    low, high = ranked.bin_of(first, candidates), ranked.bin_of(last, candidates)
    by_group = last - first < high[0] - low[0]
    bins = np.full_like(low, last - first + 1) if by_group else high - low + 1

    edges = bins + 1
    tried = max(1, int(np.searchsorted(np.cumsum(edges), EDGES_AT_ONCE, side="right")))
    edges = edges[:tried]
    b = np.repeat(candidates[:tried], edges)
    step = np.arange(len(b)) - np.repeat(np.cumsum(edges) - edges, edges)
    if by_group:
        past_last = step > last - first
        k = ranked.bin_of(np.minimum(first + step, last), b) + past_last
    else:
        k = np.repeat(low[:tried], edges) + step
    return tried, b, ranked.first_of(k, b)


@dataclass(frozen=True)
class _RankedMany:
    """Groups of equal confidence in ascending order, for R vectors of counts; some may be empty.

    An empty group changes nothing: what counts before it also counts before the next one.

    Attributes:
        before: documents, right answers and summed confidence before each row, in ascending order
            of confidence, and at the end: [3, n + 1, R].
        start: [G + 1] the row at which each group begins, and the end.
    """

    before: Floats
    start: Ints

    def edges(self, b: int, columns: Ints) -> Ints:
        """The group at which each of b equal-mass bins begins, and the end: [b + 1, columns].

        As `_Ranked.first_of`, by bisection.
        """
        count, groups = self.before[0], len(self.start) - 1
        k, n = np.arange(b)[:, None], count[-1, columns]
        wanted = np.ceil(2 * k * n / b)

        def twice_middle(group: Ints) -> Floats:
            first, past = self.start[group], self.start[group + 1]
            return np.asarray(count[first, columns] + count[past, columns] - 1)

        low, high = np.zeros(wanted.shape, np.int64), np.full(wanted.shape, groups)
        for _ in range(groups.bit_length()):
            middle = np.minimum((low + high) // 2, groups - 1)
            searched, later = low < high, twice_middle(middle) < wanted
            high = np.where(searched & ~later, middle, high)
            low = np.where(searched & later, middle + 1, low)
        inside = np.minimum(low, groups - 1)
        bins = np.minimum(b - 1, np.floor((twice_middle(inside) / 2 / n) * b))
        first: Ints = low + ((bins < k) & (low == inside))
        return np.vstack([first, np.full_like(columns, groups)])

    def totals(self, edges: Ints, columns: Ints) -> Floats:
        """Documents, right answers and summed confidence between edges: [3, b, columns]."""
        return np.diff(self.before[:, self.start[edges], columns], axis=1)


def _ranker_of_many(conf: Floats, right: Bools) -> Callable[[Floats], _RankedMany]:
    """As `_ranker`, ties grouped."""
    order = np.argsort(conf, kind="stable")
    start = np.append(tie_starts(conf[order]), len(order))
    weights = np.stack([right, conf])[:, order, None]

    def ranked(counts: Floats) -> _RankedMany:
        drawn = counts[order]
        before = np.zeros((3, len(order) + 1, counts.shape[1]))
        np.cumsum(drawn, axis=0, out=before[0, 1:])
        np.cumsum(weights * drawn, axis=1, out=before[1:, 1:])
        return _RankedMany(before, start)

    return ranked


def _swept(ranked: _RankedMany, norm: float) -> Floats:
    """The sweep's error where it ends at few bins, as it mostly does, else NaN: [R]."""
    size = ranked.before.shape[2]
    values, going = np.full(size, np.nan), np.arange(size)
    totals = ranked.before[:, -1:]  # of one bin
    for b in range(2, EARLY + 1):
        more = ranked.totals(ranked.edges(b, going), going)
        ends = _decreases(more) & (b < ranked.before[0, -1, going])
        values[going[ends]] = _error(totals[:, :, ends], norm)
        going, totals = going[~ends], more[:, :, ~ends]
        if not len(going):
            break
    return values


def _decreases(totals: Floats) -> Bools:
    """Is the accuracy of a bin below that of an earlier one? From `_RankedMany.totals`: [R]."""
    count, right, _ = totals
    accuracy = np.where(count > 0, right / np.maximum(count, 1), -np.inf)
    highest = np.maximum.accumulate(accuracy, axis=0)
    lower: Bools = ((accuracy[1:] < highest[:-1]) & (count[1:] > 0)).any(axis=0)
    return lower


def _smoothed_to_its_own_width(mass: Floats) -> Floats:
    """The sigma at which smECE_sigma = sigma, for gaps that lie on the points of a grid: [R].

    A Gaussian that is reflected at both ends without end is the heat kernel of [0, 1], and cosines
    are its eigenfunctions. Here it is the heat kernel of the grid itself: it never turns negative,
    so smECE_sigma falls steadily even where sigma is as small as a cell. It lies between
    |sum of the gaps| and the sum of their absolute values, and so does the solution.

    Args:
        mass: the gaps, [R, CELLS + 1].
    """
    width = np.full(CELLS + 1, 1 / CELLS)
    width[[0, -1]] /= 2
    cosines = scipy.fft.dct(mass / width, type=1)
    decay = (np.cos(np.pi * np.arange(CELLS + 1) / CELLS) - 1) * CELLS**2

    def excess(sigma: Floats, rows: Ints) -> Floats:
        heat = np.exp(sigma[:, None] ** 2 * decay)
        smoothed = scipy.fft.idct(cosines[rows] * heat, type=1, overwrite_x=True)
        return np.asarray(np.abs(smoothed) @ width - sigma)

    low, high = np.abs(mass.sum(axis=1)), np.abs(mass).sum(axis=1)
    rows = np.arange(len(mass))
    above, below = excess(low, rows), excess(high, rows)
    # All gaps have one sign; or no two gaps of different sign are near each other.
    found: Floats = np.where(above <= 0, low, high)
    rows = np.flatnonzero((above > 0) & (below < 0))
    found[rows] = _roots(excess, rows, (low[rows], above[rows]), (high[rows], below[rows]))
    return found


def _roots(
    f: Callable[[Floats, Ints], Floats],
    rows: Ints,
    one: tuple[Floats, Floats],
    other: tuple[Floats, Floats],
    tolerance: float = 1e-10,
) -> Floats:
    """Where functions cross zero, many at a time (Chandrupatla 1997): [R].

    Bisection, or inverse quadratic interpolation where three points promise that it is better.

    Args:
        f: (x [r], rows [r]) -> value of the function of each row.
        rows: [R] which functions.
        one, other: x [R] and value on both sides of the root; the values have different signs.
    """
    (a, fa), (b, fb) = one, other
    found, place = np.empty(len(rows)), np.arange(len(rows))
    share = fa / (fa - fb)  # the first step is the secant's
    while len(place):
        x = a + share * (b - a)
        fx = f(x, rows)
        same = (fx > 0) == (fa > 0)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        found[place] = np.where(np.abs(fa) < np.abs(fb), a, b)
        going = (np.abs(b - a) > 2 * tolerance) & (fa != 0)
        place, rows = place[going], rows[going]
        a, b, c, fa, fb, fc = (v[going] for v in (a, b, c, fa, fb, fc))
        with np.errstate(divide="ignore", invalid="ignore"):
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            trusted = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            guess = fa / (fb - fa) * fc / (fb - fc)
            guess += (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        least = tolerance / np.abs(b - a)
        share = np.clip(np.where(trusted, guess, 0.5), least, 1 - least)
    return found


def _equal_width_bins(p: Floats, n_bins: int) -> Ints:
    """Bin i is [i/n_bins, (i+1)/n_bins), the last one includes 1."""
    bins: Ints = np.searchsorted(np.arange(1, n_bins) / n_bins, p, side="right")
    return bins


def _error(totals: Floats, norm: float) -> Floats:
    """(sum_b n_b |acc_b - conf_b|^p / n)^(1/p), from totals as of `bin_totals`: [3, B, ...]."""
    count, right, conf_sum = totals
    gap = np.abs(right - conf_sum) / np.maximum(count, 1)  # empty bins hold nothing
    return np.asarray(((count * gap**norm).sum(axis=0) / count.sum(axis=0)) ** (1 / norm))


def _confidence_and_correct(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    conf, right = confidence_and_correct(confidence, correct)
    outside = conf[(conf < -ROUNDING) | (conf > 1 + ROUNDING)]
    if outside.size:
        raise UndefinedMetricError(
            f"{outside.size} of {conf.size} confidences lie outside [0, 1], such as {outside[0]:g}"
        )
    return conf, right


def _probs_and_target(probs: ArrayLike, target: ArrayLike) -> tuple[Floats, Ints]:
    distribution, labels = scores_and_target(probs, target)
    total = distribution.sum(axis=1)
    odd = (distribution < -ROUNDING).any(axis=1) | ~(np.abs(total - 1) <= ROUNDING)
    if odd.any():
        raise UndefinedMetricError(
            f"{odd.sum()} of {len(odd)} rows of probs are no probability distribution "
            f"(row {np.argmax(odd)} sums to {total[np.argmax(odd)]:g})"
        )
    return distribution, labels


def _check_options(n_bins: int = 1, norm: float = 1, ties: str = "group") -> None:
    if not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise ValueError(f"n_bins={n_bins!r} is not allowed; it must be an integer >= 1")
    if not isinstance(norm, (int, float)) or not 1 <= norm < math.inf:
        raise ValueError(f"norm={norm!r} is not allowed; it must be a finite number >= 1")
    check_choice("ties", ties, get_args(Ties))
