"""The measures of every table: what they are called, which way is better, how they are computed.

    judged = Judged(log_scores, target)
    {m.key: m.bind(judged) for m in MEASURES if m.applies(judged)}

`compare`, `tune` and `report` show some of them each. All are computed from the same `Judged`
answers and bound to documents as a `core.bootstrap.Statistic`, so a number is the same wherever it
is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import calibration, classification
from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricError, mean_of
from lm_eval_semsoft.core.semantic_softmax import normalise

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Judged:
    """The scores of n documents and L labels, and which labels are right.

    Attributes:
        log_scores: [n, L], not normalised; a document with NaN has no answer.
        target: [n, L] which labels are right; None if nobody knows.
        guess: [n] what is answered in place of the most probable label, None for that one.
        own_logprobs: [n, L] exact log-probabilities of the labels, None if they do not matter.
    """

    log_scores: Floats
    target: Bools | None
    guess: Ints | None = None
    own_logprobs: NDArray[np.floating] | None = None

    @cached_property
    def probs(self) -> Floats:
        """[n, L]."""
        with np.errstate(invalid="ignore"):  # a document that is all NaN, or without any score
            return normalise(self.log_scores)

    @cached_property
    def log_probs(self) -> Floats:
        """[n, L], exact where a probability underflows."""
        with np.errstate(invalid="ignore"):
            shifted = self.log_scores - self.log_scores.max(axis=1, keepdims=True)
            return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    @cached_property
    def confidence(self) -> Floats:
        """[n] probability of the most probable label."""
        return np.asarray(self.probs.max(axis=1))

    @cached_property
    def predicted(self) -> Ints:
        """[n] number of the label that is answered."""
        return np.asarray(self.probs.argmax(axis=1) if self.guess is None else self.guess)

    @cached_property
    def decided(self) -> Floats:
        """[n, L] scores whose highest is the answer."""
        if self.guess is None:
            return self.probs
        return (self.guess[:, None] == np.arange(self.probs.shape[1])).astype(np.float64)

    @cached_property
    def labels(self) -> Ints:
        """[n] one right label of each document: the answer where that is right."""
        assert self.target is not None
        return classification.resolve_target(self.decided, self.target)

    @cached_property
    def right(self) -> Bools:
        """[n] is the answer right?"""
        known = ~np.isnan(self.probs).any(axis=1)
        return np.asarray((self.predicted == self.labels) & known)


@dataclass(frozen=True)
class Measure:
    """A metric.

    Attributes:
        key: as in the harness's results.
        name: as people write it.
        group: heading of the rows around it on a page.
        higher: is more better? None where neither is.
        meaning: one sentence for newcomers.
        bind: the metric of these answers; raises `UndefinedMetricError` where there is none.
        needs: what `bind` takes: the answers alone (""), their `target`, or `own_logprobs`.
        one_label_set: does it compare the same label between documents?
        slow: does it cost more than all others together?
    """

    key: str
    name: str
    group: str
    higher: bool | None
    meaning: str
    bind: Callable[[Judged], Statistic[Any]]
    needs: str = "target"
    one_label_set: bool = False
    slow: bool = False

    @property
    def better(self) -> str:
        """`higher`, `lower`, or "" where neither is."""
        return "" if self.higher is None else "higher" if self.higher else "lower"

    def applies(self, judged: Judged) -> bool:
        """Do these answers come with what it needs?"""
        return not self.needs or getattr(judged, self.needs) is not None


def _bind(metric: Callable[..., Any], *arrays: NDArray[Any]) -> Statistic[Any]:
    statistic: Statistic[Any] = vars(metric)["prepare"](*arrays)
    return statistic


def _nll(judged: Judged) -> Statistic[float]:
    """From log-probabilities, as in the task's table: a probability may underflow, they do not."""
    _, labels = classification.scores_and_target(judged.probs, judged.labels)
    return calibration.mean_loss(-judged.log_probs[np.arange(len(labels)), labels])


