"""The statistics of a report: each on all documents and on the same bootstrap resamples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lm_eval_semsoft.core import classification
from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricError, of_many
from lm_eval_semsoft.core.calibration import bin_totals

from . import resampling
from .measures import MEASURES, Floats, Judged
from .report_data import Estimate

Key = TypeVar("Key", bound=Hashable)

RESAMPLES = resampling.RESAMPLES
BINS = 15


@dataclass(frozen=True, eq=False, kw_only=True)
class Side(Judged):
    """All documents under one scoring, `constrained` or `semantic`."""

    kind: str


@dataclass(frozen=True, eq=False)
class Draws:
    """A statistic on all documents, then on every resample: [1 + R, …]; or why it is undefined."""

    values: Floats
    why: str = ""

    def estimate(self) -> Estimate:
        return estimate_of(self.values)

    def estimates(self) -> list[Estimate]:
        """Of a statistic that is a vector, number by number."""
        return [estimate_of(column) for column in self.values.T]


def estimate_of(values: Floats) -> Estimate:
    """The first value, and the interval of the others."""
    return Estimate(float(values[0]), *resampling.interval(values))


def bootstrap_all(sides: Sequence[Side]) -> dict[tuple[str, str], Draws]:
    """(scoring, what) -> draws; what exists depends on targets and on the side."""
    return draw_all(((side.kind, what), bind) for side in sides for what, bind in _binders(side))


def draw_all(
    binders: Iterable[tuple[Key, Callable[[], Statistic[Any]]]],
) -> dict[Key, Draws]:
    """Every statistic, those of as many documents on the same resamples: differences are paired.

    Args:
        binders: a name, and what makes the statistic or says why there is none.
    """
    bound = [(name, *_bound(bind)) for name, bind in binders]
    statistics: dict[int, dict[Key, Statistic[Any]]] = {}  # by number of documents
    for name, own, _ in bound:
        if own is not None:
            statistics.setdefault(own.n, {})[name] = own
    found: dict[Key, Floats] = {}
    for n, same in statistics.items():
        found |= resampling.replicates(same, n, RESAMPLES)
    nothing = np.full(1 + RESAMPLES, np.nan)
    return {name: Draws(found.get(name, nothing), reason) for name, _, reason in bound}


def _bound(bind: Callable[[], Statistic[Any]]) -> tuple[Statistic[Any] | None, str]:
    """A statistic, if there is one, and why it has no value, if it has none."""
    try:
        own = bind()
    except UndefinedMetricError as reason:
        return None, str(reason)
    return own, _reason(own)


def _binders(side: Side) -> Iterator[tuple[str, Callable[[], Statistic[Any]]]]:
    for measure in MEASURES:
        if measure.applies(side):
            yield measure.key, functools.partial(measure.bind, side)
    yield "bins", functools.partial(_bins, side)
    if side.target is not None:
        yield "label_f1", lambda: classification.label_f1(side.probs, side.labels)
        yield "label_auroc", lambda: classification.label_auroc(side.probs, side.labels)


def _reason(statistic: Statistic[Any]) -> str:
    """Why there is no value on all documents; "" if there is one."""
    try:
        statistic.at(np.ones(statistic.n, dtype=np.int64))
    except UndefinedMetricError as reason:
        return str(reason)
    return ""


def _bins(side: Side) -> Statistic[Floats]:
    """Documents, mean confidence and accuracy of equal-width bins, one after the other: [3 B]."""
    known = np.isfinite(side.confidence)
    if not known.any():
        raise UndefinedMetricError("no document has a confidence")
    conf = side.confidence[known]
    y = np.full(len(conf), np.nan) if side.target is None else side.right[known].astype(np.float64)
    totals = bin_totals(conf, y, BINS)

    def many(counts: Floats) -> Floats:
        count, right, conf_sum = totals(counts[known])
        with np.errstate(invalid="ignore"):
            return np.concatenate([count, conf_sum / count, right / count]).T

    return of_many(len(known), many)
