"""What can be put right after scoring: label priors, temperature, votes of everyday tokens.

Notation: n documents, L labels, K stored tokens of a vocabulary of V. `log_scores` float [n, L] is
log S(l | x) (natural log, any constant per document; -inf says that a label is impossible).

Prior correction and surprise-weighted votes look at all documents at once but at none of their
labels, so they may be estimated on the very documents that are scored. A temperature is fitted on
labelled documents, which must be other ones.

A document with a NaN gets NaN and does not touch the others. Where nothing can be estimated at
all, the result is NaN, with one `UndefinedMetricWarning`. Bad values that only a caller can
produce (shapes, lengths, options) raise ValueError.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import ArrayLike, NDArray

from .bootstrap import Counts, Statistic, UndefinedMetricError, UndefinedMetricWarning, metric
from .classification import Floats, Ints, scores_and_target

# Temperatures that `fit_temperature` looks at. Beyond them a softmax is an argmax, or uniform.
COLDEST, HOTTEST = 0.01, 100.0

_ROWS = 1024  # documents in flight, so that no float64 copy of all top-K tables is ever made


# --------------------------------------------------------------------------------------------
# label priors
# --------------------------------------------------------------------------------------------


def prior_correction(log_scores: ArrayLike) -> Floats:
    """Divide every label by how probable it is on average, over these documents.

    Batch calibration (Zhou et al. 2023, arXiv 2309.17249): contextual calibration (Zhao et al.
    2021, arXiv 2102.09690) and domain-context calibration (Fei et al. 2023, arXiv 2305.19148)
    with the documents themselves in place of content-free ones. It uses no labels. It takes
    the labels for about equally frequent: where they are not, it takes that away, too. A very
    strong bias goes in part only, because the averages are taken under it.

    Args:
        log_scores: log S, float [n, L].

    Returns:
        log P(l | x), float64 [n, L]: log S(l) - log mean over documents of softmax(log S)(l),
        normalised. `apply_prior` of `label_prior`.

    Raises:
        ValueError: `log_scores` is not [documents, labels].
    """
    return apply_prior(log_scores, label_prior(log_scores))


def label_prior(log_scores: ArrayLike) -> Floats:
    """How probable each label is on average: log mean over documents of softmax(log S), [L].

    Documents with NaN are left out.

    Args:
        log_scores: log S, float [n, L].

    Returns:
        float64 [L], a normalised distribution in logs; NaN, with a warning, without a document.

    Raises:
        ValueError: as `prior_correction`.
    """
    log_probs = _log_softmax(_log_scores(log_scores))
    known = log_probs[~np.isnan(log_probs).any(axis=1)]
    if not len(known):
        _warn("the label prior is NaN: there is no document with scores")
        return np.full(log_probs.shape[1], np.nan)
    prior: Floats = scipy.special.logsumexp(known, axis=0) - math.log(len(known))
    return prior


def apply_prior(log_scores: ArrayLike, log_prior: ArrayLike) -> Floats:
    """Divide by a prior that may come from other documents: log S - log prior, normalised.

    Args:
        log_scores: log S, float [n, L].
        log_prior: log of the average probability of each label, float [L] (`label_prior`). Where
            it is -inf, only a label that is impossible here, too, can be corrected (to -inf); a
            document that finds it possible gets NaN.

    Returns:
        log P(l | x), float64 [n, L].

    Raises:
        ValueError: as `prior_correction`, and `log_prior` is not one number per label.
    """
    scores, prior = _log_scores(log_scores), np.asarray(log_prior, dtype=np.float64)
    if prior.shape != scores.shape[1:]:
        raise ValueError(
            f"log_prior has the shape {list(prior.shape)}; "
            f"it must be one number for each of the {scores.shape[1]} labels"
        )
    possible = np.where(np.isneginf(scores) & ~np.isnan(prior), 0.0, prior)
    return _log_softmax(scores - possible)


# --------------------------------------------------------------------------------------------
# temperature
# --------------------------------------------------------------------------------------------


@metric(undefined=math.nan)
def fit_temperature(log_scores: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """The T > 0 that minimises the NLL of softmax(log S / T) (Guo et al. 2017).

    The NLL is convex in 1/T, so the slope has one root, which is found to rounding. It is sought
    within 0.01..100: T is 0.01 where a colder softmax would be better still (every document
    right), 100 where a hotter one would (scores that rank worse than chance), and 1 where T
    changes nothing (no document prefers any label).

    Args:
        log_scores: log S, float [n, L].
        target: label numbers [n], or booleans [n, L] (see `classification.resolve_target`).

    Returns:
        T; NaN, with a warning, if there are no documents, scores with NaN or +inf, documents
        without a label, or a target with score -inf (its NLL is infinite at every T).

    Raises:
        ValueError: shapes or lengths do not fit, label numbers outside 0..L-1.
    """
    gap, labels = _gaps_and_target(log_scores, target)
    of_target = gap[np.arange(len(labels)), labels]
    finite_gap = np.where(np.isneginf(gap), 0.0, gap)

    def at(counts: Counts) -> float:
        drawn = counts > 0
        weight, gaps, finite, own = counts[drawn], gap[drawn], finite_gap[drawn], of_target[drawn]

        def slope(log_t: float) -> float:
            """Of the NLL in 1/T: expected score under softmax(log S / T) minus the target's."""
            votes = np.exp(gaps * math.exp(-log_t))
            return float(weight @ ((votes * finite).sum(axis=1) / votes.sum(axis=1) - own))

        if not finite.any():
            return 1.0
        if slope(math.log(COLDEST)) <= 0:
            return COLDEST
        if slope(math.log(HOTTEST)) >= 0:
            return HOTTEST
        root = scipy.optimize.brentq(slope, math.log(COLDEST), math.log(HOTTEST), xtol=1e-12)
        return math.exp(root)

    return Statistic(len(labels), at)


