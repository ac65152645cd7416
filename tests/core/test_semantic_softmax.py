"""Semantic Softmax against direct transcriptions of its formulas, and its invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_semsoft.core.semantic_softmax import (
    PAPER,
    LabelSet,
    Moments,
    Scoring,
    build_kernel,
    fit_space,
    label_cosines,
    neighbour_votes,
    normalise,
    parse_space,
    parse_tau,
    resolve_scoring,
    semantic_log_scores,
    silent_vote,
)

V, D = 60, 8
LABELS = LabelSet(
    labels=("joy", "anger", "disgust", "disapproval"),
    spelled=((3,), (7,), (11, 12), (11, 13, 14)),
    variants=((3, 20), (7, 21, 22), (), (23,)),
)
SPACES = ["raw", "centered", "pc:1", "pc:3", "whitened"]


def embeddings(seed: int = 0, shift: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V, D, generator=generator) + shift


def distribution(seed: int = 0, peak: float = 2.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(scale=peak, size=V)
    return np.exp(logits - np.log(np.exp(logits).sum()))


def top(p: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-p)[:k]
    return ids.astype(np.int32), np.log(p[ids]).astype(np.float32)


def scores(scoring: Scoring, e: torch.Tensor, p: np.ndarray, own: np.ndarray) -> np.ndarray:
    space = fit_space(e, scoring.space)
    kernel = build_kernel(label_cosines(e, space, LABELS, scoring.anchors), LABELS, scoring)
    votes = neighbour_votes(*top(p, V), kernel, scoring.top_k)
    return semantic_log_scores(np.log(own), votes, scoring)


def own_probabilities(p: np.ndarray) -> np.ndarray:
    return np.array([p[3], p[7], p[11] * 0.4, p[11] * 0.25])


# -- brute force, written from docs/method.md with loops only ----------------------------------


def phi(x: np.ndarray, e: np.ndarray, space: str) -> np.ndarray:
    if space != "raw":
        mean = e.mean(0)
        x = x - mean
        values, vectors = np.linalg.eigh(np.cov(e.T, bias=True))
        if space.startswith("pc"):
            for i in range(1, int(space[3:]) + 1):
                x = x - (x @ vectors[:, -i]) * vectors[:, -i]
        if space == "whitened":
            x = sum((x @ vectors[:, i]) / math.sqrt(values[i]) * vectors[:, i] for i in range(D))
    return x / np.linalg.norm(x)


def brute_force(scoring: Scoring, e: np.ndarray, p: np.ndarray, own: np.ndarray) -> list[float]:
    e = e.astype(np.float64)
    voters = sorted(range(V), key=lambda v: -p[v])[: scoring.top_k]
    spells = [
        ({s[0]} if len(s) == 1 else set()) | (set(v) if scoring.anchors == "variants" else set())
        for s, v in zip(LABELS.spelled, LABELS.variants, strict=True)
    ]
    out = []
    for label, tokens in enumerate(LABELS.spelled):
        if spells[label]:
            anchors = [phi(e[a], e, scoring.space) for a in spells[label]]
        else:
            mean = np.mean([phi(e[t], e, scoring.space) for t in tokens], axis=0)
            anchors = [mean / np.linalg.norm(mean)]
        cos = [max(phi(e[v], e, scoring.space) @ a for a in anchors) for v in range(V)]
        value, quantile = parse_tau(scoring.tau)
        tau = float(np.quantile(cos, value)) if quantile else value
        total = own[label]
        for v in voters:
            if v == tokens[0]:
                continue
            if any(len(s) > 1 and v == s[0] for s in LABELS.spelled):
                continue
            rivals = set().union(*(s for other, s in enumerate(spells) if other != label))
            if scoring.rival_votes == "off" and v in rivals - spells[label]:
                continue
            total += p[v] * max(0.0, cos[v] - tau) / (1 - tau)
        out.append(math.log(total))
    return out


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("anchors", ["variants", "spelled"])
@pytest.mark.parametrize("rival_votes", ["on", "off"])
@pytest.mark.parametrize("tau", [0.2, -0.3, "q0.8"])
def test_scores_equal_brute_force(
    space: str, anchors: str, rival_votes: str, tau: float | str
) -> None:
    scoring = Scoring(space=space, tau=tau, top_k=25, anchors=anchors, rival_votes=rival_votes)
    for seed in range(3):
        e, p = embeddings(seed), distribution(seed)
        own = own_probabilities(p)
        expected = brute_force(scoring, e.numpy(), p, own)
        np.testing.assert_allclose(scores(scoring, e, p, own), expected, atol=2e-5)


def published_formula(
    e: np.ndarray, p: np.ndarray, label_tokens: list[int], k: int = 50, tau: float = 0.8
) -> np.ndarray:
    """P_sem(l) is proportional to sum over the top K of p(v) max(0, cos(E_v, E_l) - tau)."""
    unit = e / np.linalg.norm(e, axis=1, keepdims=True)
    voters = np.argsort(-p)[:k]
    s = np.array(
        [sum(p[v] * max(0.0, unit[v] @ unit[t] - tau) for v in voters) for t in label_tokens]
    )
    return s / s.sum() if s.sum() > 0 else np.full(len(s), 1 / len(s))


@pytest.mark.parametrize("seed", range(5))
def test_paper_preset_is_the_published_formula(seed: int) -> None:
    tokens = [2, 9, 31, 40]
    labels = LabelSet(tuple("abcd"), tuple((t,) for t in tokens), ((), (), (), ()))
    e = embeddings(seed, shift=1.5)  # raw cosines of such rows are high, so that votes exist
    p = distribution(seed)
    cosines = label_cosines(e, fit_space(e, PAPER.space), labels, PAPER.anchors)
    votes = neighbour_votes(*top(p, V), build_kernel(cosines, labels, PAPER), PAPER.top_k)
    got = normalise(semantic_log_scores(np.log(p[tokens]), votes, PAPER))
    expected = published_formula(e.double().numpy(), p, tokens)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_paper_preset_is_uniform_when_nobody_votes() -> None:
    labels = LabelSet(("a", "b"), ((2,), (9,)), ((), ()))
    e = embeddings(shift=0.0)
    p = np.full(V, 1e-9)
    p[0] = 1 - 1e-9 * (V - 1)
    cosines = label_cosines(e, fit_space(e, "raw"), labels, "spelled")
    votes = neighbour_votes(*top(p, 1), build_kernel(cosines, labels, PAPER), 1)
    log_s = semantic_log_scores(np.log(p[[2, 9]]), votes, PAPER)
    assert np.isfinite(log_s).all()
    np.testing.assert_allclose(normalise(log_s), 0.5)


@given(seed=st.integers(0, 10_000), space=st.sampled_from(SPACES), k=st.integers(1, V))
@settings(max_examples=40, deadline=None)
def test_sums_to_one_and_never_less_than_the_own_vote(seed: int, space: str, k: int) -> None:
    p = distribution(seed)
    own = own_probabilities(p)
    log_s = scores(Scoring(space=space, top_k=k, tau="q0.7"), embeddings(seed), p, own)
    assert normalise(log_s).sum() == pytest.approx(1.0)
    assert (log_s >= np.log(own) - 1e-9).all()


@given(seed=st.integers(0, 10_000), space=st.sampled_from(SPACES[1:]))
@settings(max_examples=30, deadline=None)
def test_a_constant_added_to_every_row_changes_nothing(seed: int, space: str) -> None:
    """The model's softmax does not see such a constant, so scores must not see it either."""
    e, p = embeddings(seed), distribution(seed)
    moved = e + torch.randn(D, generator=torch.Generator().manual_seed(seed + 1))
    scoring = Scoring(space=space, tau=0.3)
    own = own_probabilities(p)
    np.testing.assert_allclose(
        scores(scoring, e, p, own), scores(scoring, moved, p, own), atol=1e-4
    )


