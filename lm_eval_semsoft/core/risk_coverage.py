"""Risk and coverage: how often is a model wrong if it may decline to answer?

A selective model answers only the share of the documents of which it is most confident (the
*coverage*). Its *selective risk* is the share of wrong answers among those. A confidence that
knows right from wrong gives a curve that falls towards small coverage; one that knows nothing
gives a flat one at 1 - accuracy.

Sources: Geifman and El-Yaniv, "Selective classification for deep neural networks" (NeurIPS 2017),
for risk and coverage; Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep
neural classifiers" (ICLR 2019), for the area under the curve.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .bootstrap import Statistic, metric, of_many
from .classification import Floats, auarc, confidence_and_correct, tie_starts


def selective_risk(
    confidence: ArrayLike, correct: ArrayLike, coverage: ArrayLike
) -> Statistic[Floats]:
    """Share of wrong answers among the most confident documents, at each coverage: [C].

    With coverage c of n documents k = c n are kept. Documents of equal confidence enter in random
    order, and the expected share over these orders is returned: inside a tie the expected number
    of right answers grows on a straight line. Where k is no whole number, the last document is
    kept in part.

    Args:
        confidence: float [n], any real score: only its order matters.
        correct: 1 or True where the answer is right, else 0 or False [n].
        coverage: float [C], in (0, 1].

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1, a coverage outside
            (0, 1].
        UndefinedMetricError: no documents, or NaN among the values.
    """
    scores, right = confidence_and_correct(confidence, correct)
    grid = np.asarray(coverage, dtype=np.float64)
    if grid.ndim != 1 or not ((grid > 0) & (grid <= 1)).all():
        raise ValueError("coverage must be a list of numbers above 0 and at most 1")
    order = np.argsort(-scores, kind="stable")
    starts = tie_starts(scores[order])
    wrong = ~right[order]

    def many(counts: Floats) -> Floats:
        drawn = counts[order]
        kept = np.cumsum(np.add.reduceat(drawn, starts), axis=0)
        errors = np.cumsum(np.add.reduceat(drawn * wrong[:, None], starts), axis=0)
        none = np.zeros((1, counts.shape[1]))
        kept, errors = np.vstack([none, kept]), np.vstack([none, errors])
        wanted = grid[:, None] * kept[-1]
        columns = zip(wanted.T, kept.T, errors.T, strict=True)
        return np.array([np.interp(k, x, y) / k for k, x, y in columns])

    return of_many(len(right), many)


@metric(undefined=math.nan)
def aurc(confidence: ArrayLike, correct: ArrayLike) -> Statistic[float]:
    """Area under the risk-coverage curve, 0..1: mean selective risk over k = 1..n kept documents.

    It is 1 - `classification.auarc`, so a confidence that knows nothing gets 1 - accuracy, and
    lower is better. Ties count as in `selective_risk`.

    Args:
        confidence: float [n], any real score: only its order matters.
        correct: 1 or True where the answer is right, else 0 or False [n].

    Raises:
        ValueError: lengths differ, `correct` holds other values than 0 and 1.

    >>> round(aurc([0.9, 0.8, 0.1], [1, 0, 1]), 4)  # (0 + 1/2 + 1/3) / 3
    0.2778
    """
    kept: Statistic[float] = vars(auarc)["prepare"](confidence, correct)
    area = kept.many
    assert area is not None
    return of_many(kept.n, lambda counts: 1 - area(counts))
