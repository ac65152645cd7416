"""Where the score of every label comes from, for one prompt: own vote, silent vote, who cast it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import (
    Kernel,
    Scoring,
    neighbour_votes,
    normalise,
    semantic_log_scores,
)
from lm_eval_semsoft.engine.readout import Readout

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NextToken:
    """A token that the model might have said next.

    Attributes:
        token: its text.
        token_id: its row of the vocabulary.
        probability: p(v|x).
    """

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class Vote:
    """What one token gives a label: p(v|x) w(v,l).

    Attributes:
        token, token_id, probability: as for `NextToken`.
        weight: w(v,l).
        vote: probability times weight.
        share: vote / S(l|x).
    """

    token: str
    token_id: int
    probability: float
    weight: float
    vote: float
    share: float


@dataclass(frozen=True)
class LabelRow:
    """One label. `score` = S(l|x) = `own_vote` + `silent_vote`.

    Attributes:
        label: its text.
        constrained: P(l|x) / sum over labels of P, the standard softmax over the label words.
        semantic: S(l|x) / sum over labels of S; what the scoring in force says.
        log_score: log S(l|x), what the harness gets (nats).
        score: S(l|x).
        own_vote: P(l|x); under the published formula what the label's own first token gives it.
        silent_vote: what all other tokens of the top K give it.
        silent_share: silent_vote / score, 0 for a label without any vote.
        neighbours: tokens of the vocabulary that vote for it, if they are probable enough.
        voters: those of them that are among the top K here.
        votes: the strongest ones, the strongest first.
    """

    label: str
    constrained: float
    semantic: float
    log_score: float
    score: float
    own_vote: float
    silent_vote: float
    silent_share: float
    neighbours: int
    voters: int
    votes: tuple[Vote, ...]


@dataclass(frozen=True)
class Mass:
    """Where the next-token probability is; the four parts make 1.

    Attributes:
        labels: on the labels themselves, whole ones.
        voted: on tokens of the top K that vote for a label and begin none.
        others: on the rest of the top K.
        beyond_top_k: on tokens that the scoring does not look at.
    """

    labels: float
    voted: float
    others: float
    beyond_top_k: float


@dataclass(frozen=True)
class Explanation:
    """All that `semsoft explain` shows.

    Attributes:
        rows: one per label, the most probable one (`semantic`) first.
        mass: where the next-token probability is.
        next_tokens: the most probable next tokens.
        top_k: how many tokens may vote: K, or the vocabulary if that is smaller.
        voters: how many of them vote for some label.
        shared_start: the token that all labels begin with, if they do. Then the answer position
            is in front of it, where neighbours of the labels have no say yet.
        entropy: of the next-token distribution (nats).
    """

    rows: tuple[LabelRow, ...]
    mass: Mass
    next_tokens: tuple[NextToken, ...]
    top_k: int
    voters: int
    shared_start: str | None
    entropy: float


def explain(
    labels: Sequence[str],
    readout: Readout,
    kernel: Kernel | None,
    scoring: Scoring,
    text_of: Callable[[int], str],
    top: int = 8,
    n_next: int = 10,
) -> Explanation:
    """Take the scores of one answer position apart.

    Args:
        labels: [L], in the order of the readout's label log-probabilities.
        readout: of the answer position.
        kernel: voting weights [V, L] in the same order; None if nobody votes (constrained scoring,
            identity kernel).
        scoring: says how many tokens vote and whose own vote counts.
        text_of: token id -> its text.
        top: at most so many votes are listed per label.
        n_next: so many next tokens are listed.
    """
    top_k = min(scoring.top_k, len(readout.topk_ids))
    ids = readout.topk_ids[:top_k]
    p = np.exp(readout.topk_logprobs[:top_k], dtype=np.float64)
    votes, own, log_scores = _votes(readout, kernel, scoring, ids, p)
    silent = votes.sum(0)
    score = np.exp(log_scores)
    constrained, semantic = normalise(readout.label_logprobs), normalise(log_scores)

    def row(i: int) -> LabelRow:
        total = own[i] + silent[i]
        strongest = np.argsort(-votes[:, i], kind="stable")[:top]
        return LabelRow(
            label=labels[i],
            constrained=float(constrained[i]),
            semantic=float(semantic[i]),
            log_score=float(log_scores[i]),
            score=float(score[i]),
            own_vote=float(own[i]),
            silent_vote=float(silent[i]),
            silent_share=float(silent[i] / total) if total > 0 else 0.0,
            neighbours=0 if kernel is None else int(kernel.neighbours[i]),
            voters=int(np.count_nonzero(votes[:, i])),
            votes=tuple(
                Vote(
                    token=text_of(int(ids[v])),
                    token_id=int(ids[v]),
                    probability=float(p[v]),
                    weight=float(votes[v, i] / p[v]),
                    vote=float(votes[v, i]),
                    share=float(votes[v, i] / total),
                )
                for v in strongest
                if votes[v, i] > 0
            ),
        )

    order = sorted(range(len(labels)), key=lambda i: (-semantic[i], -constrained[i]))
    first = set(readout.label_first.tolist())
    return Explanation(
        rows=tuple(row(i) for i in order),
        mass=_mass(readout, votes, ids, p),
        next_tokens=tuple(
            NextToken(text_of(int(v)), int(v), float(np.exp(logp)))
            for v, logp in zip(
                readout.topk_ids[:n_next], readout.topk_logprobs[:n_next], strict=True
            )
        ),
        top_k=top_k,
        voters=int(np.count_nonzero(votes.any(1))),
        shared_start=text_of(first.pop()) if len(first) == 1 < len(labels) else None,
        entropy=float(readout.entropy),
    )


def _votes(
    readout: Readout, kernel: Kernel | None, scoring: Scoring, ids: NDArray[np.int32], p: Floats
) -> tuple[Floats, Floats, Floats]:
    """What each token gives each label [K, L] apart from the own votes [L], and log S [L]."""
    exact = np.exp(readout.label_logprobs, dtype=np.float64)
    if kernel is None:
        return np.zeros((len(ids), len(exact))), exact, readout.label_logprobs.astype(np.float64)
    given = neighbour_votes(readout.topk_ids, readout.topk_logprobs, kernel, scoring.top_k)
    log_scores = semantic_log_scores(readout.label_logprobs, given, scoring)
    votes = p[:, None] * kernel.weights[ids]
    own_token = ids[:, None] == readout.label_first
    own = np.where(own_token, votes, 0.0).sum(0) if scoring.own_vote == "top-k" else exact
    return np.where(own_token, 0.0, votes), own, log_scores


def _mass(readout: Readout, votes: Floats, ids: NDArray[np.int32], p: Floats) -> Mass:
    exact = np.exp(readout.label_logprobs, dtype=np.float64)
    first, label_of = np.unique(readout.label_first, return_inverse=True)
    on_labels = np.bincount(label_of, weights=exact)
    # A label that goes on where another one ends (joy, joyful) is part of that one's mass.
    seen = {int(v): float(q) for v, q in zip(ids, p, strict=True)}
    limit = np.array([seen.get(int(v), np.inf) for v in first])
    on_labels = np.minimum(on_labels, limit)
    voted = float(p[votes.any(1) & ~np.isin(ids, first)].sum())
    labels, unseen_labels = float(on_labels.sum()), float(on_labels[np.isinf(limit)].sum())
    beyond = max(0.0, 1.0 - float(p.sum()) - unseen_labels)
    return Mass(labels, voted, max(0.0, 1.0 - labels - voted - beyond), beyond)
