"""The measures of answers that are free text, each with a confidence: names, directions, formulas.

    answered = Answered.of(run.filters["n10"])
    {m.key: m.bind(answered) for m in MEASURES if m.applies(answered)}

Keys are those of the tasks' own tables, and so are the numbers: a question of which nobody knows
what is right, or whose confidence is unknown, is left out of the measures that need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import calibration, classification, risk_coverage
from lm_eval_semsoft.core import semantic_entropy as se
from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricError, mean_of

from .samples import Answer, Samples

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to n questions under one filter, as arrays [n]; NaN where something is unknown.

    Attributes:
        sampled: were several answers sampled? All from `greedy_right` on are NaN if not.
        confidence: 0..1.
        right: 1 or 0.
        greedy_right: is the greedy answer right?
        n_clusters: meanings among the samples.
        n_tokens: of all samples of a question together.
        share: of the largest cluster.
        entropy, rao_entropy: discrete and likelihood-weighted semantic entropy, nats.
        entropy_confidence: 1 - entropy / ln N.
        mean_logprob: mean over the samples of their mean token log-probability, nats: minus the
            length-normalised predictive entropy.
    """

    sampled: bool
    confidence: Floats
    right: Floats
    greedy_right: Floats
    n_clusters: Floats
    n_tokens: Floats
    share: Floats
    entropy: Floats
    rao_entropy: Floats
    entropy_confidence: Floats
    mean_logprob: Floats

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Answered:
        with warnings.catch_warnings():
            # That log-probabilities are unknown is said once on the page, not for every question.
            warnings.simplefilter("ignore")
            rows = [
                (a.confidence, a.right, *(_of_samples(a.samples) if a.samples else _NOTHING))
                for a in answers
            ]
        return cls(answers[0].samples is not None, *np.array(rows, dtype=np.float64).T)


def _of_samples(own: Samples) -> tuple[float, ...]:
    ids = own.clusters
    return (
        own.greedy_right,
        se.n_clusters(ids),
        sum(own.n_tokens),
        se.cluster_share(ids),
        se.semantic_entropy(ids),
        se.rao_semantic_entropy(ids, own.mean_logprobs),
        se.entropy_confidence(ids),
        sum(own.mean_logprobs) / len(ids),
    )


_NOTHING = (math.nan,) * 8


@dataclass(frozen=True)
class AnswerMeasure:
    """A metric.

    Attributes:
        key: as in the tasks' tables.
        name: as people write it.
        group: heading of the rows around it.
        higher: is more better? None where neither is.
        meaning: one sentence for newcomers.
        bind: the metric of these answers; raises `UndefinedMetricError` where there is none.
        sampled: does it need several answers to a question?
    """

    key: str
    name: str
    group: str
    higher: bool | None
    meaning: str
    bind: Callable[[Answered], Statistic[Any]]
    sampled: bool = False

    @property
    def better(self) -> str:
        """`higher`, `lower`, or "" where neither is."""
        return "" if self.higher is None else "higher" if self.higher else "lower"

    def applies(self, answered: Answered) -> bool:
        return answered.sampled or not self.sampled


