"""Semantic entropy: by hand, against loops over the definition, and what must not change it."""

import math
import warnings
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.semantic_entropy import (
    cluster,
    cluster_share,
    entropy_confidence,
    n_clusters,
    rao_semantic_entropy,
    representative,
    semantic_entropy,
)

groups = st.lists(st.integers(0, 5), min_size=1, max_size=12)
CHAIN = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])  # a like b, b like c, a unlike c


def of_groups(ids):
    """The equivalence matrix of answers whose meanings are known."""
    return np.equal.outer(ids, ids)


def symmetric(seed, n, density):
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < density, 1)
    return upper | upper.T | np.eye(n, dtype=bool)


def greedy_by_hand(same):
    firsts, ids = [], []
    for i in range(len(same)):
        for c, first in enumerate(firsts):
            if same[first][i]:
                ids.append(c)
                break
        else:
            ids.append(len(firsts))
            firsts.append(i)
    return ids


def closure_by_hand(same):
    ids = list(range(len(same)))
    for _ in ids:
        for i, j in combinations(range(len(ids)), 2):
            if same[i][j]:
                low, high = sorted((ids[i], ids[j]))
                ids = [low if x == high else x for x in ids]
    order = list(dict.fromkeys(ids))
    return [order.index(x) for x in ids]


def rao_by_hand(ids, logs):
    total = math.fsum(math.exp(x) for x in logs)
    h = 0.0
    for c in set(ids):
        p = math.fsum(math.exp(x) for i, x in zip(ids, logs, strict=True) if i == c) / total
        h -= p * math.log(p) if p else 0.0
    return h


# ------------------------------------------------------------------ clusters


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.floats(0, 1))
def test_clusters_against_loops(seed, n, density):
    same = symmetric(seed, n, density)
    assert cluster(same).tolist() == greedy_by_hand(same)
    assert cluster(same, method="closure").tolist() == closure_by_hand(same)


def test_a_judge_that_is_not_transitive():
    assert cluster(CHAIN).tolist() == [0, 0, 1]
    assert cluster(CHAIN, method="closure").tolist() == [0, 0, 0]
    # Starting in the middle of the chain, the first member fits both ends.
    assert cluster(CHAIN[np.ix_([1, 0, 2], [1, 0, 2])]).tolist() == [0, 0, 0]


def test_later_clusters_take_nothing_away():
    # 2 fits both 0 and 1. The published loop would move it from the first cluster to the second.
    same = [[1, 0, 1], [0, 1, 1], [1, 1, 1]]
    assert cluster(same).tolist() == [0, 1, 0]


@settings(deadline=None)
@given(groups)
def test_consistent_equivalences_give_the_groups_by_both_methods(ids):
    expected = [list(dict.fromkeys(ids)).index(x) for x in ids]
    for method in ("greedy", "closure"):
        assert cluster(of_groups(ids), method=method).tolist() == expected


def test_scores_count_from_the_threshold_on():
    scores = [[1, 0.5, 0.49], [0.5, 1, 0.2], [0.49, 0.2, 1]]
    assert cluster(scores).tolist() == [0, 0, 1]
    assert cluster(scores, threshold=0.4).tolist() == [0, 0, 0]
    assert cluster(scores, threshold=0.6).tolist() == [0, 1, 2]


def test_the_diagonal_does_not_matter():
    assert cluster([[np.nan, 1], [1, 0]]).tolist() == [0, 0]
    assert cluster([[0, 0], [0, 0]]).tolist() == [0, 1]


def test_nothing_to_cluster():
    assert cluster(np.zeros((0, 0))).tolist() == []
    assert cluster([]).tolist() == []
    assert cluster([[1]]).tolist() == [0]


@pytest.mark.parametrize(
    ("given_table", "reason"),
    [
        ([[1, 0]], "must be \\[N, N\\]"),
        ([1, 0], "must be \\[N, N\\]"),
        ([[1, 0], [1, 1]], "not symmetric"),
        ([[1, np.nan], [np.nan, 1]], "holds NaN"),
    ],
)
def test_no_equivalence_matrix(given_table, reason):
    with pytest.raises(ValueError, match=reason):
        cluster(given_table)


def test_unknown_method():
    with pytest.raises(ValueError, match="did you mean 'greedy'"):
        cluster(CHAIN, method="gredy")


# ------------------------------------------------------------------ entropies


def test_entropy_by_hand():
    assert semantic_entropy([0, 0, 1, 1]) == pytest.approx(math.log(2))
    assert semantic_entropy([0, 1, 2, 3]) == pytest.approx(math.log(4))
    # shares 1/2, 1/4, 1/4
    assert semantic_entropy([7, 7, 2, 9]) == pytest.approx(1.5 * math.log(2))
    assert entropy_confidence([7, 7, 2, 9]) == pytest.approx(0.25)
    assert cluster_share([7, 7, 2, 9]) == 0.5
    assert n_clusters([7, 7, 2, 9]) == 3