def _silent_vote(judged: Judged) -> Statistic[float]:
    assert judged.own_logprobs is not None
    if not len(judged.predicted):
        raise UndefinedMetricError("there are no documents")
    winner = (np.arange(len(judged.predicted)), judged.predicted)
    share = silent_share(judged.log_scores[winner], judged.own_logprobs[winner])
    if unknown := int(np.isnan(share).sum()):
        raise UndefinedMetricError(f"{unknown} of {len(share)} documents have NaN scores")
    return mean_of(share)


def silent_share(log_scores: Floats, own_logprobs: NDArray[np.floating]) -> Floats:
    """1 - P / S, as `core.semantic_softmax.silent_vote`, for arrays."""
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.expm1(np.minimum(0.0, own_logprobs - log_scores)))


_RIGHT = "Is the answer right?"
_HONEST = "Are the probabilities honest?"
_CALIBRATED = "Is confidence as high as accuracy?"
_SORTED = "Does confidence tell right from wrong?"
_DESCRIBED = "For orientation"

MEASURES = (
    Measure(
        "accuracy", "accuracy", _RIGHT, True,
        "share of documents with the right label on top",
        lambda j: _bind(classification.accuracy, j.decided, j.labels),
    ),
    Measure(
        "macro_f1", "macro-F1", _RIGHT, True,
        "F1 of each label, averaged over labels: rare ones count as much as frequent ones",
        lambda j: _bind(classification.macro_f1, j.decided, j.labels),
        one_label_set=True,
    ),
    Measure(
        "auroc", "AUROC", _RIGHT, True,
        "is a label ranked higher where it is right than where it is not? 0.5 is chance",
        lambda j: _bind(classification.auroc, j.probs, j.labels),
        one_label_set=True,
    ),
    Measure(
        "brier", "Brier", _HONEST, False,
        "squared error of the whole distribution, 0 to 2; a proper score: only honest "
        "probabilities win it",
        lambda j: _bind(calibration.brier, j.probs, j.labels),
    ),
    Measure(
        "nll", "NLL", _HONEST, False,
        "surprise about the right label, in nats; proper as well, and hard on false certainty",
        _nll,
    ),
    Measure(
        "ece", "ECE", _CALIBRATED, False,
        "mean gap between confidence and accuracy over 15 bins of equal width",
        lambda j: _bind(calibration.ece, j.confidence, j.right),
    ),
    Measure(
        "ece_mass", "ECE, equal mass", _CALIBRATED, False,
        "the same over 15 bins with equally many documents",
        lambda j: _bind(calibration.ece_mass, j.confidence, j.right),
    ),
    Measure(
        "ece_sweep", "ECE sweep", _CALIBRATED, False,
        "with as many equal-mass bins as keep accuracy rising (root mean square)",
        lambda j: _bind(calibration.ece_sweep, j.confidence, j.right),
        slow=True,
    ),
    Measure(
        "smooth_ece", "smooth ECE", _CALIBRATED, False,
        "the gap without bins, smoothed",
        lambda j: _bind(calibration.smooth_ece, j.confidence, j.right),
        slow=True,
    ),
    Measure(
        "confidence_auroc", "confidence AUROC", _SORTED, True,
        "is confidence higher on right answers than on wrong ones? 0.5 is chance",
        lambda j: _bind(classification.confidence_auroc, j.confidence, j.right),
    ),
    Measure(
        "auarc", "AUARC", _SORTED, True,
        "accuracy on the most confident documents, averaged over how many are kept",
        lambda j: _bind(classification.auarc, j.confidence, j.right),
    ),
    Measure(
        "mean_confidence", "mean confidence", _DESCRIBED, None,
        "mean probability of the predicted label; above accuracy means overconfident",
        lambda j: _bind(calibration.mean_confidence, j.confidence),
        needs="",
    ),
    Measure(
        "silent_vote", "silent vote", _DESCRIBED, None,
        "mean share of the winning score that came from neighbours of the label",
        _silent_vote,
        needs="own_logprobs",
    ),
)  # fmt: skip

BY_KEY = {measure.key: measure for measure in MEASURES}
ONE_LABEL_SET = tuple(measure.key for measure in MEASURES if measure.one_label_set)


def chosen(*keys: str) -> tuple[Measure, ...]:
    """Some measures, in this order."""
    return tuple(BY_KEY[key] for key in keys)
