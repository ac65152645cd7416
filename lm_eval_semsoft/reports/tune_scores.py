"""The scores of every cell of a grid, from work that cells share.

How it is fast: cosines once per space and anchors; only tokens that are among the top K of some
document are looked at; of those only the ones that vote; the votes for all K come from one pass
over bands of ranks; the kernels of `rival_votes=on` and `off` share all rows but those of tokens
that spell a label. The scores are those of `scores.log_scores` up to float32 rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import (
    Scoring,
    build_kernel,
    parse_tau,
    semantic_log_scores,
)

from . import scores
from .readings import Readings
from .tune_grid import Floats, Tau


def many_log_scores(
    readings: Readings, scorings: Sequence[Scoring]
) -> Iterator[tuple[Scoring, Floats]]:
    """log S [n, L] of every scoring, each once, in the order that is quickest.

    The votes are those of `scores.votes_at` but for the order of summation.

    Args:
        scorings: with the exact own vote; K at most what the readouts hold.
    """
    assert readings.label_set is not None
    cells = sorted(set(scorings), key=lambda s: (s.anchors, s.space, str(s.tau)))
    voices = _Voices(readings, sorted({s.top_k for s in cells}))
    for which, of_anchors in itertools.groupby(cells, lambda s: s.anchors):
        own = list(of_anchors)
        switches = sorted({s.rival_votes for s in own})
        silencer = _Silencer(readings, voices.tokens, which, switches)
        for space, of_space in itertools.groupby(own, lambda s: s.space):
            group = list(of_space)
            cosines = readings.source.cosines(readings.label_set, space, which)
            limits = thresholds(cosines, list(dict.fromkeys(s.tau for s in group)))
            heard = cosines[voices.tokens]
            for tau, of_tau in itertools.groupby(group, lambda s: s.tau):
                weights = np.maximum(heard - limits[tau], 0.0, dtype=np.float32)
                votes = silencer.votes(voices, weights / (1 - limits[tau]))
                for scoring in of_tau:
                    given = votes[scoring.rival_votes, scoring.top_k]
                    yield scoring, semantic_log_scores(readings.label_logprobs, given, scoring)


def thresholds(cosines: NDArray[np.float32], taus: Sequence[Tau]) -> dict[Tau, NDArray[np.float32]]:
    """tau_l of every tau, [L] each, as `build_kernel` sets it, from cosines [V, L] sorted once."""
    ranked = np.sort(cosines.T, axis=1)  # a quantile of sorted values takes no search
    out = {}
    for tau in taus:
        value, quantile = parse_tau(tau)
        own = np.quantile(ranked, value, axis=1) if quantile else np.full(len(ranked), value)
        out[tau] = np.minimum(own, 1.0 - 1e-6).astype(np.float32)
    return out


class _Voices:
    """What the documents' top-K tokens say, in bands of ranks.

    Attributes:
        tokens: [S] ids of all tokens that are among the top K of some document.
    """

    def __init__(self, readings: Readings, top_ks: Sequence[int]) -> None:
        ids = readings.topk_ids[:, : top_ks[-1]]
        p = np.exp(readings.topk_logprobs[:, : top_ks[-1]])
        self.tokens = np.flatnonzero(np.bincount(ids.ravel()))
        place = np.zeros(self.tokens[-1] + 1, dtype=np.int32)
        place[self.tokens] = np.arange(len(self.tokens))
        self._bands: list[tuple[int, scipy.sparse.csc_array]] = []
        for start, end in itertools.pairwise((0, *top_ks)):
            band = scores.token_matrix(place[ids[:, start:end]], p[:, start:end], len(self.tokens))
            self._bands.append((end, band.tocsc()))

    def votes(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> dict[int, Floats]:
        """K -> sum over the top K of p(v|x) w(v, l), [n, L], for w [S, L] in some of its rows."""
        some = weights[rows]
        loud = some @ np.ones(some.shape[1], dtype=np.float32) > 0
        voters, own = rows[loud], some[loud].astype(np.float64)
        out, total = {}, np.zeros((self._bands[0][1].shape[0], weights.shape[1]))
        for top_k, band in self._bands:
            total = total + band[:, voters] @ own
            out[top_k] = total
        return out


class _Silencer:
    """Who may vote for whom, however near; the answer is the same for nearly all tokens."""

    def __init__(
        self,
        readings: Readings,
        tokens: NDArray[np.intp],
        anchors: str,
        switches: Sequence[str],
    ) -> None:
        assert readings.label_set is not None
        everywhere = np.ones((readings.vocabulary, len(readings.labels)), dtype=np.float32)
        self._allowed: dict[str, NDArray[np.float32]] = {}
        for switch in switches:
            # The kernel of tokens that are all equally near to everything: 1 or silenced.
            scoring = Scoring(tau=0.0, anchors=anchors, rival_votes=switch)
            kernel = build_kernel(everywhere, readings.label_set, scoring)
            self._allowed[switch] = kernel.weights[tokens]
        first = self._allowed[switches[0]]
        differs = [(mask != first).any(axis=1) for mask in self._allowed.values()]
        self._split = np.logical_or.reduce(differs)

    def votes(self, voices: _Voices, weights: NDArray[np.float32]) -> dict[tuple[str, int], Floats]:
        """(rival votes, K) -> votes [n, L], from weights before anybody is silenced."""
        some, all_others = np.flatnonzero(self._split), np.flatnonzero(~self._split)
        shared: dict[int, Floats] = {}
        out = {}
        for switch, allowed in self._allowed.items():
            audible = weights * allowed
            shared = shared or voices.votes(audible, all_others)
            for top_k, votes in voices.votes(audible, some).items():
                out[switch, top_k] = shared[top_k] + votes
        return out