@pytest.mark.parametrize("space", SPACES)
def test_spaces_may_share_their_moments(space: str) -> None:
    e, rows = embeddings(3).bfloat16(), embeddings(3).bfloat16().double().numpy()
    moments = Moments(e)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(moments.covariance, np.cov(rows.T, bias=True), atol=1e-5)
    fit_space(e, "whitened", moments)
    alone, shared = fit_space(e, space)(e), fit_space(e, space, moments)(e)
    assert torch.equal(alone, shared)


def test_raw_space_does_see_a_constant() -> None:
    e, p = embeddings(), distribution()
    own = own_probabilities(p)
    scoring = Scoring(space="raw", tau=0.3)
    assert not np.allclose(scores(scoring, e, p, own), scores(scoring, e + 3.0, p, own), atol=1e-2)


@given(seed=st.integers(0, 10_000), k=st.integers(1, V - 1), tau=st.floats(-0.9, 0.9))
@settings(max_examples=40, deadline=None)
def test_monotone_in_k_and_tau(seed: int, k: int, tau: float) -> None:
    e, p = embeddings(seed), distribution(seed)
    own = own_probabilities(p)

    def at(k: int, tau: float) -> np.ndarray:
        return scores(Scoring(space="centered", tau=tau, top_k=k), e, p, own)

    assert (at(k + 1, tau) >= at(k, tau) - 1e-6).all()  # more voters, no less vote
    assert (at(k, tau) >= at(k, min(tau + 0.05, 0.95)) - 1e-6).all()  # a stricter door


