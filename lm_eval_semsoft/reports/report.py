"""The report: one HTML page that shows what readouts say, standard softmax beside Semantic Softmax.

    sections = [build(r) for r in readings.load_all("readouts/gemma")]
    html = render(Report(tuple(sections)))

Three steps that do not mix: `build` computes every number of a section from readings, `numbers`
gives them as JSON, `render` puts them on a page that needs no network and runs no script. The same
readouts always give the same bytes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from lm_eval_semsoft import __version__
from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.bootstrap import Counts, Statistic, UndefinedMetricError, mean_of
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import (
    Kernel,
    Scoring,
    normalise,
    parse_space,
    semantic_log_scores,
)
from lm_eval_semsoft.engine.store import ForeignReadouts

from . import figures, scores
from .figures import HeatPanel, Reliability, TauSurface
from .readings import Readings
from .tune import canonical

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESAMPLES = 1000
LEVEL = 0.95
BINS = 15
TUNE_FILE = "tune.json"

CONSTRAINED, SEMANTIC = "constrained", "semantic"
TITLES = {CONSTRAINED: "Standard softmax", SEMANTIC: "Semantic Softmax"}

_WORDS = 5  # voters that are named for a label or a document …
_AUDIBLE = 0.01  # … if their vote is at least this share of the loudest
_TOP_LABELS = 3  # labels of a document that are shown with their probability
_LONGEST_TEXT = 600  # characters of a document
_LONGEST_WORD = 32  # characters of a token


# --------------------------------------------------------------------------------------------
# metrics
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A row of the metrics table.

    Attributes:
        key: as in the harness's results.
        name: as people write it.
        group: heading of the rows around it.
        better: `higher`, `lower`, or "" where neither is.
        meaning: one sentence for newcomers.
    """

    key: str
    name: str
    group: str
    better: str
    meaning: str


_RIGHT = "Is the answer right?"
_HONEST = "Are the probabilities honest?"
_CALIBRATED = "Is confidence as high as accuracy?"
_SORTED = "Does confidence tell right from wrong?"
_DESCRIBED = "For orientation"

METRICS = (
    Metric(
        "accuracy", "accuracy", _RIGHT, "higher",
        "share of documents with the right label on top",
    ),
    Metric(
        "macro_f1", "macro-F1", _RIGHT, "higher",
        "F1 of each label, averaged over labels: rare ones count as much as frequent ones",
    ),
    Metric(
        "auroc", "AUROC", _RIGHT, "higher",
        "is a label ranked higher where it is right than where it is not? 0.5 is chance",
    ),
    Metric(
        "brier", "Brier", _HONEST, "lower",
        "squared error of the whole distribution, 0 to 2; a proper score: only honest "
        "probabilities win it",
    ),
    Metric(
        "nll", "NLL", _HONEST, "lower",
        "surprise about the right label, in nats; proper as well, and hard on false certainty",
    ),
    Metric(
        "ece", "ECE", _CALIBRATED, "lower",
        "mean gap between confidence and accuracy over 15 bins of equal width",
    ),
    Metric(
        "ece_mass", "ECE, equal mass", _CALIBRATED, "lower",
        "the same over 15 bins with equally many documents",
    ),
    Metric(
        "ece_sweep", "ECE sweep", _CALIBRATED, "lower",
        "with as many equal-mass bins as keep accuracy rising (root mean square)",
    ),
    Metric(
        "smooth_ece", "smooth ECE", _CALIBRATED, "lower",
        "the gap without bins, smoothed",
    ),
    Metric(
        "confidence_auroc", "confidence AUROC", _SORTED, "higher",
        "is confidence higher on right answers than on wrong ones? 0.5 is chance",
    ),
    Metric(
        "auarc", "AUARC", _SORTED, "higher",
        "accuracy on the most confident documents, averaged over how many are kept",
    ),
    Metric(
        "mean_confidence", "mean confidence", _DESCRIBED, "",
        "mean probability of the predicted label; above accuracy means overconfident",
    ),
    Metric(
        "silent_vote", "silent vote", _DESCRIBED, "",
        "mean share of the winning score that came from neighbours of the label",
    ),
)  # fmt: skip

