"""`reports.explain` against loops over tokens and labels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_semsoft.core.semantic_softmax import PAPER, Kernel, Scoring
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.reports.explain import Explanation, explain

V = 40


def make_readout(first: list[int], tails: list[float], stored: int, seed: int) -> Readout:
    """A random distribution; label i is token first[i], and a rest of log-probability tails[i]."""
    logits = np.random.default_rng(seed).normal(scale=3.0, size=V)
    logp = logits - np.logaddexp.reduce(logits)
    order = np.argsort(-logp)[:stored]
    return Readout(
        topk_ids=order.astype(np.int32),
        topk_logprobs=logp[order].astype(np.float32),
        label_logprobs=(logp[first] + tails).astype(np.float32),
        label_greedy=np.zeros(len(first), dtype=bool),
        label_first=np.array(first, dtype=np.int32),
        entropy=float(-(np.exp(logp) * logp).sum()),
        nucleus_sizes=np.ones(4, dtype=np.int32),
        nucleus_entropies=np.ones(4, dtype=np.float32),
    )


def make_kernel(first: list[int], own: bool, seed: int) -> Kernel:
    """Random weights, most of them zero; a label's own token has one only if `own`."""
    weights = np.random.default_rng(seed).uniform(-1.0, 1.0, size=(V, len(first))).clip(0)
    for label, token in enumerate(first):
        weights[token, label] = 0.2 if own else 0.0
    return Kernel(weights.astype(np.float32), np.full(len(first), 0.8, dtype=np.float32))


def by_hand(readout: Readout, kernel: Kernel | None, top_k: int, paper: bool):
    """Per label: own vote and {token: vote}, straight from the formulas of docs/method.md."""
    out = []
    for label, log_own in enumerate(readout.label_logprobs.tolist()):
        own, votes = (0.0 if paper and kernel else math.exp(log_own)), {}
        if kernel is not None:
            pairs = zip(readout.topk_ids.tolist(), readout.topk_logprobs.tolist(), strict=True)
            for token, logp in list(pairs)[:top_k]:
                vote = math.exp(logp) * float(kernel.weights[token, label])
                if token == readout.label_first[label]:
                    own += vote
                elif vote > 0:
                    votes[token] = vote
        out.append((own, votes))
    return out


def check(found: Explanation, expected: list, labels: list[str]) -> None:
    scores = {
        label: own + sum(votes.values())
        for label, (own, votes) in zip(labels, expected, strict=True)
    }
    assert sorted(row.label for row in found.rows) == sorted(labels)
    for row in found.rows:
        own, votes = expected[labels.index(row.label)]
        assert row.own_vote == pytest.approx(own, rel=1e-6)
        assert {v.token_id: v.vote for v in row.votes} == pytest.approx(votes, rel=1e-6)
        assert row.voters == len(votes)
        assert row.own_vote + row.silent_vote == pytest.approx(scores[row.label], rel=1e-6)
        assert row.own_vote + sum(v.vote for v in row.votes) == pytest.approx(row.score, rel=1e-5)
        if scores[row.label] > 0:
            assert row.score == pytest.approx(scores[row.label], rel=1e-5)
            assert row.log_score == pytest.approx(math.log(scores[row.label]), abs=1e-5)
            assert row.silent_share == pytest.approx(sum(votes.values()) / scores[row.label])
        assert [v.vote for v in row.votes] == sorted((v.vote for v in row.votes), reverse=True)
        for v in row.votes:
            assert v.vote == pytest.approx(v.probability * v.weight)
            assert v.share == pytest.approx(v.vote / scores[row.label], rel=1e-6)
            assert v.token == f"t{v.token_id}"
    if sum(scores.values()) > 0:
        for row in found.rows:
            share = scores[row.label] / sum(scores.values())
            assert row.semantic == pytest.approx(share, rel=1e-5, abs=1e-9)
    semantic = [row.semantic for row in found.rows]
    assert semantic == sorted(semantic, reverse=True)


