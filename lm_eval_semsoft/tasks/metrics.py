"""Metrics of tasks that choose one label of a fixed set (``task_configs/_label_set.yaml``).

`process_results` turns the scores of one document into one small payload per metric; the
functions below it, named in the YAML as aggregations, turn the payloads of all documents into a
number (``x``) and into its bootstrap standard error (``x_stderr``). The mathematics is in
`lm_eval_semsoft.core`.

The harness prints "±" beside metric ``x`` if a metric ``x_stderr`` with its own aggregation comes
right after it, so every payload is handed over under both names.

A document must have the columns ``id`` (its key), ``labels`` (numbers of the right choices, any of
which counts) and ``published_data`` (1, or 0 for a sample that we wrote).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_eval_semsoft.core import bootstrap, calibration, classification, semantic_softmax
from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricWarning

Floats = NDArray[np.float64]

RESAMPLES = 1000  # bootstrap resamples of the documents behind every standard error


class DocValue(float):
    """One number of one document, and the key of that document.

    The key puts documents in one order before they are resampled, so that standard errors do not
    depend on how documents were spread over processes. Anybody else sees a float.
    """

    doc: str

    def __new__(cls, value: float, doc: str) -> DocValue:
        self = super().__new__(cls, value)
        self.doc = doc
        return self

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.doc


class DocRecord(tuple[Any, ...]):
    """Several values of one document, and the key of that document (see `DocValue`)."""

    doc: str

    def __new__(cls, values: Sequence[Any], doc: str) -> DocRecord:
        self = super().__new__(cls, values)
        self.doc = doc
        return self

    def __getnewargs__(self) -> tuple[tuple[Any, ...], str]:
        return tuple(self), self.doc


Payload = DocValue | DocRecord


# --- one document --------------------------------------------------------------------------------


def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    """Payloads of one document, under the same keys for every document and model.

    Args:
        doc: the document, with ``id``, ``labels`` and ``published_data``.
        results: per label (log score, is_greedy). A semsoft model's `LabelScore` also has
            ``.constrained``, the exact log P(label | prompt); a stock model's pair has not, and
            then ``constrained_x`` equals ``x`` and ``silent_vote`` is NaN.

    Raises:
        ValueError: ``labels`` does not name choices.
    """
    key = str(doc["id"])
    targets = right_choices(key, doc["labels"], len(results))
    scores, constrained = log_scores(results)
    payloads = {
        **measures(key, scores, targets),
        **{f"constrained_{k}": v for k, v in measures(key, constrained, targets).items()},
        "silent_vote": DocValue(_silent_vote(results, scores, constrained), key),
    }
    return {**twice(payloads), "published_data": DocValue(doc["published_data"], key)}


def log_scores(results: Sequence[Any]) -> tuple[Floats, Floats]:
    """Log scores of one document's labels, the run's and the constrained ones: [L] each.

    A stock model's pairs have no constrained score, and then both are the same.
    """
    scores = np.array([result[0] for result in results], dtype=np.float64)
    own = [getattr(result, "constrained", result[0]) for result in results]
    return scores, np.array(own, dtype=np.float64)


def twice(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    """Every payload under its metric's name and, right after it, its standard error's name."""
    return {k: v for name, v in payloads.items() for k, v in ((name, v), (f"{name}_stderr", v))}


class Prediction(NamedTuple):
    """What one document's scores say. All but ``target`` are NaN if a score is NaN."""

    probs: Floats  # [L], the softmax of the scores
    target: int  # the right label; of several, the one that `resolve_target` chooses
    correct: float  # is the most probable label right? 1 or 0
    brier: float  # 0..2
    nll: float  # nats


def measures(key: str, scores: Floats, targets: Sequence[int]) -> dict[str, Payload]:
    """Payloads of one set of log scores [L], given the right choices."""
    p = _predict(scores, targets)
    confidence = float(p.probs.max())
    ranked = DocRecord((p.probs.tolist(), p.target), key)
    calibrated = DocRecord((confidence, p.correct), key)
    return {
        "accuracy": DocValue(p.correct, key),
        "macro_f1": ranked,
        "auroc": ranked,
        "brier": DocValue(p.brier, key),
        "nll": DocValue(p.nll, key),
        "ece": calibrated,
        "ece_sweep": calibrated,
        "mean_confidence": DocValue(confidence, key),
    }


def _predict(scores: Floats, targets: Sequence[int]) -> Prediction:
    log_probs = log_softmax(scores)
    probs = np.exp(log_probs)
    if np.isnan(probs).any():
        unknown = math.nan
        return Prediction(np.full(len(scores), unknown), targets[0], unknown, unknown, unknown)
    allowed = np.zeros((1, len(scores)), dtype=np.bool_)
    allowed[0, list(targets)] = True
    target = int(classification.resolve_target(probs[None], allowed)[0])
    # The terms of core.calibration.brier and nll for one document; called for each document, those
    # would take longer than the rest. And a probability may underflow, its logarithm does not.
    miss = probs.copy()
    miss[target] -= 1
    return Prediction(
        probs=probs,
        target=target,
        correct=float(probs.argmax() == target),
        brier=float(miss @ miss),
        nll=-float(log_probs[target]),
    )


def log_softmax(scores: Floats) -> Floats:
    """Log-probabilities [L] from log scores [L]; all NaN if one of them is NaN or +inf."""
    with np.errstate(invalid="ignore"):  # inf - inf: NaN is the answer
        shifted = scores - scores.max()
        log_probs: Floats = shifted - np.log(np.exp(shifted).sum())
    return log_probs


