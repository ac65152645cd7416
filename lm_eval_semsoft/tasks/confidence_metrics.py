"""Metrics of a confidence that an answer is right, whatever gave that confidence.

A document's payload is (confidence, correct). NaN in either (nobody knows what is right, or the
model told no confidence) leaves the document out of these metrics, and only of these.
"""

from __future__ import annotations

import functools

from lm_eval_semsoft.core import calibration, classification
from lm_eval_semsoft.tasks import metrics
from lm_eval_semsoft.tasks.listing import Metric
from lm_eval_semsoft.tasks.metrics import DocRecord, DocValue, Payload


def payloads(key: str, confidence: float, correct: float) -> dict[str, Payload]:
    """Payloads of one document for `METRICS`, without standard errors (`metrics.twice`).

    Args:
        key: of the document.
        confidence: 0..1, or NaN.
        correct: 1, 0, or NaN.
    """
    pair = DocRecord((confidence, correct), key)
    return {
        "accuracy": DocValue(correct, key),
        **dict.fromkeys(("ece", "ece_sweep", "auroc", "auarc", "brier"), pair),
        "mean_confidence": DocValue(confidence, key),
    }


def of(metric: object, higher_is_better: bool | None) -> Metric:
    """A metric of `core` on the payloads that have no NaN."""
    value = metrics.of_known(functools.partial(metrics.aggregate, metric))
    error = metrics.of_known(functools.partial(metrics.aggregate_stderr, metric))
    return Metric(value, error, higher_is_better)


METRICS = {
    "accuracy": of(metrics.document_mean, True),
    "ece": of(calibration.ece, False),
    "ece_sweep": of(calibration.ece_sweep, False),
    "auroc": of(classification.confidence_auroc, True),
    "auarc": of(classification.auarc, True),
    "brier": of(calibration.confidence_brier, False),
    "mean_confidence": of(metrics.document_mean, None),
}
