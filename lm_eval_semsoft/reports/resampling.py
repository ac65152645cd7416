"""Many statistics on the same bootstrap resamples, and what their values there say.

All functions take values [1 + R]: on all documents, then on every resample; NaN where there is
none. The rules for what makes an interval are those of `core.bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import bootstrap
from lm_eval_semsoft.core.bootstrap import (
    MIN_DEFINED_SHARE,
    Draws,
    Interval,
    Paired,
    Statistic,
    values_at,
)

Floats = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

RESAMPLES = 1000
LEVEL = 0.95

# Differences of less are rounding: two sums of the same numbers in another order.
_ROUNDING = 12  # decimals


def replicates(
    statistics: Mapping[Key, Statistic[Any]],
    documents: int,
    resamples: int = RESAMPLES,
    seed: int = 0,
    enough: Mapping[Key, int] | None = None,
    progress: Callable[[int], object] = lambda steps: None,
) -> dict[Key, Floats]:
    """Every statistic on all documents, then on every resample: [1 + R, ...].

    Args:
        enough: how many resamples will do for a statistic; NaN on the others.
        progress: called with how many resamples were done since the last time.
    """
    enough = dict.fromkeys(statistics, resamples) if enough is None else enough
    everyone = Draws(np.ones((1, documents), dtype=np.int64))
    parts = {key: [values_at(own, everyone)] for key, own in statistics.items()}
    done = 0
    # One document cannot show how results vary.
    for draws in bootstrap.blocks(documents, resamples, seed) if documents > 1 else ():
        for key, own in statistics.items():
            wanted = enough[key] - done
            if wanted > 0:
                whole = wanted >= len(draws.counts)
                parts[key].append(values_at(own, draws if whole else Draws(draws.counts[:wanted])))
        done += len(draws.counts)
        progress(len(draws.counts))
    progress(resamples - done)
    return {key: _padded(np.concatenate(own), 1 + resamples) for key, own in parts.items()}


def _padded(values: Floats, length: int) -> Floats:
    out = np.full((length, *values.shape[1:]), np.nan)
    out[: len(values)] = values
    return out


def interval(values: Floats) -> Interval:
    """The percentile interval; NaN if too few of the values are numbers."""
    drawn = values[1:]
    if math.isnan(values[0]) or not _usable(drawn):
        return Interval(math.nan, math.nan)
    low, high = np.quantile(drawn[~np.isnan(drawn)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def paired(a: Floats, b: Floats, higher: bool | None, documents: int) -> Paired:
    """a minus b on the same resamples (`core.bootstrap.paired`).

    Args:
        higher: is more better? None: neither, then there is no probability.
    """
    with np.errstate(invalid="ignore"):  # infinite - infinite
        differences = a - b
    sure = math.nan
    if higher is not None and not math.isnan(differences[0]):
        sure = _share_better(differences[1:] if higher else -differences[1:])
    return Paired(float(differences[0]), *interval(differences), sure, documents)


def _share_better(gains: Floats) -> float:
    """How many of the gains are positive, zeros counted one half; NaN as `interval`."""
    if not _usable(gains):
        return math.nan
    known = np.round(gains[~np.isnan(gains)], _ROUNDING)
    return float(np.mean((known > 0) + (known == 0) / 2))


def _usable(drawn: Floats) -> bool:
    """Do these values say how results vary? The rules of `core.bootstrap`."""
    defined = len(drawn) - int(np.isnan(drawn).sum())
    return not np.isinf(drawn).any() and defined >= max(2, MIN_DEFINED_SHARE * len(drawn))