def _silent_vote(results: Sequence[Any], scores: Floats, constrained: Floats) -> float:
    """Share of the winning label's score that is not its own probability, 0..1."""
    if not all(hasattr(result, "constrained") for result in results):
        _warn(
            "silent_vote is NaN: this model returns plain log-likelihoods; only semsoft models "
            "tell the votes of neighbours from a label's own"
        )
        return math.nan
    winner = int(scores.argmax())  # a NaN, if there is one
    if not math.isfinite(scores[winner]):
        return math.nan
    return semantic_softmax.silent_vote(float(scores[winner]), float(constrained[winner]))


def right_choices(key: str, labels: Any, n_choices: int) -> list[int]:
    """A document's ``labels``, checked.

    Raises:
        ValueError: it does not name choices.
    """
    targets = [int(label) for label in labels]
    if not targets or not set(targets) <= set(range(n_choices)):
        raise ValueError(
            f"document {key!r}: labels={labels!r} must name at least one of its {n_choices} "
            f"choices by number, 0 to {n_choices - 1}."
        )
    return targets


# --- all documents -------------------------------------------------------------------------------


@bootstrap.metric(undefined=math.nan)
def document_mean(values: ArrayLike) -> Statistic[float]:
    """The mean of one number per document."""
    return bootstrap.mean_of(np.asarray(values, dtype=np.float64))


def mean(items: Sequence[Payload]) -> float:
    """Aggregation: the mean over documents."""
    return aggregate(document_mean, items)


def mean_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `mean`."""
    return aggregate_stderr(document_mean, items)


def macro_f1(items: Sequence[Payload]) -> float:
    """Aggregation: macro-averaged F1 (`core.classification.macro_f1`)."""
    return aggregate(classification.macro_f1, items)


def macro_f1_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `macro_f1`."""
    return aggregate_stderr(classification.macro_f1, items)


def auroc(items: Sequence[Payload]) -> float:
    """Aggregation: macro one-vs-rest AUROC (`core.classification.auroc`)."""
    return aggregate(classification.auroc, items)


def auroc_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `auroc`."""
    return aggregate_stderr(classification.auroc, items)


def ece(items: Sequence[Payload]) -> float:
    """Aggregation: expected calibration error, 15 equal-width bins (`core.calibration.ece`)."""
    return aggregate(calibration.ece, items)


def ece_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `ece`."""
    return aggregate_stderr(calibration.ece, items)


def ece_sweep(items: Sequence[Payload]) -> float:
    """Aggregation: calibration error of the monotonic sweep (`core.calibration.ece_sweep`)."""
    return aggregate(calibration.ece_sweep, items)


def ece_sweep_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `ece_sweep`."""
    return aggregate_stderr(calibration.ece_sweep, items)


def silent_vote(items: Sequence[Payload]) -> float:
    """Aggregation: mean share of the winning score that came from neighbours."""
    return math.nan if _all_nan(items) else mean(items)


def silent_vote_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `silent_vote`."""
    return math.nan if _all_nan(items) else mean_stderr(items)


def of_known(aggregation: Callable[[Sequence[Payload]], float]) -> Any:
    """The aggregation, of the payloads without NaN; NaN, without a warning, if there are none."""

    @functools.wraps(aggregation)
    def of_these(items: Sequence[Payload]) -> float:
        known = [item for item in items if not _has_nan(item)]
        return aggregation(known) if known else math.nan

    return of_these


def aggregate(metric: Any, items: Sequence[Payload]) -> float:
    """A metric of `core` on the payloads of all documents; NaN if one of them has NaN."""
    columns = _columns(items)
    if columns is None:
        return math.nan
    result = metric(*columns)
    return float(getattr(result, "value", result))


def aggregate_stderr(metric: Any, items: Sequence[Payload]) -> float:
    """Bootstrap standard error of `aggregate`."""
    columns = _columns(items)
    return math.nan if columns is None else bootstrap.stderr(metric, *columns, n=RESAMPLES)


def _columns(items: Sequence[Payload]) -> list[Floats] | None:
    """What the metrics of `core` take, in the order of the documents' keys.

    Returns:
        One array per value of the payloads, each with one row per document; None, after one
        warning, if there is no document or one of them has NaN.
    """
    if not items:
        _warn("all metrics are NaN: there are no documents")
        return None
    items = sorted(items, key=lambda item: item.doc)
    rows = [(float(item),) if isinstance(item, DocValue) else item for item in items]
    columns = [np.asarray(column, dtype=np.float64) for column in zip(*rows, strict=True)]
    unknown = np.any([np.isnan(c).reshape(len(items), -1).any(axis=1) for c in columns], axis=0)
    if unknown.any():
        _warn(
            f"metrics are NaN: {unknown.sum()} of {len(items)} documents have NaN scores, "
            f"first {items[int(unknown.argmax())].doc!r}"
        )
        return None
    return columns


def _has_nan(item: Payload) -> bool:
    return bool(np.isnan(np.asarray(item, dtype=np.float64)).any())


def _all_nan(items: Sequence[Payload]) -> bool:
    return all(isinstance(item, float) and math.isnan(item) for item in items)


@functools.cache
def _warn(message: str) -> None:
    """Once per process and message (Python's own memory for that is wiped by every filter)."""
    warnings.warn(f"{message}.", UndefinedMetricWarning, stacklevel=3)
