"""Metrics against shares of people instead of one right label, for label-set tasks.

People disagree about some documents, and the share of them that chose a label says how much. These
metrics ask whether the model's probabilities say the same. They stand beside those of
`lm_eval_semsoft.tasks.metrics` and are built alike: one payload per metric and document, and
aggregations for the YAML. The mathematics is in `lm_eval_semsoft.core`.

`soft_ece` and `spearman_fraction` look at the *last* label; with two labels that says it all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from lm_eval_semsoft.core import alignment, soft_labels
from lm_eval_semsoft.tasks.metrics import (
    DocRecord,
    DocValue,
    Floats,
    Payload,
    aggregate,
    aggregate_stderr,
    log_scores,
    log_softmax,
    twice,
)

# People's entropies are rounded, so that shares which mirror each other (.3 and .7) really tie.
ENTROPY_DIGITS = 9


def payloads(key: str, results: Sequence[Any], shares: Sequence[float]) -> dict[str, Payload]:
    """Soft payloads of one document, under the same keys for every document and model.

    Args:
        key: of the document.
        results: per label (log score, is_greedy), as for `metrics.process_results`.
        shares: which share of people chose each label, in the order of the labels, sum 1.

    Raises:
        ValueError: there is not one share per label.
    """
    if len(shares) != len(results):
        raise ValueError(
            f"document {key!r}: shares={list(shares)!r} must hold one share for each of its "
            f"{len(results)} choices."
        )
    human = np.asarray(shares, dtype=np.float64)
    scores, constrained = log_scores(results)
    return twice(
        {
            **_measures(key, scores, human),
            **{f"constrained_{k}": v for k, v in _measures(key, constrained, human).items()},
        }
    )


def _measures(key: str, scores: Floats, shares: Floats) -> dict[str, Payload]:
    probs = np.exp(log_softmax(scores))
    miss = probs - shares
    pair = DocRecord((float(probs[-1]), float(shares[-1])), key)
    entropies = (_entropy(probs), round(_entropy(shares), ENTROPY_DIGITS))
    return {
        "soft_brier": DocValue(float(miss @ miss), key),  # core.soft_labels.soft_brier, one term
        "soft_ece": pair,
        "spearman_fraction": pair,
        "spearman_entropy": DocRecord(entropies, key),
    }


def _entropy(probs: Floats) -> float:
    """In nats; NaN if a probability is NaN."""
    return math.fsum(entr(probs))


def soft_ece(items: Sequence[Payload]) -> float:
    """Aggregation: P(last label) against people's share of it (`core.soft_labels.soft_ece`)."""
    return aggregate(soft_labels.soft_ece, items)


def soft_ece_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `soft_ece`."""
    return aggregate_stderr(soft_labels.soft_ece, items)


def spearman(items: Sequence[Payload]) -> float:
    """Aggregation: rank correlation of the two values of a payload (`core.alignment`)."""
    return aggregate(alignment.spearman_r, items)


def spearman_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `spearman`."""
    return aggregate_stderr(alignment.spearman_r, items)