def test_rao_by_hand():
    # likelihoods 1/2, 1/4 | 1/4: p = 3/4, 1/4
    logs = np.log([0.5, 0.25, 0.25])
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert rao_semantic_entropy([0, 0, 1], logs) == pytest.approx(expected)
    # An impossible answer counts nothing.
    assert rao_semantic_entropy([0, 1], [-1.0, -np.inf]) == 0


@settings(deadline=None)
@given(groups, st.data())
def test_rao_against_the_definition(ids, data):
    logs = data.draw(st.lists(st.floats(-30, 0), min_size=len(ids), max_size=len(ids)))
    assert rao_semantic_entropy(ids, logs) == pytest.approx(rao_by_hand(ids, logs), abs=1e-12)
    equal = rao_semantic_entropy(ids, [-2000.0] * len(ids))  # e^-2000 underflows
    assert equal == pytest.approx(semantic_entropy(ids))


@settings(deadline=None)
@given(groups, st.randoms(use_true_random=False))
def test_order_and_numbering_change_nothing(ids, random):
    order = list(range(len(ids)))
    random.shuffle(order)
    logs = np.linspace(-3, 0, len(ids))
    again = cluster(of_groups(ids)[np.ix_(order, order)])
    assert semantic_entropy(again) == pytest.approx(semantic_entropy(ids))
    assert rao_semantic_entropy(again, logs[order]) == pytest.approx(
        rao_semantic_entropy(ids, logs)
    )
    assert cluster_share(again) == cluster_share(ids)
    assert entropy_confidence(again) == pytest.approx(entropy_confidence(ids))
    assert n_clusters(again) == n_clusters(ids) == len(set(ids))


@settings(deadline=None)
@given(groups)
def test_bounds(ids):
    h = semantic_entropy(ids)
    assert 0 <= h <= math.log(len(ids)) + 1e-12
    assert 0 <= entropy_confidence(ids) <= 1
    assert 1 / len(ids) <= cluster_share(ids) <= 1


@pytest.mark.parametrize("n", [1, 2, 10])
def test_answers_that_all_mean_the_same(n):
    ids = cluster(np.ones((n, n)))
    assert semantic_entropy(ids) == 0
    assert math.copysign(1, semantic_entropy(ids)) == 1  # not -0
    assert rao_semantic_entropy(ids, -np.arange(n, dtype=float)) == 0
    assert (n_clusters(ids), cluster_share(ids), entropy_confidence(ids)) == (1, 1, 1)


def test_answers_that_all_differ_give_no_confidence():
    assert entropy_confidence(range(10)) == pytest.approx(0, abs=1e-15)
    assert cluster_share(range(10)) == 0.1


def test_the_representative_is_the_first_of_the_largest():
    assert representative([0, 1, 1, 2]) == 1
    assert representative([5, 3, 3, 5]) == 0  # a tie: the earliest
    with pytest.raises(ValueError, match="empty"):
        representative([])


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([-1.0, np.nan], "1 of 2 log-probabilities are NaN"),
        ([-1.0, np.inf], "1 of 2 log-probabilities are NaN or \\+inf"),
        ([-np.inf, -np.inf], "every log-probability is -inf"),
    ],
)
def test_rao_is_nan_and_says_why(logs, reason):
    with pytest.warns(UndefinedMetricWarning, match=reason):
        assert math.isnan(rao_semantic_entropy([0, 1], logs))


@pytest.mark.parametrize("fn", [semantic_entropy, cluster_share, entropy_confidence])
def test_no_answers_is_nan_and_says_why(fn):
    with pytest.warns(UndefinedMetricWarning, match=f"{fn.__name__} is NaN: there are no answers"):
        assert math.isnan(fn([]))


def test_good_input_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rao_semantic_entropy([0, 1], [-np.inf, -1000.0])


@pytest.mark.parametrize("ids", [[0.5, 1.0], [[0, 1]], ["a", "b"]])
def test_ids_that_are_none(ids):
    with pytest.raises(ValueError, match="one integer per answer"):
        semantic_entropy(ids)


def test_one_log_probability_per_answer():
    with pytest.raises(ValueError, match="one value per answer"):
        rao_semantic_entropy([0, 1], [-1.0])


def test_sizes_in_another_order_tie_to_the_last_bit():
    """Else rankings by entropy would break such ties by rounding."""
    for sizes in ([1, 2, 7], [3, 3, 4], [1, 1, 1, 2, 5], [1, 4, 5]):
        found = {
            semantic_entropy(np.repeat(np.arange(len(order)), order))
            for order in permutations(sizes)
        }
        assert len(found) == 1