# One of each family, for sentences and for the table of several runs.
HEADLINE = ("accuracy", "macro_f1", "auroc", "brier", "nll", "ece", "mean_confidence")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % bootstrap interval; NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class MetricRow:
    """A metric under both scorings.

    Attributes:
        metric: which.
        constrained, semantic: None where the metric does not apply to that scoring.
        difference: semantic minus constrained, on the same resamples.
        uniform: what a uniform guess is expected to get, NaN if that says nothing.
        verdict: `better`, `worse` or `unclear` with Semantic Softmax; "" where there is no better.
        why: why a value is missing.
    """

    metric: Metric
    constrained: Estimate | None
    semantic: Estimate | None
    difference: Estimate | None
    uniform: float
    verdict: str = ""
    why: str = ""


# --------------------------------------------------------------------------------------------
# what a section holds
# --------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class LabelScores:
    """One label under one scoring; F1 and AUROC are NaN without targets."""

    f1: Estimate
    auroc: Estimate
    mean_probability: float
    predicted: int


@dataclass(frozen=True)
class Voter:
    """A token that voted for a label.

    Attributes:
        word: its text.
        probability: p(v|x); in a label's row its mean over documents.
        weight: w(v,l).
        vote: their product.
    """

    word: str
    probability: float
    weight: float
    vote: float


@dataclass(frozen=True)
class Neighbourhood:
    """Who votes for a label.

    Attributes:
        size: tokens of the vocabulary that may.
        heard: those that were among the top K of some document.
        voters: the loudest.
        silent_share: mean share of the label's score that is not its own probability.
    """

    size: int
    heard: int
    voters: tuple[Voter, ...]
    silent_share: float


@dataclass(frozen=True)
class LabelRow:
    label: str
    support: int | None
    constrained: LabelScores
    semantic: LabelScores | None
    neighbourhood: Neighbourhood | None


@dataclass(frozen=True)
class Answer:
    """What a scoring says of a document: its most probable labels, and is the first right?"""

    labels: tuple[tuple[str, float], ...]
    right: bool | None


@dataclass(frozen=True)
class Change:
    """A document whose distribution Semantic Softmax changed a lot.

    Attributes:
        key: the document's id.
        text: what the model read, cut.
        truth: right labels; empty if the documents do not tell.
        moved: total variation distance between the two distributions, 0..1.
        voters: label -> the loudest neighbours, for the label that won, then for the one that lost.
        silent: label -> share of its score that its neighbours cast.
    """

    key: str
    text: str
    truth: tuple[str, ...]
    moved: float
    constrained: Answer
    semantic: Answer
    voters: Mapping[str, tuple[Voter, ...]]
    silent: Mapping[str, float]


@dataclass(frozen=True)
class Data:
    """Where documents come from: how many are published, ours, or do not tell; their sources."""

    published: int
    ours: int
    unknown: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """One task of one directory.

    Attributes:
        name, task, model: what was run.
        n: documents.
        missing: documents of the run that have no readout yet.
        labels: number of labels.
        data: where the documents come from.
        scoring: the kernel's parameters, {} without a semantic part.
        no_semantic: why there is no semantic part, "" if there is one.
        notes: other things that a reader must know.
        metrics: rows of the table.
        diagrams: reliability of each scoring.
        label_rows: most frequent label first.
        flips: right under both, only under one, under none; {} without targets.
        changed_predictions: documents with another label on top; None without a semantic part.
        changes: the documents that changed most.
        surface: objective over kernel settings, if it was tuned.
        provenance: what the readouts depend on.
    """

    name: str
    task: str
    model: str
    n: int
    missing: int
    labels: int
    data: Data
    scoring: Mapping[str, Any]
    no_semantic: str
    notes: tuple[str, ...]
    metrics: tuple[MetricRow, ...]
    diagrams: tuple[Reliability, ...]
    label_rows: tuple[LabelRow, ...]
    flips: Mapping[str, int]
    changed_predictions: int | None
    changes: tuple[Change, ...]
    surface: TauSurface | None
    provenance: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.model} on {self.task}"

    def row(self, key: str) -> MetricRow | None:
        return next((row for row in self.metrics if row.metric.key == key), None)


@dataclass(frozen=True)
class Report:
    """A page: its sections, and the command that made it."""

    sections: tuple[Section, ...]
    command: str = "semsoft report"
    version: str = field(default=__version__)


# --------------------------------------------------------------------------------------------
# computing
# --------------------------------------------------------------------------------------------