def apply_temperature(log_scores: ArrayLike, temperature: float) -> Floats:
    """log softmax(log S / T): below 1 sharper, above 1 flatter; the order of labels stays.

    Args:
        log_scores: log S, float [n, L].
        temperature: T, positive and finite; NaN (no fit) makes everything NaN.

    Returns:
        log P(l | x), float64 [n, L].

    Raises:
        ValueError: as `prior_correction`, and T is not a positive finite number.
    """
    if temperature <= 0 or math.isinf(temperature):
        raise ValueError(
            f"temperature={temperature!r} is not allowed; it must be a positive finite number"
        )
    return _log_softmax(_log_scores(log_scores) / temperature)


# --------------------------------------------------------------------------------------------
# surprise-weighted votes
# --------------------------------------------------------------------------------------------


def mean_probability(topk_ids: ArrayLike, topk_logprobs: ArrayLike, vocabulary: int) -> Floats:
    """pbar(v): how probable each token is on average, [V].

    A token outside a document's top K counts 0 there, so pbar is a lower bound that is tight for
    every token that matters. Documents with NaN are left out.

    Args:
        topk_ids: the K most probable next tokens of each document, int [n, K].
        topk_logprobs: their log-probabilities, float [n, K] (-inf for padding).
        vocabulary: V; every id lies in 0..V-1.

    Returns:
        float64 [V]; NaN, with a warning, without a document.

    Raises:
        ValueError: the shapes differ, ids outside 0..V-1, V < 1.
    """
    ids, logprobs = _top_k(topk_ids, topk_logprobs, vocabulary)
    total, documents = np.zeros(vocabulary), 0
    for rows in _blocks(len(ids)):
        known = ~np.isnan(logprobs[rows]).any(axis=1)
        p = np.exp(logprobs[rows][known], dtype=np.float64)
        total += np.bincount(ids[rows][known].ravel(), p.ravel(), vocabulary)
        documents += int(known.sum())
    if not documents:
        _warn("the mean probability is NaN: there is no document with probabilities")
        return np.full(vocabulary, np.nan)
    return total / documents


def surprise_weighted(
    topk_ids: ArrayLike, topk_logprobs: ArrayLike, pbar: ArrayLike, alpha: float
) -> NDArray[np.float32]:
    """What each token votes with, p(v | x) / pbar(v)^alpha: [n, K].

    A token that is probable whatever the document says ("the") tells nothing about this one. With
    alpha = 0 it votes with its probability, as in Semantic Softmax; with alpha = 1 with its
    lift. The weights stand in for p in the sum over neighbours.

    Args:
        topk_ids, topk_logprobs: as `mean_probability`.
        pbar: float [V], from `mean_probability`. If it comes from other documents, it may be 0
            for a token here: nobody knows how surprising that one is, so it does not vote
            (unless alpha = 0).
        alpha: how much surprise counts, 0 or more; .5 to 1 is useful.

    Returns:
        float32 [n, K], not normalised; up to n^alpha on the documents that pbar comes from.

    Raises:
        ValueError: as `mean_probability`, pbar is not [V], alpha is negative or not finite.
    """
    mean = np.asarray(pbar, dtype=np.float64)
    if mean.ndim != 1:
        raise ValueError(f"pbar has the shape {list(mean.shape)}; it must be one number per token")
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha={alpha!r} is not allowed; it must be a finite number >= 0")
    ids, logprobs = _top_k(topk_ids, topk_logprobs, len(mean))
    unseen = (mean == 0) & (alpha > 0)
    boost = np.where(unseen, 0.0, np.where(unseen, 1.0, mean) ** -alpha)
    weights = np.empty(ids.shape, dtype=np.float32)
    for rows in _blocks(len(ids)):
        p = np.exp(logprobs[rows], dtype=np.float64)
        weights[rows] = p * boost[ids[rows]]
        weights[rows][np.isnan(p).any(axis=1)] = np.nan
    return weights


OWN_SHARE = 0.5  # `pooled_lift`: the label itself and its neighbourhood count the same


