"""Standard errors and percentile intervals by resampling documents (Efron 1979).

A resample of n documents is fully described by n *counts*: how often each document was drawn.
So every metric of this package is written once, as a `Statistic`: its value as a function of the
counts. All ones gives the value in the table, multinomial counts give a bootstrap replicate, and
the two cannot drift apart. Whatever does not depend on the counts (checks, sorting) is done once,
and most metrics take many resamples at a time: their sums over documents are matrix products.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

P = ParamSpec("P")
T = TypeVar("T")

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

# Resamples that are evaluated at a time, so that the counts of a few thousand documents stay in
# the cache: at most so many, and at most so many counts.
_AT_ONCE, _COUNTS_AT_ONCE = 48, 1 << 22

# Below this share of defined replicates, the rest no longer describe the metric's distribution.
MIN_DEFINED_SHARE = 0.5


class UndefinedMetricWarning(UserWarning):
    """A metric came out as NaN; the message says which one and why."""


class UndefinedMetricError(Exception):
    """Raised inside a metric whose value does not exist; its text is the reason.

    It never reaches a caller: `metric` turns it into NaN and a warning, the bootstrap into NaN.
    """


@dataclass(frozen=True)
class Statistic(Generic[T]):
    """A metric bound to its documents.

    Attributes:
        n: number of documents.
        at: value when document i counts ``counts[i]`` times (int64 [n], not all zero). Raises
            `UndefinedMetricError` where there is no value.
        many: numbers for many counts at a time: float64 [n, R] -> [R, ...], NaN where there is no
            value. None if there is no quicker way than one after the other.
    """

    n: int
    at: Callable[[Counts], T]
    many: Callable[[Floats], Floats] | None = None


def of_many(n: int, many: Callable[[Floats], Floats], undefined: str = "") -> Statistic[Any]:
    """A statistic that is written for many counts at a time (see `Statistic.many`).

    Args:
        undefined: why a value does not exist, if it is NaN; "" where NaN is the value.
    """

    def at(counts: Counts) -> Any:
        (value,) = many(counts.astype(np.float64)[:, None])
        if undefined and np.isnan(value):
            raise UndefinedMetricError(undefined)
        return float(value) if np.ndim(value) == 0 else value

    return Statistic(n, at, many)


def metric(undefined: T) -> Callable[[Callable[P, Statistic[T]]], Callable[P, T]]:
    """Turn a function that returns a `Statistic` into one that returns its value.

    The result is `undefined`, with one `UndefinedMetricWarning`, where the value does not exist.
    The undecorated function stays reachable as ``.prepare``: the bootstrap uses it.
    """

    def decorate(prepare: Callable[P, Statistic[T]]) -> Callable[P, T]:
        @functools.wraps(prepare)
        def value(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                statistic = prepare(*args, **kwargs)
                return statistic.at(np.ones(statistic.n, dtype=np.int64))
            except UndefinedMetricError as reason:
                _warn(f"{prepare.__name__} is NaN: {reason}", stacklevel=3)
                return undefined

        signature = inspect.signature(prepare)
        vars(value)["prepare"] = prepare
        vars(value)["__signature__"] = signature.replace(return_annotation=type(undefined))
        return value

    return decorate


def mean_of(values: Floats) -> Statistic[float]:
    """The mean of one finite number per document (float64 [n])."""
    return of_many(len(values), lambda counts: np.asarray(values @ counts / counts.sum(axis=0)))


class Draws:
    """Some resamples of n documents, for `values_at`.

    Attributes:
        counts: int64 [R, n], how often each document was drawn.
    """

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    @cached_property
    def columns(self) -> Floats:
        """The counts as `Statistic.many` takes them: [n, R]."""
        return np.ascontiguousarray(self.counts.T, dtype=np.float64)


def blocks(documents: int, n: int = 1000, seed: int = 0) -> Iterator[Draws]:
    """`resamples`, many at a time; of one order, so the first ones are the first of `resamples`.

    Raises:
        ValueError: as `resamples`.
    """
    drawn = resamples(documents, n, seed)
    size = max(1, min(_AT_ONCE, _COUNTS_AT_ONCE // documents))
    while some := list(itertools.islice(drawn, size)):
        yield Draws(np.array(some))


def values_at(statistic: Statistic[Any], draws: Draws) -> Floats:
    """A statistic on some resamples, [R, ...]; NaN where there is no value. No warnings."""
    if statistic.many is not None:
        return statistic.many(draws.columns)
    return np.array([number_at(statistic, counts) for counts in draws.counts])


class Interval(NamedTuple):
    """A percentile interval, in the unit of the metric; both ends are NaN if there is none."""

    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """What `paired` returns: how one set of answers compares with another on the same documents.

    Attributes:
        difference: metric of a minus metric of b, on all documents.
        low, high: ends of the percentile interval of the difference.
        probability: share of the resamples in which a is better than b, ties counted one half.
        n: number of documents.
    """

    difference: float
    low: float
    high: float
    probability: float
    n: int


def resamples(documents: int, n: int = 1000, seed: int = 0) -> Iterator[Counts]:
    """Draw `n` bootstrap resamples of `documents` documents, as counts (int64 [documents]).

    The same arguments always give the same resamples, so metrics that are bootstrapped with one
    seed are compared pairwise on the same documents.

    Raises:
        ValueError: documents < 1 or n < 1.
    """
    _at_least("documents", documents, 1)
    _at_least("n", n, 1)
    rng = np.random.default_rng(seed)
    draws = (rng.integers(documents, size=documents) for _ in range(n))
    return (np.bincount(draw, minlength=documents) for draw in draws)


def replicates(
    fn: Callable[..., Any], *arrays: ArrayLike, n: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Values of a metric on `n` resamples; NaN where a resample leaves it undefined. No warnings.

    Args:
        fn: a metric of this package (fast: it is given counts), or any function of arrays that
            returns a number or an object with a ``value``. Options: ``functools.partial``.
        arrays: what `fn` takes, one row per document, all of one length.
        n: number of resamples.
        seed: of the random numbers.

    Returns:
        float64 [n].

    Raises:
        ValueError: no arrays, arrays of different lengths, n < 1.
    """
    _at_least("n", n, 1)
    documents = _shared_length(arrays)
    with warnings.catch_warnings():
        # One reason is worth a warning, a thousand resamples with the same one are not.
        warnings.simplefilter("ignore")
        try:
            statistic = _bind(fn, arrays)
        except UndefinedMetricError:
            return np.full(n, np.nan)
        return np.concatenate([values_at(statistic, draws) for draws in blocks(documents, n, seed)])


