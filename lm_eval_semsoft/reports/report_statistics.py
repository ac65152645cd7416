"""The statistics of a report: each on all documents and on the same bootstrap resamples."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.bootstrap import Counts, Statistic, UndefinedMetricError, mean_of
from lm_eval_semsoft.core.semantic_softmax import normalise

from .readings import Readings
from .report_data import SEMANTIC, Estimate

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESAMPLES = 1000
LEVEL = 0.95
BINS = 15


@dataclass(frozen=True, eq=False)
class Side:
    """All documents under one scoring; n documents, L labels.

    Attributes:
        kind: `constrained` or `semantic`.
        log_scores: [n, L], not normalised.
        probs: [n, L].
        confidence: [n] probability of the predicted label.
        predicted: [n] its number.
    """

    kind: str
    log_scores: Floats
    probs: Floats
    confidence: Floats
    predicted: NDArray[np.int64]

    @classmethod
    def of(cls, kind: str, log_scores: Floats) -> Side:
        with np.errstate(invalid="ignore"):  # a document that is all NaN, or without any score
            probs = normalise(log_scores)
        return cls(kind, log_scores, probs, probs.max(axis=1), probs.argmax(axis=1))

    @functools.cached_property
    def log_probs(self) -> Floats:
        """Exact where a probability underflows: [n, L]."""
        with np.errstate(invalid="ignore"):
            shifted = self.log_scores - self.log_scores.max(axis=1, keepdims=True)
            return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _bound(metric: Callable[..., Any], *arguments: Any) -> Callable[[], Statistic[Any]]:
    """A metric of `core` before it is given documents' counts."""
    return functools.partial(vars(metric)["prepare"], *arguments)


def prepare_all(
    sides: Sequence[Side], readings: Readings
) -> dict[tuple[str, str], Callable[[], Statistic[Any]]]:
    """(scoring, what) -> how to prepare it. What exists depends on targets and on the side."""
    found: dict[tuple[str, str], Callable[[], Statistic[Any]]] = {}
    target = readings.target
    for side in sides:
        conf = side.confidence
        own = {"mean_confidence": _bound(calibration.mean_confidence, conf)}
        if side.kind == SEMANTIC:
            silent = functools.partial(_silent_vote, side, readings.label_logprobs)
            own["silent_vote"] = silent
        right = None
        if target is not None:
            right = classification.correctness(side.probs, target)
            for metric in (classification.accuracy, classification.macro_f1, classification.auroc):
                own[metric.__name__] = _bound(metric, side.probs, target)
            own["brier"] = _bound(calibration.brier, side.probs, target)
            own["nll"] = functools.partial(_nll, side, target)
            for of_confidence in (
                calibration.ece, calibration.ece_mass, calibration.ece_sweep,
                calibration.smooth_ece, classification.confidence_auroc, classification.auarc,
            ):  # fmt: skip
                own[of_confidence.__name__] = _bound(of_confidence, conf, right)
            own["label_f1"] = functools.partial(_label_f1, side, target)
            own["label_auroc"] = functools.partial(_label_auroc, side, target)
        own["bins"] = functools.partial(_bins, conf, right)
        found.update({(side.kind, what): how for what, how in own.items()})
    return found


@dataclass(frozen=True, eq=False)
class Draws:
    """A statistic on all documents, then on every resample: [1 + R, …]; or why it is undefined."""

    values: Floats
    why: str = ""
    documents: int = 0

    def estimate(self) -> Estimate:
        return estimate_of(self.values, self.documents)

    def estimates(self) -> list[Estimate]:
        """Of a statistic that is a vector, number by number."""
        return [estimate_of(column, self.documents) for column in self.values.T]


def bootstrap_all(
    how: Mapping[tuple[str, str], Callable[[], Statistic[Any]]], n: int
) -> dict[tuple[str, str], Draws]:
    """Every statistic on the same resamples, so that differences are paired."""
    prepared = {name: _prepare(prepare) for name, prepare in how.items()}
    everyone = np.ones(n, dtype=np.int64)
    why = {
        name: own if isinstance(own, str) else _value(own, everyone)[1]
        for name, own in prepared.items()
    }
    statistics = {name: own for name, own in prepared.items() if not isinstance(own, str)}
    values: dict[tuple[str, str], list[Any]] = {name: [] for name in statistics}
    resamples = bootstrap.resamples(n, RESAMPLES) if n > 1 else iter(())
    for counts in itertools.chain([everyone], resamples):
        for name, statistic in statistics.items():
            values[name].append(_value(statistic, counts)[0])
    nothing = np.full(1 + RESAMPLES, np.nan)
    return {
        name: Draws(_rectangle(values[name]) if name in values else nothing, why[name], n)
        for name in how
    }


def _prepare(prepare: Callable[[], Statistic[Any]]) -> Statistic[Any] | str:
    """A statistic, or why it does not exist."""
    try:
        return prepare()
    except UndefinedMetricError as reason:
        return str(reason)