@given(order=st.permutations(range(4)), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_label_order_does_not_matter(order: list[int], seed: int) -> None:
    e, p = embeddings(seed), distribution(seed)
    scoring = Scoring(tau="q0.8", space="pc:1")
    space = fit_space(e, scoring.space)
    shuffled = LabelSet(*(tuple(x[i] for i in order) for x in vars(LABELS).values()))

    def at(labels: LabelSet, own: np.ndarray) -> np.ndarray:
        kernel = build_kernel(label_cosines(e, space, labels), labels, scoring)
        votes = neighbour_votes(*top(p, V), kernel, scoring.top_k)
        return semantic_log_scores(np.log(own), votes, scoring)

    own = own_probabilities(p)
    np.testing.assert_allclose(at(LABELS, own)[order], at(shuffled, own[order]), atol=1e-6)


@pytest.mark.parametrize("tau", ["q0.9", 0.5])
def test_a_silent_neighbourhood_leaves_the_constrained_softmax(tau: float | str) -> None:
    """Whatever tau: the own vote has weight one for every label."""
    p = distribution()
    own = own_probabilities(p)
    kernel = build_kernel(np.zeros((V, 4), dtype=np.float32), LABELS, Scoring(tau=0.0))
    assert not kernel.neighbours.any()
    votes = neighbour_votes(*top(p, V), kernel, 10)
    log_s = semantic_log_scores(np.log(own), votes, Scoring(tau=tau))
    np.testing.assert_allclose(normalise(log_s), own / own.sum(), rtol=1e-12)


def test_first_piece_of_a_long_label_votes_for_nobody() -> None:
    cosines = np.ones((V, 4), dtype=np.float32)
    for rivals in ("on", "off"):
        kernel = build_kernel(cosines, LABELS, Scoring(tau=0.0, rival_votes=rivals))
        assert not kernel.weights[11].any()  # "dis", of disgust and disapproval
        assert kernel.weights[3, 0] == 0  # a label is not its own neighbour
        assert kernel.weights[20, 0] == 1  # but its other spelling is
        assert (kernel.weights[3, 1] > 0) == (rivals == "on")
        assert (kernel.weights[23, 0] > 0) == (rivals == "on")


def test_rivals_that_share_a_variant_do_not_vote_as_asked() -> None:
    """Of "us" and "US" each spells the other's variant, but only one token each is asked for."""
    labels = LabelSet(("us", "US"), ((1,), (2,)), ((1, 2, 5), (1, 2, 5)))
    kernel = build_kernel(np.ones((V, 2), dtype=np.float32), labels, Scoring(tau=0.0))
    assert kernel.weights[1].tolist() == [0, 0]
    assert kernel.weights[2].tolist() == [0, 0]
    assert kernel.weights[5].tolist() == [1, 1]


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_rival_votes_are_silenced_under_every_preset(preset: str) -> None:
    cosines = np.ones((V, 4), dtype=np.float32)
    on, off = (
        build_kernel(cosines, LABELS, resolve_scoring(preset, rival_votes=switch)).weights
        for switch in ("on", "off")
    )
    assert on[3, 1] > 0
    assert off[3, 1] == 0


@given(st.integers(0, 2**32 - 1), st.floats(0, 700))
def test_tiny_probabilities_keep_their_order(seed: int, depth: float) -> None:
    """Own votes far below the smallest float32 still decide a silent document."""
    own = np.array([-depth - 1.0, -depth])
    log_s = semantic_log_scores(own, np.zeros(2), Scoring())
    np.testing.assert_allclose(log_s, own)
    np.testing.assert_allclose(normalise(log_s), [1 / (1 + math.e), math.e / (1 + math.e)])


def test_silent_vote_is_the_neighbours_share() -> None:
    assert silent_vote(math.log(0.5), math.log(0.2)) == pytest.approx(0.6)
    assert silent_vote(-3.0, -3.0) == 0.0
    assert silent_vote(-3.0, -2.9) == 0.0  # rounding never makes it negative


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scoring": "semantics"}, ["scoring='semantics'", "constrained", "'semantic'"]),
        ({"space": "whitend"}, ["space='whitend'", "'whitened'"]),
        ({"space": "pc:0"}, ["space='pc:0'"]),
        ({"tau": 1.5}, ["tau=1.5", "[-1, 1)"]),
        ({"tau": "q2"}, ["tau='q2'", "quantile"]),
        ({"tau": float("nan")}, ["tau=nan"]),
        ({"tau": "high"}, ["tau='high'"]),
        ({"top_k": 0}, ["top_k=0", "at least 1"]),
        ({"top_k": 2.5}, ["top_k=2.5"]),
        ({"anchors": "variant"}, ["anchors='variant'", "'variants'"]),
        ({"rival_votes": "of"}, ["rival_votes='of'", "'off'"]),
        ({"preset": "papers"}, ["preset='papers'", "'paper'"]),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked below
        resolve_scoring(**arguments)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)
    assert str(error.value).count("\n") == 0


def test_presets_and_overrides() -> None:
    assert resolve_scoring() == Scoring()
    paper = resolve_scoring("paper", tau=0.7)
    assert (paper.tau, paper.top_k, paper.space, paper.own_vote) == (0.7, 50, "raw", "top-k")
    assert parse_space("pc:12") == ("pc", 12)
    assert parse_tau("q0.999") == (0.999, True)