def stderr(fn: Callable[..., Any], *arrays: ArrayLike, n: int = 1000, seed: int = 0) -> float:
    """Bootstrap standard error of a metric: the standard deviation of its replicates.

    Replicates that are NaN (say, a resample without a single right answer) are left out.

    Args:
        fn, arrays, n, seed: as for `replicates`.

    Returns:
        The standard error, in the unit of the metric. NaN without a warning if the metric itself
        is NaN on these documents (its own warning has said why); NaN with one warning if there
        are fewer than two documents, fewer than half of the replicates are defined, or some of
        them are infinite.

    Raises:
        ValueError: as for `replicates`, and n < 2.
    """
    _at_least("n", n, 2)
    values = _defined("standard error", fn, arrays, n, seed)
    return float(values.std(ddof=1)) if values.size else math.nan


def interval(
    fn: Callable[..., Any],
    *arrays: ArrayLike,
    n: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Bootstrap percentile interval of a metric.

    Args:
        fn, arrays, n, seed: as for `replicates`.
        level: share of the replicates inside, e.g. .95 for the 2.5th to the 97.5th percentile.

    Returns:
        `Interval`; NaN ends under the conditions of `stderr`.

    Raises:
        ValueError: as for `stderr`, and level outside (0, 1).
    """
    _at_least("n", n, 2)
    _check_level(level)
    return _percentiles(_defined("interval", fn, arrays, n, seed), level)


def paired(
    fn: Callable[..., Any],
    a_arrays: Sequence[ArrayLike],
    b_arrays: Sequence[ArrayLike],
    n: int = 1000,
    seed: int = 0,
    higher_is_better: bool = True,
    level: float = 0.95,
) -> Paired:
    """Compare two sets of answers to the same documents: the paired bootstrap (Koehn 2004).

    Both sides are computed on the same resamples, so what makes a resample easy or hard for both
    cancels in the difference.

    Args:
        fn: as for `replicates`.
        a_arrays, b_arrays: what `fn` takes, for a and for b: row i of all arrays is document i.
        n, seed: as for `replicates`.
        higher_is_better: False for errors and losses; it only decides which side is better.
        level: as for `interval`.

    Returns:
        `Paired`. If the metric is NaN for a or b, so is everything but the number of documents
        (the metric's own warning says why). Interval and probability are NaN, with one warning,
        under the conditions of `stderr`.

    Raises:
        ValueError: as for `interval`.
    """
    _at_least("n", n, 2)
    _check_level(level)
    for name, arrays in (("a_arrays", a_arrays), ("b_arrays", b_arrays)):
        if not isinstance(arrays, (tuple, list)):
            raise ValueError(f"{name} is {type(arrays).__name__}; it must be a tuple of arrays")
    documents = _shared_length((*a_arrays, *b_arrays))
    a, b = _number(fn(*a_arrays)), _number(fn(*b_arrays))
    if math.isnan(a) or math.isnan(b):
        return Paired(math.nan, math.nan, math.nan, math.nan, documents)
    with np.errstate(invalid="ignore"):  # infinite - infinite
        differences = np.subtract(
            replicates(fn, *a_arrays, n=n, seed=seed), replicates(fn, *b_arrays, n=n, seed=seed)
        )
    flaw = _flaw(differences, documents)
    if flaw:
        _warn(f"the paired comparison of {_name(fn)} is NaN: {flaw}", stacklevel=3)
        return Paired(a - b, math.nan, math.nan, math.nan, documents)
    differences = differences[~np.isnan(differences)]
    gains = differences if higher_is_better else -differences
    probability = float(np.mean((gains > 0) + (gains == 0) / 2))
    return Paired(a - b, *_percentiles(differences, level), probability, documents)


def _bind(fn: Callable[..., Any], arrays: tuple[ArrayLike, ...]) -> Statistic[Any]:
    """The statistic behind `fn`; functions that know nothing of counts get repeated rows."""
    bare = fn.func if isinstance(fn, functools.partial) else fn
    if prepare := getattr(bare, "prepare", None):
        if isinstance(fn, functools.partial):
            prepare = functools.partial(prepare, *fn.args, **fn.keywords)
        statistic: Statistic[Any] = prepare(*arrays)
        return statistic
    tables = [np.asarray(array) for array in arrays]
    rows = np.arange(len(tables[0]))

    def at(counts: Counts) -> Any:
        drawn = np.repeat(rows, counts)
        return fn(*(table[drawn] for table in tables))

    return Statistic(len(rows), at)


def number_at(statistic: Statistic[Any], counts: Counts) -> float:
    """A metric's value when documents count so often; NaN where there is none. No warnings."""
    try:
        result = statistic.at(counts)
    except UndefinedMetricError:
        return math.nan
    return _number(result)


def _number(result: Any) -> float:
    return float(getattr(result, "value", result))


def _defined(
    what: str, fn: Callable[..., Any], arrays: tuple[ArrayLike, ...], n: int, seed: int
) -> NDArray[np.float64]:
    """The replicates that are numbers; empty, after a warning, if they cannot serve."""
    documents = _shared_length(arrays)
    if documents == 0:
        return np.empty(0)
    values = replicates(fn, *arrays, n=n, seed=seed)
    flaw = _flaw(values, documents)
    if not flaw:
        return values[~np.isnan(values)]
    if not _is_undefined(fn, arrays):
        _warn(f"the {what} of {_name(fn)} is NaN: {flaw}", stacklevel=4)
    return np.empty(0)


def _flaw(values: NDArray[np.float64], documents: int) -> str:
    """Why these replicates say nothing about how results vary; "" if they do."""
    n, undefined, infinite = len(values), np.isnan(values).sum(), np.isinf(values).sum()
    if documents == 1:
        return "one document cannot show how results vary; it takes at least two"
    if infinite:
        return f"the metric is infinite on {infinite} of {n} resamples"
    if n - undefined < max(2, MIN_DEFINED_SHARE * n):
        return f"the metric is undefined on {undefined} of {n} resamples"
    return ""


def _percentiles(values: NDArray[np.float64], level: float) -> Interval:
    if not values.size:
        return Interval(math.nan, math.nan)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _is_undefined(fn: Callable[..., Any], arrays: tuple[ArrayLike, ...]) -> bool:
    try:
        statistic = _bind(fn, arrays)
    except UndefinedMetricError:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return math.isnan(number_at(statistic, np.ones(statistic.n, dtype=np.int64)))


def _shared_length(arrays: tuple[ArrayLike, ...]) -> int:
    if not arrays:
        raise ValueError("no arrays were given; the bootstrap needs at least one to resample")
    shapes = [np.shape(array) for array in arrays]
    if () in shapes:
        raise ValueError("one of the arrays is a single number; each needs one row per document")
    lengths = [int(shape[0]) for shape in shapes]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the arrays have {', '.join(map(str, lengths))} rows; "
            "they must have one row per document, the same number in each"
        )
    return lengths[0]


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}={value!r} is not allowed; it must be an integer >= {least}")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is not a share; allowed are numbers between 0 and 1")


def _name(fn: Callable[..., Any]) -> str:
    bare = fn.func if isinstance(fn, functools.partial) else fn
    return str(getattr(bare, "__name__", "the metric"))


def _warn(message: str, stacklevel: int) -> None:
    warnings.warn(f"{message}.", UndefinedMetricWarning, stacklevel=stacklevel)