def build(
    readings: Readings,
    documents: int = 10,
    surface: TauSurface | None = None,
    scoring: Scoring | None = None,
    kernel: str | None = None,
) -> Section:
    """Every number of a section.

    Args:
        readings: one task of one directory.
        documents: how many of the documents that changed most are shown.
        surface: from `read_surface`.
        scoring: of Semantic Softmax; by default the run's.
        kernel: `auto`, `cosine` or `identity`; by default the run's.

    Raises:
        ValueError: an unknown kernel.
    """
    scoring = replace(scoring or readings.run_scoring, scoring=SEMANTIC)
    constrained = Side.of(CONSTRAINED, readings.label_logprobs.astype(np.float64))
    voters, why = _kernel(readings, scoring, kernel)
    semantic, about_scoring = None, {}
    if voters is not None:
        (votes,) = scores.votes_at(readings, voters, [scoring.top_k])
        with np.errstate(invalid="ignore"):  # a document that is NaN
            log_s = semantic_log_scores(readings.label_logprobs, votes, scoring)
        semantic = Side.of(SEMANTIC, log_s)
        about_scoring = {**asdict(scoring), "kernel": "cosine"}
    sides = [constrained] if semantic is None else [constrained, semantic]

    target = readings.target
    draws = _bootstrap(_statistics(sides, readings), readings.n)
    changes: tuple[Change, ...] = ()
    if semantic is not None and voters is not None:
        changes = _changes(readings, constrained, semantic, voters, scoring.top_k, documents)
    return Section(
        name=readings.name,
        task=readings.task,
        model=_short(readings.source.model),
        n=readings.n,
        missing=readings.missing,
        labels=len(readings.labels),
        data=_data(readings.docs),
        scoring=about_scoring,
        no_semantic=why,
        notes=_notes(readings, sides),
        metrics=_metric_rows(draws, readings, semantic is not None),
        diagrams=tuple(_diagram(side, draws, target is not None) for side in sides),
        label_rows=_label_rows(readings, sides, voters, scoring.top_k, draws),
        flips={} if target is None or semantic is None else _flips(constrained, semantic, target),
        changed_predictions=None
        if semantic is None
        else int((constrained.predicted != semantic.predicted).sum()),
        changes=changes,
        surface=surface,
        provenance=_provenance(readings),
    )


def _kernel(readings: Readings, scoring: Scoring, wanted: str | None) -> tuple[Kernel | None, str]:
    """The voting weights, or why there are none."""
    run = readings.source.manifest["about"].get("scoring", {}).get("kernel", "auto")
    kind = check_choice("kernel", wanted or run, ("auto", "cosine", "identity"))
    if readings.label_set is None:
        return None, readings.why_identity or "the documents do not share one label set"
    if kind == "identity":
        return None, "the identity kernel was asked for"
    if readings.why_identity and kind != "cosine":
        return None, readings.why_identity
    try:
        return scores.kernel_of(readings, scoring), ""
    except (ForeignReadouts, FileNotFoundError) as problem:
        return None, str(problem)


def _short(model: str) -> str:
    """A model's name; of one that is a folder, the folder's."""
    return Path(model).name if Path(model).is_absolute() else model


def _bound(metric: Callable[..., Any], *arguments: Any) -> Callable[[], Statistic[Any]]:
    """A metric of `core` before it is given documents' counts."""
    return functools.partial(vars(metric)["prepare"], *arguments)


