"""Scores of all documents at once, from readings. Equal to what a fresh run would return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import (
    Kernel,
    Scoring,
    neighbour_votes,
    semantic_log_scores,
)

from .readings import Readings

Floats = NDArray[np.float64]


def wants_cosine(readings: Readings, scoring: Scoring, kernel: str = "auto") -> bool:
    """Do neighbours vote? `kernel` is `auto`, `cosine` or `identity`, as in `--model_args`."""
    if scoring.scoring == "constrained" or kernel == "identity" or readings.label_set is None:
        return False
    return kernel == "cosine" or readings.why_identity is None


def kernel_of(readings: Readings, scoring: Scoring) -> Kernel:
    """The voting weights of the task's label set.

    Raises:
        ValueError: its documents do not share one, or the output embeddings are missing.
    """
    if readings.label_set is None:
        raise ValueError(f"The documents of task {readings.task} do not share one label set.")
    return readings.source.kernel(readings.label_set, scoring)


def log_scores(readings: Readings, scoring: Scoring, kernel: str = "auto") -> Floats:
    """log S of every label of every document: [n, L], not normalised (natural log)."""
    if not wants_cosine(readings, scoring, kernel):
        return readings.label_logprobs.astype(np.float64)
    return log_scores_by(readings, scoring, kernel_of(readings, scoring))


def log_scores_by(readings: Readings, scoring: Scoring, voters: Kernel) -> Floats:
    """`log_scores` under voting weights that are known, in the very arithmetic of a run.

    One document after the other, in float32: ranks, and with them an AUROC, can hang on a last
    digit.
    """
    votes = np.empty(readings.label_logprobs.shape)
    for own, ids, logprobs in zip(votes, readings.topk_ids, readings.topk_logprobs, strict=True):
        own[:] = neighbour_votes(ids, logprobs, voters, scoring.top_k)
    with np.errstate(invalid="ignore"):  # a document that is NaN
        return semantic_log_scores(readings.label_logprobs, votes, scoring)


def votes_at(
    readings: Readings,
    kernel: Kernel,
    top_ks: Sequence[int],
    weights: NDArray[np.floating] | None = None,
) -> list[Floats]:
    """What the K most probable tokens give each label, for several K: [n, L] each, in float64.

    Args:
        top_ks: ascending; more than there are stored means all.
        weights: [n, K] what each stored token's vote is worth; its probability by default.
    """
    given = np.exp(readings.topk_logprobs) if weights is None else weights
    total = np.zeros((readings.n, kernel.weights.shape[1]))
    out, start = [], 0
    for top_k in top_ks:
        end = min(top_k, given.shape[1])
        if end > start:
            band = token_matrix(
                readings.topk_ids[:, start:end], given[:, start:end], len(kernel.weights)
            )
            total = total + band @ kernel.weights
            start = end
        out.append(total)
    return out


def token_matrix(
    ids: NDArray[np.integer], values: NDArray[np.floating], vocabulary: int
) -> scipy.sparse.csr_array:
    """Values at token ids, [n, k] each, as a sparse matrix [n, V]."""
    n, k = ids.shape
    starts = np.arange(n + 1, dtype=np.int64) * k
    flat = (values.astype(np.float64).ravel(), ids.astype(np.int64).ravel(), starts)
    return scipy.sparse.csr_array(flat, shape=(n, vocabulary))
