"""Semantic entropy: how much of a model's own sampled answers to a question agree in meaning.

N sampled answers are put into clusters of one meaning, given which pairs of them mean the same
(`cluster`). The entropy of the clusters is the model's doubt about the question, and the share of
the largest one its confidence. Source: Farquhar, Kossen, Kuhn and Gal, "Detecting hallucinations
in large language models using semantic entropy" (Nature, 2024). All logarithms are natural.

What a model can get wrong (no answers, NaN log-probabilities) gives NaN and one
`UndefinedMetricWarning` with the reason. What only a caller can get wrong raises ValueError.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from .bootstrap import UndefinedMetricWarning
from .classification import Bools, Floats, Ints
from .errors import check_choice

SAME = 0.5  # a judge's score from which on two answers mean the same
METHODS = ("greedy", "closure")

# --------------------------------------------------------------------------------------------
# clusters
# --------------------------------------------------------------------------------------------


def cluster(equivalence: ArrayLike, method: str = "greedy", threshold: float = SAME) -> Ints:
    """Put answers that mean the same into clusters.

    The two methods differ only where a judge is not transitive (a like b, b like c, a unlike c).

    Args:
        equivalence: [N, N] symmetric; booleans, or a judge's scores of which those >= `threshold`
            mean the same. The diagonal does not matter.
        method: ``greedy`` compares an answer with the first member of each cluster, in order, and
            it joins the first that fits, or founds the next cluster: every member means the same
            as its first one. ``closure`` joins whatever a chain of equivalences connects. (The
            published code is greedy too, but there a later cluster may take away members of an
            earlier one.)
        threshold: for scores.

    Returns:
        int64 [N], cluster ids 0, 1, ... in the order of their first members.

    Raises:
        ValueError: not square, not symmetric, NaN, unknown method.

    >>> cluster([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    array([0, 0, 1])
    >>> cluster([[1, 1, 0], [1, 1, 1], [0, 1, 1]], method="closure")
    array([0, 0, 0])
    """
    check_choice("method", method, METHODS)
    same = _same(equivalence, threshold)
    if method == "closure":
        _, ids = connected_components(same, directed=False)
        return _renumbered(ids)
    ids = np.full(len(same), -1, dtype=np.int64)
    n_clusters = 0
    for i in range(len(same)):
        if ids[i] < 0:
            ids[same[i] & (ids < 0)] = n_clusters
            ids[i] = n_clusters
            n_clusters += 1
    return ids


def _same(equivalence: ArrayLike, threshold: float) -> Bools:
    table = np.asarray(equivalence)
    if table.size == 0:
        return np.zeros((0, 0), dtype=np.bool_)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"equivalence has the shape {list(table.shape)}; it must be [N, N]")
    scores = table.astype(np.float64)
    off_diagonal = ~np.eye(len(scores), dtype=np.bool_)
    if np.isnan(scores[off_diagonal]).any():
        raise ValueError("equivalence holds NaN; every pair of answers needs a score")
    if not np.array_equal(scores[off_diagonal], scores.T[off_diagonal]):
        raise ValueError(
            "equivalence is not symmetric; a judge must say the same of (a, b), (b, a)"
        )
    return np.asarray(scores >= threshold)


def _renumbered(ids: NDArray[np.integer]) -> Ints:
    """Ids in the order in which they first occur."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse])


# --------------------------------------------------------------------------------------------
# measures of one question
# --------------------------------------------------------------------------------------------


def semantic_entropy(cluster_ids: ArrayLike) -> float:
    """Discrete semantic entropy, -sum p_c ln p_c with p_c the share of cluster c, in nats.

    Args:
        cluster_ids: int [N], in any numbering.

    Returns:
        0 (all answers mean the same) .. ln N; NaN with a warning if there are no answers.

    Raises:
        ValueError: not one integer per answer.
    """
    sizes = _sizes(cluster_ids)
    if not sizes.size:
        return _undefined("semantic_entropy", "there are no answers")
    return _entropy(sizes / sizes.sum())


def rao_semantic_entropy(cluster_ids: ArrayLike, mean_logprobs: ArrayLike) -> float:
    """Semantic entropy in which answers count by their length-normalised likelihood, in nats.

    p_c = sum over i in c of e^l_i / sum over all i of e^l_i. With equal l it is `semantic_entropy`.

    Args:
        cluster_ids: int [N], in any numbering.
        mean_logprobs: float [N], l_i: mean log-probability of the tokens of answer i; -inf counts
            as likelihood 0.

    Returns:
        0 .. ln N; NaN with a warning if there are no answers, a log-probability is NaN or +inf
        (an answer without tokens has none), or all of them are -inf.

    Raises:
        ValueError: not one integer and one log-probability per answer.
    """
    ids, logs = _ids(cluster_ids), np.asarray(mean_logprobs, dtype=np.float64)
    if logs.shape != ids.shape:
        raise ValueError(
            f"mean_logprobs has the shape {list(logs.shape)}; it must be {list(ids.shape)}, "
            "one value per answer"
        )
    name = "rao_semantic_entropy"
    if not ids.size:
        return _undefined(name, "there are no answers")
    bad = int((np.isnan(logs) | (logs == np.inf)).sum())
    if bad:
        return _undefined(name, f"{bad} of {logs.size} log-probabilities are NaN or +inf")
    if logs.max() == -np.inf:
        return _undefined(name, "every log-probability is -inf")
    likelihood = np.exp(logs - logs.max())
    mass = np.bincount(_renumbered(ids), likelihood)
    return _entropy(mass / mass.sum())


def n_clusters(cluster_ids: ArrayLike) -> int:
    """How many meanings there are among the answers, 0..N."""
    return len(_sizes(cluster_ids))


def cluster_share(cluster_ids: ArrayLike) -> float:
    """Share of the answers that are in the largest cluster, 1/N .. 1: confidence in its meaning.

    NaN with a warning if there are no answers.
    """
    sizes = _sizes(cluster_ids)
    if not sizes.size:
        return _undefined("cluster_share", "there are no answers")
    return float(sizes.max() / sizes.sum())


def entropy_confidence(cluster_ids: ArrayLike) -> float:
    """1 - H / ln N with H the discrete semantic entropy of N answers, 0..1; of one answer 1.

    NaN with a warning if there are no answers.
    """
    sizes = _sizes(cluster_ids)
    n = int(sizes.sum())
    if n == 0:
        return _undefined("entropy_confidence", "there are no answers")
    return 1.0 if n == 1 else max(0.0, 1.0 - _entropy(sizes / n) / math.log(n))


def representative(cluster_ids: ArrayLike) -> int:
    """Index of the first member of the largest cluster (of the earliest one if several tie).

    Raises:
        ValueError: there are no answers.
    """
    ids = _renumbered(_ids(cluster_ids))
    if not ids.size:
        raise ValueError("cluster_ids is empty; there is no answer to stand for the others")
    return int(np.argmax(ids == np.argmax(np.bincount(ids))))


def _ids(cluster_ids: ArrayLike) -> Ints:
    ids = np.asarray(cluster_ids)
    if ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"cluster_ids is {ids.dtype} of the shape {list(ids.shape)}; "
            "it must be one integer per answer"
        )
    return ids.astype(np.int64)


def _sizes(cluster_ids: ArrayLike) -> Ints:
    return np.asarray(np.bincount(_renumbered(_ids(cluster_ids))), dtype=np.int64)


def _entropy(p: Floats) -> float:
    # Sorted, so that clusters of the same sizes in another order tie to the last bit in rankings.
    own = np.sort(p[p > 0])
    return max(0.0, -float(own @ np.log(own)))  # never -0.0


def _undefined(name: str, reason: str) -> float:
    warnings.warn(f"{name} is NaN: {reason}.", UndefinedMetricWarning, stacklevel=3)
    return math.nan
