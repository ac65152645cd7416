"""Semantic Softmax: label scores that add the probability of semantic neighbours.

Standard scoring of a label set keeps the probability of each label word and throws the rest of
the next-token distribution away. Semantic Softmax ("The Silent Vote", arXiv 2605.09739) lets every
token v of the top K vote for label l with weight w(v, l), a thresholded cosine of output
embeddings:

    cos(v, l)  = max over anchors a of l of  cos(phi(E_v), phi(E_a))
    w(v, l)    = max(0, cos(v, l) - tau_l) / (1 - tau_l)                      in [0, 1]
    S(l | x)   = P(l | x)  +  sum over v in top-K(x), v votes for l, of  p(v | x) w(v, l)
    P_sem(l|x) = S(l | x) / sum over labels of S

Dividing by (1 - tau_l) gives the label itself weight 1, so S is "own vote + silent vote", and a
silent neighbourhood leaves exactly the standard softmax. For one tau it changes no P_sem. The
published formula, where tau is one number, K = 50 and the label itself votes only from inside
the top K, is `PAPER`. docs/method.md derives all of it.

Everything here is a pure function of arrays; V is the vocabulary, d the embedding width, L the
number of labels, K the number of stored tokens.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

from .errors import check_choice

SCORINGS = ("semantic", "constrained")
ANCHORS = ("variants", "spelled")
SWITCH = ("on", "off")
SPACES = ("raw", "centered", "pc:N", "whitened")

# What log S is for a label that got no vote at all (only possible under the published formula):
# finite, so that a document in which nobody votes gets the uniform distribution instead of NaN.
LOG_SILENCE = float(np.log(np.finfo(np.float64).tiny))

_FIT_ROWS = 65536  # rows that principal directions are fitted on, evenly spaced over the vocabulary
# Vocabulary rows in flight: no second copy of E is ever made, and what is made stays in the cache.
_ROWS = 1024


# --------------------------------------------------------------------------------------------
# parameters
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scoring:
    """How a readout becomes label scores. Every field is a `--model_args` name.

    Attributes:
        scoring: `semantic`, or `constrained` for the standard softmax over exact label
            probabilities.
        space: phi, the space of the cosines: `raw`, `centered`, `pc:N`, `whitened`.
        tau: threshold in [-1, 1), or `q0.95` for that quantile of the label's cosines over the
            vocabulary.
        top_k: K, the number of most probable tokens that may vote.
        anchors: `variants` (every single-token spelling of the label) or `spelled`.
        rival_votes: may a token that spells another label vote for this one?
        own_vote: `exact` (the whole label's probability), or `top-k` (the published formula).
    """

    scoring: str = "semantic"
    space: str = "pc:3"
    tau: float | str = "q0.95"
    top_k: int = 1000
    anchors: str = "variants"
    rival_votes: str = "off"
    own_vote: str = "exact"

    def __post_init__(self) -> None:
        check_choice("scoring", self.scoring, SCORINGS)
        check_choice("anchors", self.anchors, ANCHORS)
        check_choice("rival_votes", self.rival_votes, SWITCH)
        check_choice("own_vote", self.own_vote, ("exact", "top-k"))
        parse_space(self.space)
        parse_tau(self.tau)
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise ValueError(f"top_k={self.top_k!r}: K must be a whole number of at least 1.")


def parse_space(space: str) -> tuple[str, int]:
    """Split a space into (kind, number of removed directions).

    Raises:
        ValueError: for anything but `raw`, `centered`, `pc:N` with N >= 1, `whitened`.
    """
    if isinstance(space, str) and (found := re.fullmatch(r"pc:([1-9]\d*)", space)):
        return "pc", int(found[1])
    check_choice("space", space, [s for s in SPACES if s != "pc:N"] + ["pc:3"])
    return space, 0


def parse_tau(tau: float | str) -> tuple[float, bool]:
    """Split a threshold into (value, is it a quantile).

    Raises:
        ValueError: for a number outside [-1, 1), a quantile outside [0, 1), or other text.
    """
    rule = "a number in [-1, 1), or a quantile of the label's cosines such as 'q0.999'"
    if isinstance(tau, str) and tau.startswith("q"):
        number, low, quantile = tau[1:], 0.0, True
    else:
        number, low, quantile = str(tau), -1.0, False
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"tau={tau!r}: must be {rule}.") from None
    if not low <= value < 1.0:
        raise ValueError(f"tau={tau!r}: must be {rule}.")
    return value, quantile


PAPER = Scoring(
    space="raw", tau=0.8, top_k=50, anchors="spelled", rival_votes="on", own_vote="top-k"
)
PRESETS = {"default": Scoring(), "paper": PAPER}


def resolve_scoring(preset: str | None = None, **given: object) -> Scoring:
    """The scoring of a preset (`default` or `paper`) with single arguments replaced.

    Arguments that are None keep the preset's value.

    Raises:
        ValueError: an unknown preset or value, naming it and the nearest valid one.
    """
    name = "default" if preset is None else preset
    check_choice("preset", name, tuple(PRESETS))
    known = {f.name for f in fields(Scoring)}
    if unknown := set(given) - known:
        raise ValueError(f"Unknown scoring argument {sorted(unknown)}; known: {sorted(known)}.")
    return replace(PRESETS[name], **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------
# the space phi
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """A fitted phi: subtract the mean, remove directions, whiten, normalise.

    Attributes:
        mean: [d], float32, what is subtracted (zero for `raw`).
        removed: [d, N], float32, orthonormal directions that are projected out, or None.
        whitening: [d, d], float32, or None.
    """

    mean: torch.Tensor
    removed: torch.Tensor | None = None
    whitening: torch.Tensor | None = None

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Map [n, d] vectors to [n, d] unit vectors (zero vectors stay zero)."""
        x = vectors.to(self.mean) - self.mean
        if self.removed is not None:
            x -= (x @ self.removed) @ self.removed.T
        if self.whitening is not None:
            x = x @ self.whitening
        return x.div_(x.norm(dim=-1, keepdim=True).clamp_min_(1e-12))


class Moments:
    """Mean and covariance of E's rows, each computed once: what spaces of one E share.

    Args:
        embeddings: [V, d], any float type, on any device.
    """

    def __init__(self, embeddings: torch.Tensor) -> None:
        self.embeddings = embeddings

    @cached_property
    def mean(self) -> torch.Tensor:
        """[d], float32."""
        e = self.embeddings
        # Sums of sums in float64 on the CPU: some devices have no float64.
        total = torch.zeros(e.shape[1], dtype=torch.float64)
        for chunk in e.split(_ROWS):
            total += chunk.float().sum(0).cpu()
        return (total / len(e)).to(e.device, torch.float32)

    @cached_property
    def covariance(self) -> torch.Tensor:
        """[d, d], float32, of `_FIT_ROWS` rows that are evenly spaced over the vocabulary."""
        e, d = self.embeddings, self.embeddings.shape[1]
        found = torch.zeros(d, d, device=e.device)
        sample = e[:: -(-len(e) // _FIT_ROWS)]
        for chunk in sample.split(_ROWS):
            centred = chunk.float() - self.mean
            found += centred.T @ centred / len(sample)
        return found


def fit_space(embeddings: torch.Tensor, space: str, moments: Moments | None = None) -> Space:
    """Fit phi on the output-embedding matrix E.

    A softmax does not change when one vector is added to every row of E, so cosines of raw rows
    are not identified by the model; those of the other spaces are. `pc:N` also removes the top N
    principal directions, where token frequency lives (Mu & Viswanath 2018, "All-but-the-Top").

    Args:
        embeddings: [V, d], any float type, on any device.
        space: see `Scoring`.
        moments: of these embeddings, where several spaces are fitted.
    """
    kind, n_directions = parse_space(space)
    d = embeddings.shape[1]
    if kind == "raw":
        return Space(torch.zeros(d, device=embeddings.device))
    moments = moments or Moments(embeddings)
    if kind == "centered":
        return Space(moments.mean)
    wanted = min(n_directions, d - 1) if kind == "pc" else d
    eigenvalues, directions = _principal_directions(moments.covariance, wanted)
    if kind == "pc":
        return Space(moments.mean, removed=directions)
    # Directions without variance carry no information and would only amplify rounding.
    scale = eigenvalues.clamp_min(1e-6 * eigenvalues[-1].item()).rsqrt()
    return Space(moments.mean, whitening=directions * scale)


def _principal_directions(covariance: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The n largest eigenvalues of a covariance [d, d], ascending: [n], and vectors [d, n]."""
    d = len(covariance)
    found = scipy.linalg.eigh(covariance.cpu().double().numpy(), subset_by_index=[d - n, d - 1])
    eigenvalues, directions = (torch.as_tensor(x, dtype=torch.float32) for x in found)
    return eigenvalues.to(covariance.device), directions.to(covariance.device)


# --------------------------------------------------------------------------------------------
# labels and their kernel
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelSet:
    """Labels as the model spells them at the answer position.

    Attributes:
        labels: [L] the label texts.
        spelled: [L] token ids of each label as the prompt continues with it.
        variants: [L] ids of the single tokens that spell the label in some surface form
            (leading space, case); may be empty.
    """

    labels: tuple[str, ...]
    spelled: tuple[tuple[int, ...], ...]
    variants: tuple[tuple[int, ...], ...]

    def anchors(self, which: str = "variants") -> list[list[int]]:
        """Single-token anchors of each label; an empty list asks for a composite anchor."""
        single = [[s[0]] if len(s) == 1 else [] for s in self.spelled]
        if which == "spelled":
            return single
        return [sorted({*own, *more}) for own, more in zip(single, self.variants, strict=True)]


def label_cosines(
    embeddings: torch.Tensor, space: Space, labels: LabelSet, anchors: str = "variants"
) -> NDArray[np.float32]:
    """cos(v, l) of every token with every label: [V, L], in [-1, 1].

    A label without a single-token anchor gets one composite anchor, the normalised mean of its
    tokens' vectors.
    """
    vectors, sizes = _anchor_vectors(embeddings, space, labels, anchors)
    out = torch.empty(len(labels.labels), len(embeddings))
    for chunk, columns in zip(embeddings.split(_ROWS), out.split(_ROWS, dim=1), strict=True):
        cosines = vectors @ space(chunk).T
        for label, of_label in enumerate(cosines.split(sizes)):
            columns[label] = of_label.amax(0)
    return np.ascontiguousarray(out.clamp_(-1.0, 1.0).numpy().T)


def _anchor_vectors(
    e: torch.Tensor, space: Space, labels: LabelSet, anchors: str
) -> tuple[torch.Tensor, list[int]]:
    """The anchors of all labels, one after the other [A, d], and how many each label has."""
    vectors = []
    for label, ids in enumerate(labels.anchors(anchors)):
        if ids:
            rows = space(e[torch.tensor(ids, device=e.device)])
        else:
            pieces = space(e[torch.tensor(labels.spelled[label], device=e.device)])
            rows = torch.nn.functional.normalize(pieces.mean(0, keepdim=True), dim=-1)
        vectors.append(rows)
    return torch.cat(vectors), [len(rows) for rows in vectors]


@dataclass(frozen=True)
class Kernel:
    """Voting weights of one label set.

    Attributes:
        weights: [V, L] float32, w(v, l); zero where v has no vote for l.
        tau: [L] float32, the threshold of each label.
        neighbours: [L] how many tokens vote for each label.
    """

    weights: NDArray[np.float32]
    tau: NDArray[np.float32]

    @property
    def neighbours(self) -> NDArray[np.int64]:
        return np.asarray(np.count_nonzero(self.weights, axis=0), dtype=np.int64)


def build_kernel(cosines: NDArray[np.float32], labels: LabelSet, scoring: Scoring) -> Kernel:
    """Threshold the cosines [V, L] and take the votes away that would count twice.

    Under the exact own vote, a label's first token and the first piece of any longer label are
    part of an own vote already, so they are nobody's neighbour. `rival_votes=off` also silences,
    for l, the tokens that spell another label.
    """
    value, quantile = parse_tau(scoring.tau)
    n_labels = cosines.shape[1]
    tau = np.quantile(cosines, value, axis=0) if quantile else np.full(n_labels, value)
    # A label whose every cosine is 1 (a one-token vocabulary, say) has no neighbourhood at all.
    tau = np.minimum(tau, 1.0 - 1e-6).astype(np.float32)
    weights = np.maximum(cosines - tau, 0.0, dtype=np.float32)
    if scoring.rival_votes == "off":
        _silence_rivals(weights, labels, scoring.anchors)
    if scoring.own_vote == "top-k":
        return Kernel(weights, tau)
    weights /= 1.0 - tau
    for label, tokens in enumerate(labels.spelled):
        weights[tokens[0], slice(None) if len(tokens) > 1 else label] = 0.0
    return Kernel(weights, tau)


def _silence_rivals(weights: NDArray[np.float32], labels: LabelSet, which: str) -> None:
    """Silence, for each label, what spells another one.

    A variant that two labels share (of "us" and "US", say) stays with both, but the token that the
    prompt asks for is one label's alone.
    """
    anchors = labels.anchors(which)
    for label, own in enumerate(anchors):
        others = [other for other in range(len(anchors)) if other != label]
        rivals = {a for other in others for a in anchors[other]} - set(own)
        asked = {labels.spelled[other][0] for other in others if len(labels.spelled[other]) == 1}
        weights[sorted(rivals | (asked - {labels.spelled[label][0]})), label] = 0.0


# --------------------------------------------------------------------------------------------
# scores
# --------------------------------------------------------------------------------------------


def neighbour_votes(
    topk_ids: NDArray[np.integer],
    topk_logprobs: NDArray[np.floating],
    kernel: Kernel,
    top_k: int,
) -> NDArray[np.float64]:
    """What the K most probable tokens give each label: sum of p(v | x) w(v, l), [L].

    Args:
        topk_ids, topk_logprobs: [>= K] most probable next tokens, most probable first.
        kernel: voting weights of the label set.
        top_k: K; more than there are means all.
    """
    p = np.exp(topk_logprobs[:top_k], dtype=np.float32)
    return np.asarray(p @ kernel.weights[topk_ids[:top_k]], dtype=np.float64)


def semantic_log_scores(
    label_logprobs: NDArray[np.floating], votes: NDArray[np.floating], scoring: Scoring
) -> NDArray[np.float64]:
    """log S(l | x), not normalised over labels: [L] (natural log).

    Args:
        label_logprobs: [L] exact log P(l | x) of whole labels.
        votes: [L] from `neighbour_votes`.
        scoring: says whose own vote counts.
    """
    with np.errstate(divide="ignore"):
        silent = np.log(votes)
    if scoring.own_vote == "top-k":
        return np.asarray(np.maximum(silent, LOG_SILENCE))
    return np.asarray(np.logaddexp(label_logprobs.astype(np.float64), silent))


def normalise(log_scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """P(l) from log scores [..., L]: the softmax over the last axis."""
    scores = log_scores.astype(np.float64)
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def silent_vote(log_score: float, log_own: float) -> float:
    """Share of a label's score that came from its neighbours, in [0, 1].

    The published formula may leave the own vote out; then the share is 0, not more than all.
    """
    return -math.expm1(min(0.0, log_own - log_score))
