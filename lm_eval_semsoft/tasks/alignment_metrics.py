"""Metrics of the ``human_alignment`` tasks: does the model doubt where people doubt.

Built like `lm_eval_semsoft.tasks.metrics`: one payload per metric and document, aggregations for
the YAML. Three measures of the model's doubt at the answer position:

- ``option``: entropy of the options' probabilities ÷ ln(number of options); any model has it;
- ``full``: entropy of the whole next-token distribution;
- ``top1``: 1 - probability of the most probable token.

The last two come from the readout that a semsoft model hands over; under other models they are NaN.
Each is correlated (Spearman) with the entropy of people's answers (do people *disagree*) and, where
they are known, with people's response times (does a person *hesitate*). The full matrix of all
measures is `semsoft align`'s.

Where a run captures activations, ``probe_r`` and ``probe_layer`` say how well they tell human
entropy (`lm_eval_semsoft.tasks.probe_metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lm_eval_semsoft.core import alignment, bootstrap, soft_labels
from lm_eval_semsoft.tasks import metrics, people, probe_metrics
from lm_eval_semsoft.tasks.metrics import DocRecord, DocValue, Floats, Payload
from lm_eval_semsoft.tasks.soft_metrics import ENTROPY_DIGITS

MEASURES = ("option", "full", "top1")
CALIBRATION = ("accuracy", "ece", "ece_sweep", "brier", "nll", "mean_confidence")
TIME_TARGETS = {"rt": "response_time", "rt_correct": "response_time_correct"}


# --- one document --------------------------------------------------------------------------------


def process_calibration(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    """Payloads of a question that nobody was asked: accuracy and calibration."""
    key = str(doc["id"])
    return {**metrics.twice(_calibration(key, doc, results)), **_counts(key, doc)}


def process_entropy(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    """Payloads of a question with people's answers.

    Args:
        doc: with the columns of `lm_eval_semsoft.tasks.people.FEATURES`.
        results: per option (log score, is_greedy); the first `LabelScore` of a semsoft model has a
            ``.readout``.
    """
    key = str(doc["id"])
    payloads = {
        **_calibration(key, doc, results),
        **_people(key, doc, len(results), doubts(results)),
    }
    probe = probe_metrics.payloads(doc, results, doc["human_entropy"])
    return {**metrics.twice(payloads), **probe, **_counts(key, doc)}


def process_times(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    """Payloads of a question with people's answers and response times."""
    key = str(doc["id"])
    found = doubts(results)
    times = {
        f"spearman_{name}_{measure}": DocRecord((found[measure], float(doc[column])), key)
        for name, column in TIME_TARGETS.items()
        for measure in MEASURES
    }
    payloads = {
        **_calibration(key, doc, results),
        **_people(key, doc, len(results), found),
        **times,
    }
    probe = probe_metrics.payloads(doc, results, doc["human_entropy"])
    counts = {"dropped_times": DocValue(doc["dropped_times"], key), **_counts(key, doc)}
    return {**metrics.twice(payloads), **probe, **counts}


def doubts(results: Sequence[Any]) -> dict[str, float]:
    """The model's doubt about one document, measure -> value; NaN where it is unknown."""
    probs = np.exp(metrics.log_softmax(metrics.log_scores(results)[0]))
    readout = getattr(results[0], "readout", None)
    if readout is None:
        full = top1 = math.nan
    else:
        full, top1 = float(readout.entropy), -math.expm1(float(readout.topk_logprobs[0]))
    return {"option": people.entropy(probs.tolist()), "full": full, "top1": top1}


def _calibration(key: str, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    scores, _ = metrics.log_scores(results)
    found = metrics.measures(key, scores, metrics.right_choices(key, doc["labels"], len(results)))
    return {name: found[name] for name in CALIBRATION}


def _people(
    key: str, doc: Mapping[str, Any], options: int, found: Mapping[str, float]
) -> dict[str, Payload]:
    """What people did, and the model's doubt (`doubts`) beside how little they agreed."""
    disagreement = round(float(doc["human_entropy"]), ENTROPY_DIGITS)
    own = (math.nan, math.nan)
    if doc["human_shares"]:
        right = np.zeros((1, options), dtype=np.bool_)
        right[0, list(doc["labels"])] = True
        confidence, correct = soft_labels.crowd([doc["human_shares"]], right)
        own = (float(confidence[0]), float(correct[0]))
    return {
        "human_accuracy": DocValue(float(doc["human_accuracy"]), key),
        "human_ece": DocRecord(own, key),
        **{f"spearman_entropy_{m}": DocRecord((found[m], disagreement), key) for m in MEASURES},
    }


def _counts(key: str, doc: Mapping[str, Any]) -> dict[str, Payload]:
    return {name: DocValue(doc[name], key) for name in ("dropped_documents", "published_data")}


# --- all documents -------------------------------------------------------------------------------


def spearman(items: Sequence[Payload]) -> float:
    """Aggregation: rank correlation of the two values of a payload (`core.alignment`).

    Documents of which one value is NaN do not count. NaN without a warning where the model's doubt
    is unknown for all of them (a stock model has no readouts).
    """
    x, y = _pairs(items)
    return math.nan if np.isnan(x).all() else alignment.spearman_r(x, y)


def spearman_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: bootstrap standard error of `spearman`."""
    x, y = _pairs(items)
    if np.isnan(x).all():
        return math.nan
    return bootstrap.stderr(alignment.spearman_r, x, y, n=metrics.RESAMPLES)


def _pairs(items: Sequence[Payload]) -> tuple[Floats, Floats]:
    records = sorted((i for i in items if isinstance(i, DocRecord)), key=lambda item: item.doc)
    pairs = np.array([tuple(item) for item in records], dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def constant(items: Sequence[Payload]) -> float:
    """Aggregation: a number that all documents of a run share, such as a count."""
    return max((float(i) for i in items if isinstance(i, DocValue)), default=math.nan)