@settings(deadline=None, max_examples=80)
@given(
    first=st.lists(st.integers(0, V - 1), min_size=1, max_size=6),
    top_k=st.integers(1, V + 5),
    stored=st.integers(1, V),
    paper=st.booleans(),
    silent=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_every_vote_and_every_sum(first, top_k, stored, paper, silent, seed):
    tails = [-0.5 * (i % 3) for i in range(len(first))]
    labels = [f"label {i}" for i in range(len(first))]
    readout = make_readout(first, tails, stored, seed)
    kernel = None if silent else make_kernel(first, paper, seed + 1)
    scoring = replace(PAPER if paper else Scoring(), top_k=top_k)
    found = explain(labels, readout, kernel, scoring, lambda i: f"t{i}", top=V)
    check(found, by_hand(readout, kernel, top_k, paper), labels)
    mass = found.mass
    parts = (mass.labels, mass.voted, mass.others, mass.beyond_top_k)
    assert all(0 <= part <= 1 + 1e-6 for part in parts)
    if len(set(first)) == len(first):
        assert sum(parts) == pytest.approx(1.0, abs=1e-5)
    voted = {t for _, votes in by_hand(readout, kernel, top_k, paper) for t in votes}
    assert found.voters == len(voted)
    p = dict(zip(readout.topk_ids.tolist(), np.exp(readout.topk_logprobs).tolist(), strict=True))
    assert mass.voted == pytest.approx(sum(p[t] for t in voted - set(first)), abs=1e-6)


def test_mass_by_hand():
    """Tokens .5 .25 .125 …; labels are token 0 and half of token 3; token 1 votes; K = 3."""
    p = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    readout = replace(
        make_readout([0, 3], [0.0, 0.0], 5, 0),
        topk_ids=np.arange(5, dtype=np.int32),
        topk_logprobs=np.log(p).astype(np.float32),
        label_logprobs=np.log([0.5, 0.03125]).astype(np.float32),
    )
    weights = np.zeros((V, 2), dtype=np.float32)
    weights[1, 0] = 1.0
    kernel = Kernel(weights, np.zeros(2, dtype=np.float32))
    found = explain(["a", "b"], readout, kernel, Scoring(top_k=3), str)
    mass = found.mass
    assert (mass.labels, mass.voted) == (pytest.approx(0.53125), pytest.approx(0.25))
    assert (mass.others, mass.beyond_top_k) == (pytest.approx(0.125), pytest.approx(0.09375))
    assert [row.neighbours for row in found.rows] == [1, 0]
    assert [row.voters for row in found.rows] == [1, 0]
    assert found.shared_start is None


def test_labels_inside_each_other_are_counted_once():
    """Of joy and joyful, P(joy) = p(token) already holds P(joyful)."""
    readout = make_readout([5, 5], [0.0, -1.0], V, 3)
    found = explain(["joy", "joyful"], readout, None, Scoring(), str)
    assert found.mass.labels == pytest.approx(math.exp(readout.label_logprobs[0]))


def test_lists_are_cut_but_not_the_sums():
    readout, kernel = make_readout([1, 2], [0.0, 0.0], V, 7), make_kernel([1, 2], False, 8)
    whole = explain(["a", "b"], readout, kernel, Scoring(), str, top=V)
    cut = explain(["a", "b"], readout, kernel, Scoring(), str, top=3, n_next=4)
    for row, full in zip(cut.rows, whole.rows, strict=True):
        assert row.votes == full.votes[:3]
        assert row.silent_vote == full.silent_vote
    assert cut.next_tokens == whole.next_tokens[:4]
    assert [t.token_id for t in cut.next_tokens] == readout.topk_ids[:4].tolist()


def test_nobody_at_all_votes_under_the_published_formula():
    """The uniform distribution, nothing divided by zero; ties in the order of the constrained."""
    readout = make_readout([1, 2, 3], [0.0, 0.0, 0.0], V, 1)
    kernel = Kernel(np.zeros((V, 3), dtype=np.float32), np.full(3, 0.8, dtype=np.float32))
    with np.errstate(all="raise", under="ignore"):
        found = explain(["a", "b", "c"], readout, kernel, PAPER, str)
    assert [row.semantic for row in found.rows] == pytest.approx([1 / 3] * 3)
    assert all(row.own_vote == row.silent_vote == row.silent_share == 0 for row in found.rows)
    constrained = [row.constrained for row in found.rows]
    assert constrained == sorted(constrained, reverse=True)


def test_a_start_that_all_labels_share_is_told():
    readout = make_readout([9, 9], [-1.0, -2.0], V, 2)
    assert explain(["a", "b"], readout, None, Scoring(), str).shared_start == "9"
    readout = make_readout([9], [-1.0], V, 2)
    assert explain(["a"], readout, None, Scoring(), str).shared_start is None