def _statistics(
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
        return _estimate(self.values, self.documents)

    def estimates(self) -> list[Estimate]:
        """Of a statistic that is a vector, number by number."""
        return [_estimate(column, self.documents) for column in self.values.T]


def _bootstrap(
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


def _estimate(values: Floats, documents: int) -> Estimate:
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


def _silent_share(log_scores: Floats, label_logprobs: NDArray[np.floating]) -> Floats:
    """1 - P / S, as `core.semantic_softmax.silent_vote`, for arrays."""
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.expm1(np.minimum(0.0, label_logprobs - log_scores)))


def _silent_vote(side: Side, label_logprobs: NDArray[np.floating]) -> Statistic[float]:
    if not len(side.predicted):
        raise UndefinedMetricError("there are no documents")
    winner = (np.arange(len(side.predicted)), side.predicted)
    share = _silent_share(side.log_scores[winner], label_logprobs[winner])
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


# --------------------------------------------------------------------------------------------
# the parts of a section
# --------------------------------------------------------------------------------------------


def _metric_rows(
    draws: Mapping[tuple[str, str], Draws], readings: Readings, semantic: bool
) -> tuple[MetricRow, ...]:
    uniform = _uniform(readings)
    rows = []
    for metric in METRICS:
        standard = draws.get((CONSTRAINED, metric.key))
        ours = draws.get((SEMANTIC, metric.key))
        if standard is None and ours is None:
            continue
        difference = None
        if standard is not None and ours is not None:
            with np.errstate(invalid="ignore"):  # infinite - infinite
                paired = ours.values - standard.values
            difference = _estimate(paired, readings.n)
        rows.append(
            MetricRow(
                metric,
                None if standard is None else standard.estimate(),
                None if ours is None else ours.estimate(),
                difference,
                uniform.get(metric.key, math.nan),
                _verdict(metric, difference) if semantic else "",
                next((d.why for d in (standard, ours) if d is not None and d.why), ""),
            )
        )
    return tuple(rows)


def _verdict(metric: Metric, difference: Estimate | None) -> str:
    """Only an interval that leaves zero out says anything."""
    if not metric.better or difference is None or math.isnan(difference.low):
        return ""
    if difference.low <= 0 <= difference.high:
        return "unclear"
    return "better" if (difference.value > 0) == (metric.better == "higher") else "worse"


def _uniform(readings: Readings) -> dict[str, float]:
    """What a guess that gives every label the same probability is expected to get."""
    size = len(readings.labels)
    own = {"mean_confidence": 1 / size}
    if readings.target is not None and readings.n:
        accuracy = float(readings.target.mean())
        gap = abs(accuracy - 1 / size)
        own.update(accuracy=accuracy, auroc=0.5, brier=1 - 1 / size, nll=math.log(size))
        own.update(ece=gap, ece_mass=gap, ece_sweep=gap, smooth_ece=gap)
        own.update(confidence_auroc=0.5, auarc=accuracy)
    return own


def _diagram(side: Side, draws: Mapping[tuple[str, str], Draws], has_target: bool) -> Reliability:
    own = draws[side.kind, "bins"]
    values = own.values if own.values.ndim == 2 else np.full((1, 3 * BINS), np.nan)
    count, confidence, accuracy = np.split(values[0], 3)
    count = np.nan_to_num(count).astype(np.int64)
    if not has_target:
        return Reliability(TITLES[side.kind], side.kind, count, confidence)
    bands = own.estimates()[2 * BINS :]
    enough = count >= figures.MIN_IN_BIN
    return Reliability(
        title=TITLES[side.kind],
        side=side.kind,
        count=count,
        confidence=confidence,
        accuracy=accuracy,
        low=np.where(enough, [b.low for b in bands], np.nan),
        high=np.where(enough, [b.high for b in bands], np.nan),
        note=f"ECE {interval(draws[side.kind, 'ece'].estimate())}",
    )


def _label_rows(
    readings: Readings,
    sides: Sequence[Side],
    kernel: Kernel | None,
    top_k: int,
    draws: Mapping[tuple[str, str], Draws],
) -> tuple[LabelRow, ...]:
    of_sides = [_scores_by_label(side, draws, len(readings.labels)) for side in sides]
    around: Sequence[Neighbourhood | None] = [None] * len(readings.labels)
    if kernel is not None:
        around = _neighbourhoods(readings, sides[1], kernel, top_k)
    support = None if readings.target is None else readings.target.sum(axis=0)
    rows = [
        LabelRow(
            label,
            None if support is None else int(support[i]),
            of_sides[0][i],
            of_sides[1][i] if len(sides) > 1 else None,
            around[i],
        )
        for i, label in enumerate(readings.labels)
    ]
    return tuple(sorted(rows, key=lambda r: -(r.support or r.constrained.predicted)))


def _scores_by_label(
    side: Side, draws: Mapping[tuple[str, str], Draws], n_labels: int
) -> list[LabelScores]:
    nothing = [Estimate(math.nan)] * n_labels
    f1, auroc = (
        draws[side.kind, what].estimates()
        if (side.kind, what) in draws and draws[side.kind, what].values.ndim == 2
        else nothing
        for what in ("label_f1", "label_auroc")
    )
    known = side.probs[np.isfinite(side.confidence)]
    mean = known.mean(axis=0) if len(known) else np.full(n_labels, np.nan)
    predicted = np.bincount(side.predicted[np.isfinite(side.confidence)], minlength=n_labels)
    return [
        LabelScores(f1[i], auroc[i], float(mean[i]), int(predicted[i])) for i in range(n_labels)
    ]


def _neighbourhoods(
    readings: Readings, semantic: Side, kernel: Kernel, top_k: int
) -> list[Neighbourhood]:
    ids = readings.topk_ids[:, :top_k].ravel()
    p = np.exp(readings.topk_logprobs[:, :top_k].ravel(), dtype=np.float64)
    size = len(kernel.weights)
    mean_p = np.bincount(ids, np.nan_to_num(p), size) / max(1, readings.n)
    heard = np.bincount(ids, minlength=size) > 0
    share = _silent_share(semantic.log_scores, readings.label_logprobs)
    out = []
    for label in range(len(readings.labels)):
        weights = kernel.weights[:, label]
        known = share[:, label][np.isfinite(share[:, label])]
        out.append(
            Neighbourhood(
                size=int(np.count_nonzero(weights)),
                heard=int(np.count_nonzero(weights[heard])),
                voters=_loudest(readings, np.arange(size), mean_p, weights),
                silent_share=float(known.mean()) if known.size else math.nan,
            )
        )
    return out


def _loudest(
    readings: Readings, ids: NDArray[np.integer], p: Floats, weights: NDArray[np.floating]
) -> tuple[Voter, ...]:
    votes = p * weights
    best = np.argsort(-votes, kind="stable")[:_WORDS]
    return tuple(
        Voter(_word(readings, int(ids[i])), float(p[i]), float(weights[i]), float(votes[i]))
        for i in best
        if votes[i] > 0 and votes[i] >= _AUDIBLE * votes[best[0]]
    )


def _word(readings: Readings, token: int) -> str:
    texts = readings.source.token_texts()
    return texts[token] if token < len(texts) and texts[token] else f"token {token}"


def _flips(constrained: Side, semantic: Side, target: Bools) -> dict[str, int]:
    before = classification.correctness(constrained.probs, target)
    after = classification.correctness(semantic.probs, target)
    return {
        "both": int((before & after).sum()),
        "only_constrained": int((before & ~after).sum()),
        "only_semantic": int((~before & after).sum()),
        "neither": int((~before & ~after).sum()),
    }


def _changes(
    readings: Readings, constrained: Side, semantic: Side, kernel: Kernel, top_k: int, most: int
) -> tuple[Change, ...]:
    """The documents with the largest total variation distance between the two distributions."""
    moved = np.abs(semantic.probs - constrained.probs).sum(axis=1) / 2
    order = np.argsort(-np.nan_to_num(moved, nan=-1.0), kind="stable")[: max(0, most)]
    return tuple(
        _change(readings, int(i), constrained, semantic, kernel, top_k, float(moved[i]))
        for i in order
        if moved[i] > 0
    )


def _change(
    readings: Readings,
    i: int,
    constrained: Side,
    semantic: Side,
    kernel: Kernel,
    top_k: int,
    moved: float,
) -> Change:
    ids = readings.topk_ids[i, :top_k]
    p = np.exp(readings.topk_logprobs[i, :top_k], dtype=np.float64)
    share = _silent_share(semantic.log_scores[i], readings.label_logprobs[i])
    shown = dict.fromkeys([int(semantic.predicted[i]), int(constrained.predicted[i])])
    target = None if readings.target is None else readings.target[i]
    names = readings.labels
    return Change(
        key=readings.keys[i],
        text=_text(readings.docs[i]),
        truth=() if target is None else tuple(names[j] for j in np.flatnonzero(target)),
        moved=moved,
        constrained=_answer(constrained.probs[i], names, target),
        semantic=_answer(semantic.probs[i], names, target),
        voters={
            names[j]: _loudest(readings, ids, p, kernel.weights[ids, j].astype(np.float64))
            for j in shown
        },
        silent={names[j]: float(share[j]) for j in shown},
    )


def _answer(probs: Floats, names: Sequence[str], target: Bools | None) -> Answer:
    best = np.argsort(-probs, kind="stable")[:_TOP_LABELS]
    right = None if target is None else bool(target[best[0]])
    return Answer(tuple((names[j], float(probs[j])) for j in best), right)


def _text(doc: object) -> str:
    """What a reader would call the document's text."""
    if isinstance(doc, dict):
        for name in ("text", "question", "query", "sentence", "ctx", "goal", "premise", "prompt"):
            if isinstance(doc.get(name), str) and doc[name].strip():
                return _cut(doc[name], _LONGEST_TEXT)
    return _cut(json.dumps(doc, ensure_ascii=False, default=str), _LONGEST_TEXT)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _data(docs: Sequence[Any]) -> Data:
    says = [doc.get("published_data") if isinstance(doc, dict) else None for doc in docs]
    sources = dict.fromkeys(
        str(doc["source"]) for doc in docs if isinstance(doc, dict) and doc.get("source")
    )
    published = sum(1 for said in says if said is not None and bool(said))
    ours = sum(1 for said in says if said is not None and not said)
    return Data(published, ours, len(says) - published - ours, tuple(sources)[:5])


def _notes(readings: Readings, sides: Sequence[Side]) -> tuple[str, ...]:
    notes = []
    if readings.missing:
        notes.append(
            f"{readings.missing:,} documents of the run have no readout yet and are not counted. "
            "Running the evaluation again on the same directory completes it."
        )
    if readings.target is None:
        notes.append(
            "The documents do not say which label is right, so there is no accuracy, no "
            "reliability and no proper score here: only what the model believes."
        )
    unknown = {side.kind: int((~np.isfinite(side.confidence)).sum()) for side in sides}
    notes += [
        f"{count:,} of {readings.n:,} documents have no probabilities under the {TITLES[kind]} "
        "(NaN scores), so its metrics cannot be computed."
        for kind, count in unknown.items()
        if count
    ]
    if readings.run_scoring.scoring == CONSTRAINED and len(sides) > 1:
        notes.append(
            "The run itself was scored with the standard softmax. Semantic Softmax is computed "
            "here from the same readouts."
        )
    return tuple(notes)


def _provenance(readings: Readings) -> dict[str, Any]:
    manifest = readings.source.manifest
    about = {k: v for k, v in manifest["about"].items() if k not in ("scoring", "versions")}
    versions = manifest["about"].get("versions", {})
    return {
        "directory": readings.name,
        **about,
        "fingerprint": manifest["fingerprint"],
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
    }


# --------------------------------------------------------------------------------------------
# tau surface
# --------------------------------------------------------------------------------------------


_REST = ("anchors", "top_k", "rival_votes")  # what differs between heat maps


def read_surface(
    path: Path, readings: Readings, scoring: Scoring | None = None
) -> TauSurface | None:
    """The grid that `semsoft tune` wrote, as heat maps; None if it is another task's.

    Drawn are the maps that differ from the best cell's in `rival_votes` only, and the run's own.

    Args:
        path: a JSON file {"objective": …, "cells": [{"space", "tau", "value", …}, …]}.
        readings: what is reported on.
        scoring: of the report, the run's by default; its cell is marked.

    Raises:
        ValueError: not such a file, naming it.
        OSError: it cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        objective = visible(str(record["objective"]))
        cells = [_cell(cell) for cell in record["cells"]]
        constrained = _float(record.get("constrained", {}).get("value"))
        n, task = record.get("n"), record.get("task")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not what `semsoft tune` writes, an object with objective and cells "
            f"({type(error).__name__}: {error})."
        ) from error
    if not cells:
        raise ValueError(f"{path} holds no cells.")
    if task not in (None, readings.task):
        return None
    rows = sorted({space for space, *_ in cells}, key=_space_order)
    columns = sorted({tau for _, tau, *_ in cells}, key=_tau_order)
    others = sorted({rest for *_, rest, _ in cells}, key=lambda r: (r[0], _number(r[1]), r[2]))
    tables = np.full((len(others), len(rows), len(columns)), np.nan)
    for space, tau, rest, value in cells:
        tables[others.index(rest), rows.index(space), columns.index(tau)] = value
    better = str(
        record.get("better") or next((m.better for m in METRICS if m.key == objective), "")
    )
    best = _best(tables, better)
    chosen = others[best[0] if best else 0]
    own = _cell({**vars(scoring or readings.run_scoring), "value": 0})
    used = None
    if own[0] in rows and own[1] in columns and own[2] in others:
        used = (others.index(own[2]), rows.index(own[0]), columns.index(own[1]))
    varying = [i for i in range(len(_REST)) if len({rest[i] for rest in others}) > 1]
    return TauSurface(
        objective=objective,
        better=better,
        rows=tuple(rows),
        columns=tuple(columns),
        panels=tuple(
            HeatPanel(", ".join(_named(_REST[i], rest[i]) for i in varying), table)
            for rest, table in zip(others, tables, strict=True)
        ),
        shown=tuple(
            i
            for i, rest in enumerate(others)
            if rest[:2] == chosen[:2] or (used is not None and used[0] == i)
        ),
        best=best,
        used=used,
        constrained=constrained,
        origin="" if n is None else f"{n:,} documents of {record.get('model', 'unknown model')}",
    )


def _cell(cell: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...], float]:
    """(space, tau, the rest, value); what may be text is made harmless for pictures."""
    tau = cell["tau"]
    with contextlib.suppress(ValueError):
        tau = canonical(tau)
    rest = tuple(visible(str(cell.get(name, ""))) for name in _REST)
    return visible(str(cell["space"])), visible(str(tau)), rest, _float(cell["value"])


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _named(name: str, value: str) -> str:
    return f"K = {value}" if name == "top_k" else f"{name.replace('_', ' ')} {value}"


def _best(tables: Floats, better: str) -> tuple[int, int, int] | None:
    known = np.isfinite(tables)
    if not better or not known.any():
        return None
    loss = np.where(known, tables if better == "lower" else -tables, np.inf)
    panel, row, column = np.unravel_index(int(np.argmin(loss)), loss.shape)
    return int(panel), int(row), int(column)


def _space_order(space: str) -> tuple[int, int, str]:
    kinds = ("raw", "centered", "pc", "whitened")
    try:
        kind, directions = parse_space(space)
    except ValueError:
        return len(kinds), 0, space
    return kinds.index(kind), directions, space


def _tau_order(tau: str) -> tuple[bool, float, str]:
    return tau.startswith("q"), _number(tau.removeprefix("q")), tau


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


# --------------------------------------------------------------------------------------------
# writing
# --------------------------------------------------------------------------------------------


def numbers(report: Report) -> dict[str, Any]:
    """Everything that the page shows, as dictionaries, dataclasses and arrays."""
    return {
        "version": report.version,
        "command": report.command,
        "sections": [_section_numbers(section) for section in report.sections],
    }


def _section_numbers(section: Section) -> dict[str, Any]:
    out = {k: v for k, v in vars(section).items() if k not in ("metrics", "diagrams")}
    out["metrics"] = {
        row.metric.key: {k: v for k, v in vars(row).items() if k != "metric"}
        for row in section.metrics
    }
    out["bins"] = {
        d.side: {k: getattr(d, k) for k in ("count", "confidence", "accuracy", "low", "high")}
        for d in section.diagrams
    }
    return out


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Every figure as PNG and PDF; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, section in enumerate(report.sections, start=1):
        stem = "-".join(filter(None, map(_slug, (f"{number:02d}", section.name, section.task))))
        drawn = {"reliability": figures.reliability(section.diagrams)}
        if section.surface is not None:
            drawn["tau"] = figures.tau_surface(section.surface)
        for what, figure in drawn.items():
            written += figures.save(figure, folder / f"{stem}-{what}")
    return written


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:60]


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none: under another name, then renamed.

    Raises:
        OSError: the folder cannot be written to, or `path` is one.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # a temporary file is its owner's alone, a report is not
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --------------------------------------------------------------------------------------------
# the page
# --------------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """The page: one HTML file without scripts, links to elsewhere, or state."""
    template = _environment().get_template("report.html")
    return template.render(
        report=report, many=len(report.sections) > 1, metrics=METRICS, headline=HEADLINE
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lm_eval_semsoft.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every text on its way to the page passes here, so none can be forgotten.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(
        number=number, signed=signed, count="{:,}".format, percent=percent,
        word=_marked, bar=lambda p: f"{100 * p:.1f}%" if math.isfinite(p) else "0",
    )  # fmt: skip
    environment.globals.update(
        titles=TITLES,
        min_in_bin=figures.MIN_IN_BIN,
        resamples=RESAMPLES,
        diagram=_diagram_svg,
        diagram_rows=_diagram_rows,
        surface=_surface_svg,
        groups=lambda rows: [
            (group, list(own)) for group, own in itertools.groupby(rows, lambda r: r.metric.group)
        ],
        findings=_findings,
        isnan=math.isnan,
    )
    return environment


def number(value: float | None, digits: int = 3) -> str:
    """0.218, −0.131, ∞, or – where there is no number."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def signed(value: float | None, digits: int = 3) -> str:
    """As `number`, with a plus sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 and float(text.strip("∞") or 1) else text


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def interval(estimate: Estimate | None) -> str:
    """0.218 [0.210, 0.226]."""
    if estimate is None:
        return "–"
    if math.isnan(estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_TABLE = {
    **_CONTROLS,
    0x7F: "␡",
    0xFEFF: "⟨U+FEFF⟩",
    **{code: f"⟨U+{code:04X}⟩" for code in _DIRECTIONS},
    **dict.fromkeys(range(0x80, 0xA0), "�"),
    0x2028: "\n",
    0x2029: "\n",
}


def visible(text: str) -> str:
    """Text that can do nothing to the page around it.

    Control characters become their pictures, direction marks (which could turn the rest of a line
    around) their code points, surrogates and other non-characters the replacement character.
    """
    text = text.replace("\r\n", "\n").translate(_TABLE)
    if text.isascii():
        return text
    return "".join(
        "�" if unicodedata.category(c) == "Cs" or (ord(c) & 0xFFFE) == 0xFFFE
        or 0xFDD0 <= ord(c) <= 0xFDEF else c
        for c in text
    )  # fmt: skip


def _marked(token: str) -> str:
    """A token whose spaces can be seen."""
    text = _cut(visible(token), _LONGEST_WORD)
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _diagram_svg(panel: Reliability, beside: Sequence[Reliability], prefix: str) -> Markup:
    figure = figures.reliability([panel], beside)
    return Markup(figures.inline_svg(figure, _in_words(panel), prefix))


def _in_words(panel: Reliability) -> str:
    """A diagram for those who do not see it."""
    what = "Histogram of confidences" if panel.accuracy is None else "Reliability diagram"
    head = f"{what}, {panel.title}: {panel.count.sum():,} documents, mean confidence "
    head += number(panel.mean_confidence)
    if panel.accuracy is not None:
        head += f", accuracy {number(panel.mean_accuracy)}, {panel.note}"
    bins = [
        f"confidence {number(c, 2)}" + ("" if a is None else f", accuracy {number(a, 2)}")
        + f", {n:,} documents"
        for c, a, n in zip(
            panel.confidence,
            itertools.repeat(None) if panel.accuracy is None else panel.accuracy,
            panel.count,
            strict=False,
        )
        if n
    ]  # fmt: skip
    return f"{head}. Bins: {'; '.join(bins)}."


def _diagram_rows(panel: Reliability) -> Iterator[dict[str, Any]]:
    """A diagram as a table."""
    for b in range(len(panel.count)):
        own = {"from": panel.edges[b], "to": panel.edges[b + 1], "count": int(panel.count[b])}
        own["confidence"] = float(panel.confidence[b])
        if panel.accuracy is not None and panel.low is not None and panel.high is not None:
            ends = (float(panel.accuracy[b]), float(panel.low[b]), float(panel.high[b]))
            own["accuracy"] = Estimate(*ends)
        yield own


def _surface_svg(surface: TauSurface, prefix: str) -> Markup:
    return Markup(
        figures.inline_svg(figures.tau_surface(surface), _surface_in_words(surface), prefix)
    )


def _surface_in_words(surface: TauSurface) -> str:
    text = f"Heat map of {surface.objective} over {len(surface.rows)} spaces and "
    text += f"{len(surface.columns)} thresholds"
    for what, cell in (("best", surface.best), ("this run", surface.used)):
        if cell is not None:
            panel, row, column = cell
            value = surface.panels[panel].values[row, column]
            title = f", {surface.panels[panel].title}" if surface.panels[panel].title else ""
            text += f"; {what}: {number(float(value))} at space {surface.rows[row]}, "
            text += f"tau {surface.columns[column]}{title}"
    return f"{text}. All values are in the table below."


def _findings(section: Section) -> dict[str, list[MetricRow]]:
    """The headline metrics by what Semantic Softmax does to them."""
    return {
        verdict: [
            row for row in section.metrics if row.verdict == verdict and row.metric.key in HEADLINE
        ]
        for verdict in ("better", "worse", "unclear")
    }