def _value(statistic: Statistic[Any], counts: Counts) -> tuple[Any, str]:
    try:
        result = statistic.at(counts)
    except UndefinedMetricError as reason:
        return math.nan, str(reason)
    return getattr(result, "value", result), ""


def _rectangle(values: Sequence[Any]) -> Floats:
    """Rows of one shape; an undefined row is all NaN."""
    shape = max((np.shape(value) for value in values), key=len, default=())
    rows = [np.broadcast_to(np.asarray(v, dtype=np.float64), shape) for v in values]
    return np.array(rows)


def estimate_of(values: Floats, documents: int) -> Estimate:
    """Percentile interval, under the conditions of `core.bootstrap.interval`."""
    value, again = float(values[0]), values[1:]
    defined = again[~np.isnan(again)]
    too_few = defined.size < max(2, bootstrap.MIN_DEFINED_SHARE * len(again))
    if math.isnan(value) or documents < 2 or too_few or np.isinf(defined).any():
        return Estimate(value)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def _nll(side: Side, target: Bools) -> Statistic[float]:
    _, labels = classification.scores_and_target(side.probs, target)
    loss = -side.log_probs[np.arange(len(labels)), labels]
    if not np.isfinite(loss).all():  # impossible targets have rules of their own
        statistic: Statistic[float] = vars(calibration.nll)["prepare"](side.probs, target)
        return statistic
    return mean_of(loss)


def silent_share(log_scores: Floats, label_logprobs: NDArray[np.floating]) -> Floats:
    """1 - P / S, as `core.semantic_softmax.silent_vote`, for arrays."""
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.expm1(np.minimum(0.0, label_logprobs - log_scores)))


def _silent_vote(side: Side, label_logprobs: NDArray[np.floating]) -> Statistic[float]:
    if not len(side.predicted):
        raise UndefinedMetricError("there are no documents")
    winner = (np.arange(len(side.predicted)), side.predicted)
    share = silent_share(side.log_scores[winner], label_logprobs[winner])
    if unknown := int(np.isnan(share).sum()):
        raise UndefinedMetricError(f"{unknown} of {len(share)} documents have NaN scores")
    return mean_of(share)


def _label_f1(side: Side, target: Bools) -> Statistic[Floats]:
    """F1 of each label as in `classification.macro_f1`: [L], NaN where a label never occurs."""
    probs, labels = classification.scores_and_target(side.probs, target)
    size, hit = probs.shape[1], side.predicted == labels

    def at(counts: Counts) -> Floats:
        hits = np.bincount(labels[hit], counts[hit], size)
        total = np.bincount(labels, counts, size) + np.bincount(side.predicted, counts, size)
        with np.errstate(invalid="ignore"):
            return np.asarray(2 * hits / total)

    return Statistic(len(labels), at)


def _label_auroc(side: Side, target: Bools) -> Statistic[Floats]:
    """One-vs-rest AUROC of each label as in `classification.auroc`: [L], NaN where undefined."""
    probs, labels = classification.scores_and_target(side.probs, target)
    n, size = probs.shape
    order = np.argsort(probs, axis=0)
    below, through = np.empty(n, np.int64), np.empty(n, np.int64)
    for label in range(size):
        own, ranked = labels == label, probs[order[:, label], label]
        below[own] = np.searchsorted(ranked, probs[own, label], side="left")
        through[own] = np.searchsorted(ranked, probs[own, label], side="right")
    # One long ranking, label after label; a document is positive for its own label only.
    ranking = order.T.ravel()

    def at(counts: Counts) -> Floats:
        weight_before = np.append(0, np.cumsum(counts[ranking]))
        start, total = labels * n, counts.sum()
        rank = (weight_before[start + below] + weight_before[start + through]) / 2 - labels * total
        positives = np.bincount(labels, counts, size)
        wins = np.bincount(labels, counts * rank, size) - positives**2 / 2
        with np.errstate(invalid="ignore"):
            return np.asarray(wins / (positives * (total - positives)))

    return Statistic(n, at)


def _bins(confidence: Floats, right: Bools | None) -> Statistic[Floats]:
    """Documents, mean confidence and accuracy of equal-width bins, one after the other: [3 B]."""
    known = np.isfinite(confidence)
    if not known.any():
        raise UndefinedMetricError("no document has a confidence")
    conf = confidence[known]
    y = np.full(len(conf), np.nan) if right is None else right[known].astype(np.float64)
    bins = np.searchsorted(np.arange(1, BINS) / BINS, conf, side="right")

    def at(counts: Counts) -> Floats:
        own = counts[known]
        count = np.bincount(bins, own, BINS)
        with np.errstate(invalid="ignore"):
            mean = np.bincount(bins, own * conf, BINS) / count
            accuracy = np.bincount(bins, own * y, BINS) / count
        return np.concatenate([count, mean, accuracy])

    return Statistic(len(confidence), at)
