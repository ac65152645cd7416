"""Scores against people's shares, compared with loops, scikit-learn and the hard-label metrics."""

import math
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from lm_eval_semsoft.core import bootstrap, calibration
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.soft_labels import crowd, human_ece, soft_brier, soft_ece

RNG = np.random.default_rng(11)
PROBABILITY = RNG.random(80)
FRACTION = RNG.integers(0, 11, size=80) / 10

numbers = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30
)  # probability, fraction


def two(p):
    """The distribution over two labels whose second one has p."""
    return np.stack([1 - np.asarray(p), np.asarray(p)], axis=1)


def brute_force_ece(probability, fraction, n_bins):
    total = 0.0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        last = b == n_bins - 1
        inside = [i for i, p in enumerate(probability) if low <= p and (p < high or last)]
        if inside:
            gap = np.mean([probability[i] for i in inside]) - np.mean([fraction[i] for i in inside])
            total += len(inside) / len(probability) * abs(gap)
    return total


# --- values --------------------------------------------------------------------------------------


def test_soft_brier_against_a_loop():
    probs, shares = RNG.dirichlet(np.ones(4), size=50), RNG.dirichlet(np.ones(4), size=50)
    loop = np.mean([sum((p - s) ** 2 for p, s in zip(*rows, strict=True))
                    for rows in zip(probs, shares, strict=True)])  # fmt: skip
    assert soft_brier(probs, shares) == pytest.approx(loop)


def test_soft_brier_with_whole_shares_is_the_brier_score():
    labels = (FRACTION >= 0.5).astype(int)
    ours = soft_brier(two(PROBABILITY), two(labels))
    assert ours == pytest.approx(calibration.brier(two(PROBABILITY), labels))
    assert ours == pytest.approx(2 * brier_score_loss(labels, PROBABILITY))


@pytest.mark.parametrize("n_bins", [1, 2, 10, 15, 97])
def test_soft_ece_against_a_loop(n_bins):
    expected = brute_force_ece(PROBABILITY, FRACTION, n_bins)
    assert soft_ece(PROBABILITY, FRACTION, n_bins=n_bins) == pytest.approx(expected)


def test_soft_ece_with_whole_fractions_is_ece_of_the_label():
    labels = (FRACTION >= 0.5).astype(int)
    assert soft_ece(PROBABILITY, labels) == pytest.approx(calibration.ece(PROBABILITY, labels))


def test_edges_belong_to_the_upper_bin_and_one_to_the_last():
    edges = np.arange(16) / 15
    assert soft_ece(edges, 1 - edges) == pytest.approx(brute_force_ece(edges, 1 - edges, 15))
    assert soft_ece([1.0, 14 / 15], [0.9, 1.0]) == pytest.approx(abs(1 + 14 / 15 - 1.9) / 2)


@settings(max_examples=60, deadline=None)
@given(numbers)
def test_bounds_and_the_perfect_model(pairs):
    probability, fraction = np.array(pairs).T
    assert 0 <= soft_brier(two(probability), two(fraction)) <= 2
    assert 0 <= soft_ece(probability, fraction) <= 1
    assert soft_brier(two(fraction), two(fraction)) == 0
    assert soft_ece(fraction, fraction) == 0


@settings(max_examples=60, deadline=None)
@given(numbers, st.randoms(use_true_random=False))
def test_order_of_documents_does_not_matter(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    for metric, one, other in (
        (soft_ece, np.array(pairs).T, np.array(shuffled).T),
        (soft_brier, map(two, np.array(pairs).T), map(two, np.array(shuffled).T)),
    ):
        assert metric(*one) == pytest.approx(metric(*other), abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "arrays"),
    [
        (soft_ece, (PROBABILITY, FRACTION)),
        (soft_brier, (two(PROBABILITY), two(FRACTION))),
    ],
)
def test_replicates_by_counts_equal_those_by_repeated_rows(metric, arrays):
    fast = bootstrap.replicates(metric, *arrays, n=20)
    slow = bootstrap.replicates(lambda *a: metric(*a), *arrays, n=20)
    assert fast == pytest.approx(slow)
    assert bootstrap.stderr(metric, *arrays, n=50) > 0


