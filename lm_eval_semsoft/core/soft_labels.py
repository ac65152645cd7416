"""Scores against human label distributions: does a probability match the share of people.

Notation: n documents, L labels. `shares` float [n, L] says which share of the people asked chose
each label; rows sum to 1. `probs` float [n, L] are the model's probabilities. Where there are two
labels one column says it all: `probability` and `fraction`, float [n], in [0, 1].

Bad values that a model can produce (NaN, a probability outside [0, 1]) give NaN and one
`UndefinedMetricWarning`. Bad values that only a caller can produce (shapes, lengths, shares that
are none) raise ValueError.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .bootstrap import Counts, Statistic, UndefinedMetricError, mean_of, metric
from .calibration import ece
from .classification import Bools, Floats

# Rounding, not mistakes: of low-precision models, and of shares that were written down in percent.
ROUNDING = 0.01


@metric(undefined=math.nan)
def soft_brier(probs: ArrayLike, shares: ArrayLike) -> Statistic[float]:
    """Brier score against shares: mean over documents of sum_l (p_l - share_l)^2, 0..2.

    With shares of 0 and 1 this is `calibration.brier`. Otherwise 0 is reached by a model that
    repeats the people's distribution, not by one that is sure of the majority's label.

    Args:
        probs: float [n, L], rows sum to 1.
        shares: float [n, L], rows sum to 1.

    Raises:
        ValueError: `shares` is no [n, L] array of distributions, or its shape is not that of probs.
    """
    human = _shares(shares)
    model = _probabilities("probs", probs, "shares", human)
    odd = np.abs(model.sum(axis=1) - 1) > ROUNDING
    if odd.any():
        raise UndefinedMetricError(
            f"{odd.sum()} of {len(odd)} rows of probs are no probability distribution "
            f"(row {odd.argmax()} sums to {model[odd.argmax()].sum():g})"
        )
    return mean_of(((model - human) ** 2).sum(axis=1))


@metric(undefined=math.nan)
def soft_ece(probability: ArrayLike, fraction: ArrayLike, n_bins: int = 15) -> Statistic[float]:
    """Expected calibration error of one label's probability against people's shares, 0..1.

    Documents of similar probability are grouped into equal-width bins, [i/n_bins, (i+1)/n_bins),
    the last with its end: sum_b n_b / n * |mean probability - mean fraction|. Unlike `ece` it
    looks at one label's probability instead of that of the predicted one, so it also sees a label
    that is given too much everywhere.

    Args:
        probability: of the label, float [n], in [0, 1].
        fraction: share of people who chose it, float [n], in [0, 1].
        n_bins: number of bins.

    Raises:
        ValueError: lengths differ, a fraction outside [0, 1] or NaN, n_bins < 1.
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise ValueError(f"n_bins={n_bins!r} is not allowed; it must be an integer >= 1")
    human = _fractions(fraction)
    model = _probabilities("probability", probability, "fraction", human)
    bins = np.searchsorted(np.arange(1, n_bins) / n_bins, model, side="right")
    gap = model - human

    def at(counts: Counts) -> float:
        # |sum of gaps| is n_b |mean - mean|, so nothing is divided until the end.
        return float(np.abs(np.bincount(bins, counts * gap, n_bins)).sum() / counts.sum())

    return Statistic(len(gap), at)


def crowd(shares: ArrayLike, target: ArrayLike) -> tuple[Floats, Bools]:
    """People as one classifier: how sure they are of their answers, and whether those are right.

    The answer is the one that most people chose (the first if several share it), the confidence is
    the share that chose it. That stands for a confidence that nobody was asked for: the more people
    choose an answer, the surer they are of it, right or wrong (the consensuality principle, Koriat
    2008). It is a statement about the crowd. One person's calibration is another matter, and so is
    a model's agreement with the shares, which `soft_brier` measures.

    Args:
        shares: float [n, L], rows sum to 1 (documents without shares are left out by the caller).
        target: bool [n, L], the right labels.

    Returns:
        confidence float [n] and correct bool [n], as `calibration.ece` and `ece_sweep` take them.

    Raises:
        ValueError: `shares` is no [n, L] array of distributions, or `target` has another shape.
    """
    table = np.asarray(shares, dtype=np.float64)
    if not table.size:
        return np.empty(0), np.empty(0, dtype=np.bool_)
    human, right = _shares(table), np.asarray(target)
    if right.dtype != np.bool_ or right.shape != human.shape:
        raise ValueError(
            f"target must be booleans of the shape {list(human.shape)} of shares; "
            f"it is {right.dtype} {list(right.shape)}"
        )
    rows, chosen = np.arange(len(human)), human.argmax(axis=1)
    return human[rows, chosen] / human.sum(axis=1), right[rows, chosen]


def human_ece(shares: ArrayLike, target: ArrayLike, n_bins: int = 15) -> float:
    """People's own calibration error, 0..1: `calibration.ece` of the `crowd`.

    Args, Raises:
        as `crowd` and `calibration.ece`; NaN, with a warning, of no documents.
    """
    return ece(*crowd(shares, target), n_bins=n_bins)


def _shares(values: ArrayLike) -> Floats:
    shares = np.asarray(values, dtype=np.float64)
    if not shares.size:
        raise UndefinedMetricError("there are no documents")
    if shares.ndim != 2:
        raise ValueError(
            f"shares has the shape {list(shares.shape)}; it must be [documents, labels]"
        )
    total = shares.sum(axis=1)
    odd = ~(np.abs(total - 1) <= ROUNDING) | (shares < 0).any(axis=1)
    if odd.any():
        raise ValueError(
            f"row {odd.argmax()} of shares is {shares[odd.argmax()].tolist()}; "
            "each row must hold numbers from 0 to 1 that sum to 1"
        )
    return shares


def _fractions(values: ArrayLike) -> Floats:
    fraction = np.asarray(values, dtype=np.float64)
    if not fraction.size:
        raise UndefinedMetricError("there are no documents")
    if fraction.ndim != 1:
        raise ValueError(
            f"fraction has the shape {list(fraction.shape)}; it must be one value per document"
        )
    odd = fraction[~((fraction >= 0) & (fraction <= 1))]
    if odd.size:
        raise ValueError(f"fraction contains {odd[0]:g}; allowed are numbers from 0 to 1")
    return fraction


def _probabilities(name: str, values: ArrayLike, other: str, human: Floats) -> Floats:
    model = np.asarray(values, dtype=np.float64)
    if model.shape != human.shape:
        raise ValueError(
            f"{name} has the shape {list(model.shape)} but {other} has {list(human.shape)}; "
            "they must describe the same documents"
        )
    unknown = int(np.isnan(model).reshape(len(model), -1).any(axis=1).sum())
    if unknown:
        raise UndefinedMetricError(f"{name} is NaN for {unknown} of {len(model)} documents")
    outside = model[(model < -ROUNDING) | (model > 1 + ROUNDING)]
    if outside.size:
        raise UndefinedMetricError(
            f"{outside.size} values of {name} lie outside [0, 1], such as {outside[0]:g}"
        )
    return model
