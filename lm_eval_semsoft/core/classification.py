"""Accuracy, F1 and ranking: is the right label on top, and do the scores order documents well.

Notation: n documents, L labels. `probs` float [n, L] holds a score per label; only the order of
the scores matters in this module, so log-scores serve as well. The predicted label of a document
is the one with the highest score (the first one if several share it).

`target` holds the right labels, in one of two forms:

- integers [n], each 0..L-1: one right label per document;
- booleans [n, L]: any number of right labels per document (at least one). `accuracy` counts any
  of them as right. Measures that need a single target per document (here `macro_f1` and `auroc`,
  in `calibration` `brier` and `nll`) use the one that `resolve_target` chooses.

Bad values that a model can produce (NaN) and documents that leave a metric without a meaning
give NaN and one `UndefinedMetricWarning`. Bad values that only a caller can produce (shapes,
lengths, label numbers) raise ValueError.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from .bootstrap import Statistic, UndefinedMetricError, mean_of, metric, of_many

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@metric(undefined=math.nan)
def accuracy(probs: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """Share of documents whose predicted label is right, 0..1.

    Args:
        probs: scores, float [n, L].
        target: label numbers [n], or booleans [n, L] of which any counts as right.

    Raises:
        ValueError: shapes or lengths do not fit, label numbers outside 0..L-1.
    """
    scores, labels = scores_and_target(probs, target)
    return mean_of((scores.argmax(axis=1) == labels).astype(np.float64))


@metric(undefined=math.nan)
def macro_f1(probs: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """Unweighted mean of F1 = 2 TP / (predicted + actual) over labels, 0..1.

    The mean runs over the labels that occur in the targets or among the predictions, and a label
    that is never hit counts 0: scikit-learn's ``f1_score(average="macro", zero_division=0)``.
    In a bootstrap the labels are those of the resample.

    Args:
        probs: scores, float [n, L].
        target: label numbers [n], or booleans [n, L] (see `resolve_target`).

    Raises:
        ValueError: as `accuracy`.
    """
    return _label_mean(label_f1(probs, target))


def label_f1(probs: ArrayLike, target: ArrayLike) -> Statistic[Floats]:
    """F1 of each label, as `macro_f1` averages it: [L], NaN where a label does not occur.

    Raises:
        ValueError, UndefinedMetricError: as `accuracy`.
    """
    scores, labels = scores_and_target(probs, target)
    predicted = scores.argmax(axis=1)
    size, hit = scores.shape[1], predicted == labels
    hits_of = sums_by(labels, size, hit.astype(np.float64))
    total_of = sums_by(labels, size) + sums_by(predicted, size)

    def many(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray((2 * (hits_of @ counts) / (total_of @ counts)).T)

    return of_many(len(labels), many)


@metric(undefined=math.nan)
def auroc(probs: ArrayLike, target: ArrayLike) -> Statistic[float]:
    """Macro one-vs-rest area under the ROC curve, 0..1 (.5 = chance).

    For each label that occurs in `target`: the probability that a document of this label gets a
    higher score for it than another document does, ties counting one half (Hanley & McNeil 1982).
    Then the unweighted mean over these labels. Equals scikit-learn's
    ``roc_auc_score(multi_class="ovr", average="macro")`` if every label occurs.

    Args:
        probs: scores, float [n, L]. Rows are compared with each other, so they should be on one
            scale: probabilities, or logits that are comparable between documents.
        target: label numbers [n], or booleans [n, L] (see `resolve_target`).

    Returns:
        NaN, with a warning, if fewer than two labels occur.

    Raises:
        ValueError: as `accuracy`.
    """
    scores, labels = scores_and_target(probs, target)
    occurring = np.unique(labels)
    if len(occurring) < 2:
        raise UndefinedMetricError("all targets are the same label, so there is nothing to rank")
    return _label_mean(_areas(scores[:, occurring], labels[:, None] == occurring), _NO_PAIR)


def label_auroc(probs: ArrayLike, target: ArrayLike) -> Statistic[Floats]:
    """One-vs-rest area of each label, as `auroc` averages it: [L], NaN where nothing is ranked.

    Raises:
        ValueError, UndefinedMetricError: as `accuracy`.
    """
    scores, labels = scores_and_target(probs, target)
    return _areas(scores, labels[:, None] == np.arange(scores.shape[1]))


@metric(undefined=math.nan)
def confidence_auroc(confidence: ArrayLike, correct: ArrayLike) -> Statistic[float]:
    """Does confidence rank right answers above wrong ones? 0..1 (.5 = not at all).

    The area under the ROC curve of `confidence` as a score for `correct`, ties counting one half.

    Args:
        confidence: float [n], any real score: only its order matters.
        correct: 1 or True where the answer is right, else 0 or False [n].

    Returns:
        NaN, with a warning, if all answers are right or all are wrong.

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1.
    """
    scores, right = confidence_and_correct(confidence, correct)
    if right.all() or not right.any():
        raise UndefinedMetricError(f"all answers are {'right' if right.all() else 'wrong'}")
    return _label_mean(_areas(scores[:, None], right[:, None]), _NO_PAIR)


@metric(undefined=math.nan)
def auarc(confidence: ArrayLike, correct: ArrayLike) -> Statistic[float]:
    """Area under the accuracy-rejection curve, 0..1 (Nadeem et al. 2009).

    Keep the k most confident documents and reject the rest: the mean over k = 1..n of the
    accuracy on those kept. A ranking that knows nothing gives the overall accuracy. Documents of
    equal confidence enter in random order, and the expected value over these orders is returned.

    Args:
        confidence: float [n], any real score: only its order matters.
        correct: 1 or True where the answer is right, else 0 or False [n].

    Raises:
        ValueError: as `confidence_auroc`.
    """
    scores, right = confidence_and_correct(confidence, correct)
    order = np.argsort(-scores)
    starts = tie_starts(scores[order])
    right = right[order]

    def many(counts: Floats) -> Floats:
        drawn = counts[order]
        size = np.add.reduceat(drawn, starts)
        hits = np.add.reduceat(drawn * right[:, None], starts)
        kept = np.cumsum(size, axis=0)
        rate = hits / np.maximum(size, 1)
        # Inside a tie the expected number of right answers grows on a straight line, so the sum
        # over k of hits / k is one of 1 / k: a difference of harmonic numbers.
        offset = (np.cumsum(hits, axis=0) - hits) - rate * (kept - size)
        harmonic = np.append(0, np.cumsum(1 / np.arange(1, kept[-1].max() + 1)))
        last = kept.astype(np.int64)
        within = np.diff(harmonic[last], axis=0, prepend=0)
        return np.asarray((offset * within + rate * size).sum(axis=0) / kept[-1])

    return of_many(len(right), many)


def correctness(probs: ArrayLike, target: ArrayLike) -> Bools:
    """Whether each document's predicted label is right: bool [n].

    Args:
        probs: scores, float [n, L]. A row with NaN counts as wrong; its confidence (the row's
            maximum) is NaN too, so measures of confidence notice it.
        target: label numbers [n], or booleans [n, L] of which any counts as right.

    Raises:
        ValueError: as `accuracy`.
    """
    scores = _scores(probs)
    if not scores.size:
        return np.zeros(0, dtype=np.bool_)
    labels = _labels(scores, target)
    right: Bools = (scores.argmax(axis=1) == labels) & ~np.isnan(scores).any(axis=1)
    return right


def resolve_target(probs: ArrayLike, targets: ArrayLike) -> Ints:
    """One target per document out of several right labels.

    The predicted label if it is among the row's labels, else the row's first label: so a single-
    target measure counts any of a row's labels as right, and an answer that is wrong for all of
    them is wrong once.

    Args:
        probs: scores, float [n, L].
        targets: right labels, bool [n, L].

    Returns:
        int64 [n]; -1 for a row without any label.

    Raises:
        ValueError: shapes differ, `targets` is not boolean.
    """
    scores, allowed = _scores(probs), np.asarray(targets)
    if allowed.shape != scores.shape or allowed.dtype != np.bool_:
        raise ValueError(
            f"target is {allowed.dtype} {list(allowed.shape)}; several labels per document must "
            f"be booleans of the shape of probs, {list(scores.shape)}"
        )
    if not scores.size:
        return np.zeros(len(scores), dtype=np.int64)
    predicted = scores.argmax(axis=1)
    hit = allowed[np.arange(len(scores)), predicted]
    resolved = np.where(hit, predicted, allowed.argmax(axis=1))
    return np.where(allowed.any(axis=1), resolved, -1).astype(np.int64)


def scores_and_target(probs: ArrayLike, target: ArrayLike) -> tuple[Floats, Ints]:
    """Check the arguments of a metric: scores [n, L] and one target per document [n]."""
    scores = _scores(probs)
    labels = _labels(scores, target)
    if not len(scores):
        raise UndefinedMetricError("there are no documents")
    if unknown := int(np.isnan(scores).any(axis=1).sum()):
        raise UndefinedMetricError(f"{unknown} of {len(scores)} rows of probs contain NaN")
    if unlabelled := int((labels < 0).sum()):
        raise UndefinedMetricError(f"{unlabelled} of {len(scores)} rows of target have no label")
    return scores, labels


def confidence_and_correct(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    """Check the arguments of a metric: confidence [n] and correctness [n]."""
    scores, right = _floats("confidence", confidence, 1), _floats("correct", correct, 1)
    if len(scores) != len(right):
        raise ValueError(
            f"confidence has {len(scores)} values but correct has {len(right)}; "
            "they must describe the same documents"
        )
    if not len(scores):
        raise UndefinedMetricError("there are no documents")
    for name, values in (("confidence", scores), ("correct", right)):
        if unknown := int(np.isnan(values).sum()):
            raise UndefinedMetricError(f"{unknown} of {len(values)} values of {name} are NaN")
    odd = right[(right != 0) & (right != 1)]
    if odd.size:
        raise ValueError(f"correct contains {odd[0]:g}; allowed are 0 and 1 (or False and True)")
    return scores, right == 1


def tie_starts(ranked: Floats) -> NDArray[np.intp]:
    """Where each run of equal values begins in a sorted, non-empty array."""
    return np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))


def sums_by(group: Ints, size: int, values: Floats | None = None) -> scipy.sparse.csr_array:
    """The matrix [size, n] that sums over the documents of each group; `values` weight them."""
    weights = np.ones(len(group)) if values is None else values
    return scipy.sparse.csr_array((weights, (group, np.arange(len(group)))), (size, len(group)))


_NO_PAIR = "no positive meets a negative"


def _label_mean(of_labels: Statistic[Floats], undefined: str = "") -> Statistic[float]:
    """The mean over the labels that have a value."""
    each = of_labels.many
    assert each is not None

    def many(counts: Floats) -> Floats:
        values = each(counts)
        known = ~np.isnan(values)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))

    return of_many(of_labels.n, many, undefined)


def _areas(scores: Floats, positive: Bools) -> Statistic[Floats]:
    """Area under the ROC curve of every column ([n, C] each), by weighted mid-ranks: [C].

    With w the counts and R_i the weight ranked below document i plus half of the weight tied with
    it (itself included), the positives give sum w_i R_i = U + W_pos^2 / 2, and AUC is
    U / (W_pos W_neg). Sorting does not depend on the counts, so it is done once. NaN for columns
    without a positive or a negative.
    """
    n, columns = scores.shape
    order = np.argsort(scores, axis=0)
    column, document = np.nonzero(positive.T)
    below, through = np.empty_like(document), np.empty_like(document)
    for c in range(columns):
        ranked, values = scores[order[:, c], c], scores[document[column == c], c]
        below[column == c] = np.searchsorted(ranked, values, side="left")
        through[column == c] = np.searchsorted(ranked, values, side="right")

    # One long ranking, column after column, of which only the sums up to the positives matter:
    # a matrix of ones takes the sums between them, which is quicker than gathering the counts.
    ranking = order.T.ravel()
    ends = np.append(column * n + below, column * n + through)
    edges, end_at = np.unique(np.append(0, ends), return_inverse=True)
    segments = np.append(edges[edges < len(ranking)], len(ranking))
    between = scipy.sparse.csr_array(
        (np.ones(len(ranking)), ranking, segments), shape=(len(segments) - 1, n)
    )
    below_at, through_at = end_at[1:].reshape(2, -1)
    of_column = sums_by(column, columns)

    def many(counts: Floats) -> Floats:
        weight_before = np.zeros((len(segments), counts.shape[1]))
        np.cumsum(between @ counts, axis=0, out=weight_before[1:])
        weight, total = counts[document], counts.sum(axis=0)
        positives = of_column @ weight
        twice_rank_sum = of_column @ (
            weight * (weight_before[below_at] + weight_before[through_at])
        )
        # The ranking of column c begins after c rankings of all documents.
        earlier = positives * np.arange(columns)[:, None] * total
        wins = twice_rank_sum / 2 - earlier - positives**2 / 2
        with np.errstate(invalid="ignore"):
            return np.asarray((wins / (positives * (total - positives))).T)

    return of_many(n, many)


def _scores(probs: ArrayLike) -> Floats:
    scores = _floats("probs", probs, None)
    if scores.shape == (0,):
        return scores.reshape(0, 1)
    if scores.ndim != 2 or (len(scores) and not scores.shape[1]):
        raise ValueError(
            f"probs has the shape {list(scores.shape)}; "
            "it must be [documents, labels] with at least one label"
        )
    return scores


def _labels(scores: Floats, target: ArrayLike) -> Ints:
    """One label number per document; -1 where there is none (an empty row, NaN)."""
    if np.ndim(target) == 2:
        return resolve_target(scores, target)
    labels = _floats("target", target, 1)
    if len(labels) != len(scores):
        raise ValueError(
            f"probs has {len(scores)} rows but target has {len(labels)}; "
            "they must describe the same documents"
        )
    last = scores.shape[1] - 1
    odd = labels[~np.isnan(labels) & ~np.isin(labels, np.arange(last + 1))]
    if odd.size:
        raise ValueError(f"target contains {odd[0]:g}; allowed are label numbers 0 to {last}")
    return np.where(np.isnan(labels), -1, labels).astype(np.int64)


def _floats(name: str, values: ArrayLike, ndim: int | None) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not an array of numbers ({error})") from None
    if ndim is not None and array.ndim != ndim:
        raise ValueError(
            f"{name} has the shape {list(array.shape)}; it must be one value per document"
        )
    return array