def pooled_lift(
    label_probs: ArrayLike, votes: ArrayLike, unseen: ArrayLike, own_share: float = OWN_SHARE
) -> Floats:
    """Log scores from how much more than usual a label and its neighbours are spoken of: [n, L].

        S(l|x) = m P(l|x) / Pbar(l) + (1 - m) V(l|x) / Vbar(l) + u(x)

    Pbar and Vbar are means over these documents, so each ratio is a lift, 1 for an average
    document: the prior correction is inside, and no labels are used. u(x) is the probability
    that was not read (outside the top K). It speaks as in an average document, with lift 1, for
    every label alike: a Dirichlet pseudo-vote of u(x) that keeps the tail off zero. docs/method.md
    derives it.

    Args:
        label_probs: P(l | x) of whole labels, [n, L].
        votes: V(l | x), what neighbours give, with tokens weighted by `surprise_weighted`; [n, L].
        unseen: u(x), [n], in [0, 1].
        own_share: m, in [0, 1].

    Returns:
        log S, float64 [n, L], not normalised. A label whose neighbours never speak has its own
        lift only, and one that nobody ever names either has lift 1. NaN rows stay NaN.

    Raises:
        ValueError: shapes differ, or own_share outside [0, 1].
    """
    own, given, rest = (np.asarray(x, dtype=np.float64) for x in (label_probs, votes, unseen))
    if own.ndim != 2 or own.shape != given.shape or rest.shape != own.shape[:1]:
        raise ValueError(
            f"label_probs {list(own.shape)} and votes {list(given.shape)} must be [documents, "
            f"labels] alike, and unseen {list(rest.shape)} one number per document"
        )
    if not 0 <= own_share <= 1:
        raise ValueError(f"own_share={own_share!r} is not a share; allowed are numbers in [0, 1]")
    own_lift = _lift(own, np.ones_like(own))
    lift = own_share * own_lift + (1 - own_share) * _lift(given, own_lift)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(lift + rest[:, None]))


def _lift(values: Floats, otherwise: Floats) -> Floats:
    """Values over their mean over documents (those without NaN); `otherwise` where that is 0."""
    known = ~np.isnan(values).any(axis=1)
    mean = values[known].mean(axis=0) if known.any() else np.ones(values.shape[1])
    return np.where(mean > 0, values / np.where(mean > 0, mean, 1.0), otherwise)


# --------------------------------------------------------------------------------------------
# checks
# --------------------------------------------------------------------------------------------


def _log_softmax(scores: Floats) -> Floats:
    """Rows that have none (a NaN, +inf, or nothing but -inf) become NaN from end to end."""
    with np.errstate(invalid="ignore"):
        shifted = scores - scores.max(axis=1, keepdims=True)
        normalised: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def _log_scores(log_scores: ArrayLike) -> Floats:
    scores = np.asarray(log_scores, dtype=np.float64)
    if scores.ndim != 2 or not scores.shape[1]:
        raise ValueError(
            f"log_scores has the shape {list(scores.shape)}; "
            "it must be [documents, labels] with at least one label"
        )
    return scores


def _gaps_and_target(log_scores: ArrayLike, target: ArrayLike) -> tuple[Floats, Ints]:
    """Scores relative to the best label of the document (<= 0), and one target per document."""
    scores = _log_scores(log_scores)
    if len(scores) != len(np.atleast_1d(np.asarray(target))):
        raise ValueError(
            f"log_scores has {len(scores)} rows but target has the shape {list(np.shape(target))}; "
            "they must describe the same documents"
        )
    broken = int(np.isnan(_log_softmax(scores)).any(axis=1).sum())
    if broken:
        raise UndefinedMetricError(
            f"{broken} of {len(scores)} rows of log_scores hold NaN, +inf, or nothing but -inf"
        )
    scores, labels = scores_and_target(scores, target)
    impossible = int(np.isneginf(scores[np.arange(len(labels)), labels]).sum())
    if impossible:
        raise UndefinedMetricError(
            f"the target of {impossible} of {len(scores)} documents has the score -inf"
        )
    return scores - scores.max(axis=1, keepdims=True), labels


def _top_k(
    topk_ids: ArrayLike, topk_logprobs: ArrayLike, vocabulary: int
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    ids, logprobs = np.asarray(topk_ids), np.asarray(topk_logprobs)
    if isinstance(vocabulary, bool) or vocabulary < 1:
        raise ValueError(f"vocabulary={vocabulary!r} is not allowed; it must be an integer >= 1")
    if ids.ndim != 2 or ids.shape != logprobs.shape:
        raise ValueError(
            f"topk_ids has the shape {list(ids.shape)} and topk_logprobs {list(logprobs.shape)}; "
            "both must be [documents, K]"
        )
    if not ids.size:
        return ids.astype(np.int64), logprobs.astype(np.float64)
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"topk_ids holds {ids.dtype}; token ids must be integers")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise ValueError(
            f"topk_ids holds {ids.min()} to {ids.max()}; "
            f"allowed are token ids 0 to {vocabulary - 1}"
        )
    return ids, logprobs


def _blocks(documents: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, documents, _ROWS))


def _warn(message: str) -> None:
    warnings.warn(f"{message}.", UndefinedMetricWarning, stacklevel=3)
