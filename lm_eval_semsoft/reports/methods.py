"""The methods that are compared: from readouts to the probability of every label.

    for answers in answer_all(readings, dev, scoring):
        answers.method.name, answers.log_probs          # "semantic+prior", [n, L]

A method is a *base*, which scores labels from readouts alone, and up to two corrections:

    uniform       every choice is equally probable: what knowing nothing gets
    constrained   the standard softmax over exact label probabilities
    semantic      Semantic Softmax
    surprise      Semantic Softmax in which surprising tokens have the louder vote
    +prior        divided by how probable each label is on average (`core.corrections`)
    +temperature  log-probabilities divided by a T that was fitted on development documents

What `+prior` and `surprise` need to know about all documents they take from the documents that are
scored, without a look at their labels: they are transductive and label-free. T is the only thing
that is learnt from labels, and it comes from other documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core.corrections import (
    apply_temperature,
    fit_temperature,
    mean_probability,
    pooled_lift,
    prior_correction,
    surprise_weighted,
)
from lm_eval_semsoft.core.semantic_softmax import Scoring

from . import scores
from .readings import Readings

Floats = NDArray[np.float64]

# Of the surprise-weighted votes, chosen on development documents (docs/surprise.md).
ALPHA = 0.5  # how much surprise counts
SURPRISE = Scoring(space="pc:3", tau="q0.95")


@dataclass(frozen=True)
class Method:
    """A base and its corrections.

    Attributes:
        base: key of `BASES`.
        prior, temperature: is it corrected so? First the prior, then the temperature.
    """

    base: str
    prior: bool = False
    temperature: bool = False

    @property
    def divides(self) -> bool:
        """Still to be divided by its mean? Surprise-weighted scores are lifts already."""
        return self.prior and self.base != "surprise"

    @property
    def name(self) -> str:
        """Such as `semantic+prior+temperature`."""
        return self.base + "+prior" * self.prior + "+temperature" * self.temperature


@dataclass(frozen=True, eq=False)
class Answers:
    """What a method says.

    Attributes:
        method: which.
        log_probs: [n, L] log P(l | x), normalised over the labels; a document with NaN is all NaN,
            a choice that a document does not have is -inf.
        temperature: T, None if the method has none.
    """

    method: Method
    log_probs: Floats
    temperature: float | None = None


# --------------------------------------------------------------------------------------------
# bases: log scores [n, L], not normalised
# --------------------------------------------------------------------------------------------


def uniform(readings: Readings, scoring: Scoring | None = None) -> Floats:
    """The same score for every choice that the document has."""
    return np.where(np.isneginf(readings.label_logprobs), -np.inf, 0.0)


def constrained(readings: Readings, scoring: Scoring | None = None) -> Floats:
    """log P(l | x), the exact probability of the whole label."""
    return readings.label_logprobs.astype(np.float64)


def semantic(readings: Readings, scoring: Scoring) -> Floats:
    """log S(l | x) of Semantic Softmax (`core.semantic_softmax`)."""
    return scores.log_scores(readings, scoring, "cosine")


def surprise(readings: Readings, scoring: Scoring, alpha: float = ALPHA) -> Floats:
    """log S(l | x) of surprise-weighted votes, prior correction inside: `corrections.pooled_lift`.

    Args:
        readings: with one label set.
        scoring: anchors, rival votes and K; where the words of a label lie is `SURPRISE`'s.
        alpha: how much surprise counts; the greater, the less everyday tokens do.
    """
    own = replace(scoring, space=SURPRISE.space, tau=SURPRISE.tau, own_vote=SURPRISE.own_vote)
    kernel = scores.kernel_of(readings, own)
    ids, logprobs = readings.topk_ids, readings.topk_logprobs
    pbar = mean_probability(ids, logprobs, len(kernel.weights))
    weights = surprise_weighted(ids, logprobs, pbar, alpha)
    (votes,) = scores.votes_at(readings, kernel, [own.top_k], weights)
    unseen = np.maximum(0.0, 1.0 - np.exp(logprobs, dtype=np.float64).sum(1))
    return pooled_lift(np.exp(readings.label_logprobs, dtype=np.float64), votes, unseen)


# --------------------------------------------------------------------------------------------
# methods
# --------------------------------------------------------------------------------------------

BASES = ("uniform", "constrained", "semantic", "surprise")

METHODS = (
    Method("uniform"),
    Method("constrained"),
    Method("constrained", temperature=True),
    Method("constrained", prior=True),
    Method("constrained", prior=True, temperature=True),
    Method("semantic"),
    Method("semantic", temperature=True),
    Method("semantic", prior=True),
    Method("semantic", prior=True, temperature=True),
    Method("surprise", prior=True),
    Method("surprise", prior=True, temperature=True),
)


def available(
    readings: Readings, scoring: Scoring, kernel: str = "auto", dev: bool = True
) -> list[Method]:
    """The methods that make sense for a task.

    Where neighbours do not vote, the bases that need them are left out. Where documents do not
    share one label set, there is no prior of a label either. Without development documents there
    is no temperature.
    """
    votes = scores.wants_cosine(readings, scoring, kernel)
    shared = readings.label_set is not None
    return [
        m
        for m in METHODS
        if (votes or m.base in ("uniform", "constrained"))
        and (shared or not m.prior)
        and (dev or not m.temperature)
    ]


def answer_all(
    readings: Readings,
    dev: Readings | None = None,
    scoring: Scoring | None = None,
    kernel: str = "auto",
    alpha: float = ALPHA,
) -> list[Answers]:
    """What every method that is available says, in the order of `METHODS`.

    Args:
        readings: the documents to answer; their targets are not looked at.
        dev: other documents, with targets, of the same task and model; T is fitted on them under
            the same method.
        scoring: of the Semantic Softmax; the run's own by default.
        kernel: as in `--model_args`.
        alpha: see `surprise`.

    Raises:
        ValueError: as `scores.kernel_of`, and the development documents have no targets.
    """
    scoring = readings.run_scoring if scoring is None else scoring
    methods = available(readings, scoring, kernel, dev is not None)
    bases = {m.base for m in methods}
    own = _score(readings, bases, scoring, alpha)
    if dev is None:
        return [Answers(m, corrected(own[m.base], m.divides)) for m in methods]
    target, others = dev.gold(), _score(dev, bases, scoring, alpha)
    out = []
    for m in methods:
        log_probs, temperature = corrected(own[m.base], m.divides), None
        if m.temperature:
            temperature = fit_temperature(corrected(others[m.base], m.divides), target)
            log_probs = apply_temperature(log_probs, temperature)
        out.append(Answers(m, log_probs, temperature))
    return out


def corrected(log_scores: Floats, prior: bool) -> Floats:
    """Normalised log-probabilities [n, L], with or without prior correction."""
    return prior_correction(log_scores) if prior else apply_temperature(log_scores, 1.0)


def _score(
    readings: Readings, bases: set[str], scoring: Scoring, alpha: float
) -> Mapping[str, Floats]:
    functions: Mapping[str, Callable[[], Floats]] = {
        "uniform": lambda: uniform(readings),
        "constrained": lambda: constrained(readings),
        "semantic": lambda: semantic(readings, scoring),
        "surprise": lambda: surprise(readings, scoring, alpha),
    }
    return {base: functions[base]() for base in bases}