def known_pairs(confidence: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Without the questions of which one of the two is unknown.

    Raises:
        UndefinedMetricError: none is left.
    """
    known = ~np.isnan(confidence) & ~np.isnan(right)
    if not known.any():
        raise UndefinedMetricError(
            "no question has a gold answer" if np.isnan(right).all()
            else "no question has both this confidence and a gold answer"
        )  # fmt: skip
    return confidence[known], right[known]


def _pairs(metric: Callable[..., Any], confidence: Floats, right: Floats) -> Statistic[Any]:
    statistic: Statistic[Any] = vars(metric)["prepare"](*known_pairs(confidence, right))
    return statistic


def _mean(values: Floats) -> Statistic[float]:
    known = values[~np.isnan(values)]
    if not known.size:
        raise UndefinedMetricError("it is unknown for every question")
    return mean_of(known)


_RIGHT = "Is the answer right?"
_CALIBRATED = "Is confidence as high as accuracy?"
_SORTED = "Does confidence tell right from wrong?"
_DESCRIBED = "For orientation"

MEASURES = (
    AnswerMeasure(
        "accuracy", "accuracy", _RIGHT, True,
        "share of questions that are answered right; of sampled answers the first one of the "
        "largest cluster counts",
        lambda a: _mean(a.right),
    ),
    AnswerMeasure(
        "greedy_accuracy", "greedy accuracy", _RIGHT, True,
        "the same for the answer that takes the most probable token each time",
        lambda a: _mean(a.greedy_right), sampled=True,
    ),
    AnswerMeasure(
        "ece", "ECE", _CALIBRATED, False,
        "mean gap between confidence and accuracy over 15 bins of equal width",
        lambda a: _pairs(calibration.ece, a.confidence, a.right),
    ),
    AnswerMeasure(
        "ece_sweep", "ECE sweep", _CALIBRATED, False,
        "with as many equal-mass bins as keep accuracy rising (root mean square)",
        lambda a: _pairs(calibration.ece_sweep, a.confidence, a.right),
    ),
    AnswerMeasure(
        "brier", "Brier", _CALIBRATED, False,
        "squared gap between confidence and outcome, 0 to 1; only honest confidence wins it",
        lambda a: _pairs(calibration.confidence_brier, a.confidence, a.right),
    ),
    AnswerMeasure(
        "auroc", "AUROC", _SORTED, True,
        "is confidence higher on right answers than on wrong ones? 0.5 is chance",
        lambda a: _pairs(classification.confidence_auroc, a.confidence, a.right),
    ),
    AnswerMeasure(
        "auarc", "AUARC", _SORTED, True,
        "accuracy on the most confident questions, averaged over how many are kept",
        lambda a: _pairs(classification.auarc, a.confidence, a.right),
    ),
    AnswerMeasure(
        "aurc", "AURC", _SORTED, False,
        "area under the risk–coverage curve: 1 − AUARC",
        lambda a: _pairs(risk_coverage.aurc, a.confidence, a.right),
    ),
    AnswerMeasure(
        "entropy_auroc", "AUROC of semantic entropy", _SORTED, True,
        "AUROC with low semantic entropy as confidence",
        lambda a: _pairs(classification.confidence_auroc, -a.entropy, a.right), sampled=True,
    ),
    AnswerMeasure(
        "rao_entropy_auroc", "AUROC of Rao entropy", _SORTED, True,
        "AUROC with low likelihood-weighted semantic entropy as confidence",
        lambda a: _pairs(classification.confidence_auroc, -a.rao_entropy, a.right), sampled=True,
    ),
    AnswerMeasure(
        "logprob_auroc", "AUROC of log-probability", _SORTED, True,
        "AUROC with the samples’ mean log-probability per token as confidence: what needs no "
        "judge of meaning",
        lambda a: _pairs(classification.confidence_auroc, a.mean_logprob, a.right), sampled=True,
    ),
    AnswerMeasure(
        "mean_confidence", "mean confidence", _DESCRIBED, None,
        "above accuracy means overconfident",
        lambda a: _mean(a.confidence),
    ),
    AnswerMeasure(
        "semantic_entropy", "semantic entropy", _DESCRIBED, None,
        "of the clusters’ shares, in nats: 0 if all samples mean the same, ln N if no two do",
        lambda a: _mean(a.entropy), sampled=True,
    ),
    AnswerMeasure(
        "rao_semantic_entropy", "Rao entropy", _DESCRIBED, None,
        "the same with every sample weighted by its length-normalised likelihood",
        lambda a: _mean(a.rao_entropy), sampled=True,
    ),
    AnswerMeasure(
        "n_clusters", "clusters", _DESCRIBED, None,
        "how many meanings there are among the samples of a question",
        lambda a: _mean(a.n_clusters), sampled=True,
    ),
    AnswerMeasure(
        "n_tokens", "tokens", _DESCRIBED, None,
        "generated for all samples of a question",
        lambda a: _mean(a.n_tokens), sampled=True,
    ),
)  # fmt: skip

_FAMILIES = ("accuracy", "ece", "brier", "auroc", "auarc", "aurc", "mean_confidence")
HEADLINE = tuple(m for m in MEASURES if m.key in _FAMILIES)  # for the table of several runs