# --- bad values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.5], [0.5]), r"probability has the shape \[2\] but fraction has \[1\]"),
        (([0.5], [1.2]), "fraction contains 1.2; allowed are numbers from 0 to 1"),
        (([0.5], [-0.1]), "fraction contains -0.1"),
        (([0.5], [math.nan]), "fraction contains nan"),
        (([0.5], [[0.5]]), r"fraction has the shape \[1, 1\]; it must be one value per document"),
    ],
)
def test_what_only_a_caller_can_get_wrong_in_soft_ece(arguments, message):
    with pytest.raises(ValueError, match=message):
        soft_ece(*arguments)


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True, "15"])
def test_bins(n_bins):
    with pytest.raises(ValueError, match=r"n_bins=.* must be an integer >= 1"):
        soft_ece([0.5], [0.5], n_bins=n_bins)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([[0.5, 0.6]], "row 0 of shares is .* sum to 1"),
        ([[1.5, -0.5]], "row 0 of shares"),
        ([[math.nan, 1]], "row 0 of shares"),
        ([0.5], r"shares has the shape \[1\]; it must be \[documents, labels\]"),
        ([[0.2, 0.3, 0.5]], r"probs has the shape \[1, 2\] but shares has \[1, 3\]"),
    ],
)
def test_what_only_a_caller_can_get_wrong_in_soft_brier(shares, message):
    with pytest.raises(ValueError, match=message):
        soft_brier([[0.5, 0.5]], shares)


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        (soft_ece, ([], []), "soft_ece is NaN: there are no documents"),
        (soft_brier, ([], []), "soft_brier is NaN: there are no documents"),
        (soft_ece, ([0.2, math.nan], [0.5, 0.5]), "probability is NaN for 1 of 2 documents"),
        (soft_ece, ([1.2], [0.5]), r"1 values of probability lie outside \[0, 1\], such as 1.2"),
        (soft_brier, ([[math.nan, 1]], [[0.5, 0.5]]), "probs is NaN for 1 of 1 documents"),
        (soft_brier, ([[0.3, 0.3]], [[0.5, 0.5]]), r"row 0 sums to 0.6"),
        (soft_brier, ([[-0.5, 1.5]], [[0.5, 0.5]]), r"lie outside \[0, 1\]"),
    ],
)
def test_what_a_model_can_produce_is_nan_with_one_warning(metric, arguments, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert math.isnan(metric(*arguments))
    (warning,) = caught
    assert issubclass(warning.category, UndefinedMetricWarning)
    assert re.search(message, str(warning.message))


# ------------------------------------------------------------------ people as a classifier


def test_the_crowd_by_hand():
    shares = [[0.7, 0.3, 0.0], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]
    target = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 0]], dtype=bool)
    confidence, correct = crowd(shares, target)
    np.testing.assert_allclose(confidence, [0.7, 0.6, 0.5, 0.4])
    np.testing.assert_array_equal(correct, [True, False, False, True])
    assert human_ece(shares, target) == pytest.approx((0.3 + 0.6 + 0.5 + 0.6) / 4)


def test_people_who_know_what_they_know_are_calibrated():
    rng = np.random.default_rng(0)
    share = rng.choice([0.6, 0.8, 1.0], size=20000)
    right = rng.random(20000) < share
    shares = np.stack([share, 1 - share], axis=1)
    assert human_ece(shares, np.stack([right, ~right], axis=1)) < 0.01
    assert human_ece(shares, np.stack([~right, right], axis=1)) > 0.4


def test_no_crowd_is_nan_with_a_warning():
    with pytest.warns(UndefinedMetricWarning):
        assert math.isnan(human_ece([], np.empty((0, 4), dtype=bool)))


@pytest.mark.parametrize(
    ("shares", "target", "message"),
    [
        ([[0.5, 0.2]], [[True, False]], "row 0 of shares"),
        ([[0.5, 0.5]], [0], r"booleans of the shape \[1, 2\]"),
        ([[0.5, 0.5]], [[1, 0]], "it is int64"),
        ([[np.nan, 0.5]], [[True, False]], "row 0 of shares"),
    ],
)
def test_misuse_of_a_crowd_is_named(shares, target, message):
    with pytest.raises(ValueError, match=message):
        crowd(shares, target)
