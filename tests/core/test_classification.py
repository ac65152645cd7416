"""Accuracy, F1 and ranking against scikit-learn and brute force."""

import math
import warnings
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.classification import (
    accuracy,
    auarc,
    auroc,
    confidence_auroc,
    correctness,
    macro_f1,
    resolve_target,
)

OF_PROBS = [accuracy, macro_f1, auroc]
OF_CONFIDENCE = [confidence_auroc, auarc]


@st.composite
def scored(draw):
    """Probabilities with many ties, and integer targets."""
    n, size = draw(st.integers(2, 25)), draw(st.integers(2, 5))
    rows = st.lists(st.integers(1, 4), min_size=size, max_size=size)
    weights = np.array(draw(st.lists(rows, min_size=n, max_size=n)), dtype=float)
    target = draw(st.lists(st.integers(0, size - 1), min_size=n, max_size=n))
    return weights / weights.sum(axis=1, keepdims=True), np.array(target)


@st.composite
def graded(draw):
    n = draw(st.integers(1, 30))
    confidence = st.lists(st.integers(0, 8), min_size=n, max_size=n)
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(draw(confidence)) / 8, np.array(correct)


def quiet(metric, *arrays):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return metric(*arrays)


@settings(deadline=None)
@given(scored())
def test_accuracy_and_macro_f1_are_those_of_sklearn(example):
    probs, target = example
    predicted = probs.argmax(axis=1)
    assert accuracy(probs, target) == pytest.approx(sk.accuracy_score(target, predicted))
    expected = sk.f1_score(target, predicted, average="macro", zero_division=0)
    assert macro_f1(probs, target) == pytest.approx(expected)


def test_macro_f1_averages_over_labels_that_occur_on_either_side():
    probs = np.eye(5)[[0, 0, 1, 3]]
    target = np.array([0, 2, 1, 1])
    # F1: label 0 2/3, label 1 2/3, label 2 never predicted 0, label 3 never right 0, label 4 absent
    assert macro_f1(probs, target) == pytest.approx((2 / 3 + 2 / 3 + 0 + 0) / 4)


@settings(deadline=None)
@given(scored())
def test_auroc_is_the_mean_of_sklearns_over_the_labels_present(example):
    probs, target = example
    present = np.unique(target)
    if len(present) < 2:
        with pytest.warns(UndefinedMetricWarning, match="same label"):
            assert math.isnan(auroc(probs, target))
        return
    each = [sk.roc_auc_score(target == label, probs[:, label]) for label in present]
    assert auroc(probs, target) == pytest.approx(np.mean(each), abs=1e-12)
    if 2 < len(present) == probs.shape[1]:
        theirs = sk.roc_auc_score(target, probs, multi_class="ovr", average="macro")
        assert auroc(probs, target) == pytest.approx(theirs, abs=1e-12)


def test_auroc_on_goemotions_sized_data():
    rng = np.random.default_rng(0)
    probs, target = rng.dirichlet(np.ones(28), 1500), rng.integers(28, size=1500)
    theirs = sk.roc_auc_score(target, probs, multi_class="ovr", average="macro")
    assert auroc(probs, target) == pytest.approx(theirs, abs=1e-12)


@settings(deadline=None)
@given(graded())
def test_confidence_auroc_is_sklearns(example):
    confidence, correct = example
    if correct.all() or not correct.any():
        with pytest.warns(UndefinedMetricWarning, match="all answers are"):
            assert math.isnan(confidence_auroc(confidence, correct))
    else:
        expected = sk.roc_auc_score(correct, confidence)
        assert confidence_auroc(confidence, correct) == pytest.approx(expected, abs=1e-12)


def area_under_accuracy_rejection(order, correct):
    kept = [correct[list(order[:k])].mean() for k in range(1, len(correct) + 1)]
    return float(np.mean(kept))


@settings(deadline=None)
@given(graded())
def test_auarc_without_ties_is_the_mean_accuracy_of_the_kept(example):
    confidence, correct = example
    confidence = confidence + np.linspace(0, 1e-3, len(confidence))
    expected = area_under_accuracy_rejection(np.argsort(-confidence), correct)
    assert auarc(confidence, correct) == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5]), st.booleans()), min_size=1, max_size=6))
def test_auarc_with_ties_is_the_mean_over_all_orders(rows):
    confidence, correct = np.array([c for c, _ in rows]), np.array([y for _, y in rows])
    orders = [
        order
        for order in permutations(range(len(rows)))
        if (np.diff(confidence[list(order)]) <= 0).all()
    ]
    expected = np.mean([area_under_accuracy_rejection(order, correct) for order in orders])
    assert auarc(confidence, correct) == pytest.approx(expected)


def test_auarc_of_perfect_useless_and_reversed_rankings():
    correct = np.arange(100) < 50
    perfect, reversed_ = -np.arange(100), np.arange(100)
    assert auarc(perfect, correct) > auarc(np.zeros(100), correct) > auarc(reversed_, correct)
    assert auarc(np.zeros(100), correct) == pytest.approx(0.5)


@settings(deadline=None)
@given(scored(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter_and_values_stay_in_range(example, random):
    probs, target = example
    order = list(range(len(target)))
    random.shuffle(order)
    for metric in OF_PROBS:
        value = quiet(metric, probs, target)
        assert quiet(metric, probs[order], target[order]) == pytest.approx(value, nan_ok=True)
        assert math.isnan(value) or 0 <= value <= 1
    confidence, correct = probs.max(axis=1), correctness(probs, target)
    for metric in OF_CONFIDENCE:
        value = quiet(metric, confidence, correct)
        shuffled = quiet(metric, confidence[order], correct[order])
        assert shuffled == pytest.approx(value, nan_ok=True)
        assert math.isnan(value) or 0 <= value <= 1 + 1e-12


@settings(deadline=None)
@given(scored())
def test_a_single_label_per_row_may_be_given_either_way(example):
    probs, target = example
    one_hot = np.eye(probs.shape[1], dtype=bool)[target]
    np.testing.assert_array_equal(resolve_target(probs, one_hot), target)
    for metric in OF_PROBS:
        same = quiet(metric, probs, one_hot)
        assert same == pytest.approx(quiet(metric, probs, target), nan_ok=True)


def test_any_of_several_labels_is_right():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]])
    allowed = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)
    # hit: the predicted label 0; missed: the first label 0; missed: the only label 2
    np.testing.assert_array_equal(resolve_target(probs, allowed), [0, 0, 2])
    np.testing.assert_array_equal(correctness(probs, allowed), [True, False, False])
    assert accuracy(probs, allowed) == pytest.approx(1 / 3)
    assert macro_f1(probs, allowed) == macro_f1(probs, [0, 0, 2])
    assert auroc(probs, allowed) == auroc(probs, [0, 0, 2])


def test_a_row_without_labels_is_undefined_not_wrong():
    probs, allowed = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([[True, False], [False, False]])
    np.testing.assert_array_equal(resolve_target(probs, allowed), [0, -1])
    for metric in OF_PROBS:
        with pytest.warns(UndefinedMetricWarning, match="1 of 2 rows of target have no label"):
            assert math.isnan(metric(probs, allowed))


def test_order_of_log_scores_serves_as_well():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    target = np.arange(40) % 3
    for metric in OF_PROBS:
        assert metric(np.log(probs), target) == pytest.approx(metric(probs, target))
    silent = [[0.0, -np.inf], [-0.7, -0.7], [-np.inf, 0.0]]
    assert auroc(silent, [0, 0, 1]) == 1


def test_torch_tensors_and_lists_are_taken():
    probs, target = [[0.7, 0.3], [0.4, 0.6], [0.2, 0.8]], [0, 0, 1]
    assert auroc(torch.tensor(probs), torch.tensor(target)) == auroc(probs, target) == 1


@pytest.mark.parametrize("metric", OF_PROBS)
def test_metrics_of_probs_without_a_value_are_nan_with_one_warning(metric):
    cases = {
        "there are no documents": ([], []),
        "no documents": (np.empty((0, 28)), np.empty(0, dtype=int)),
        "1 of 2 rows of probs contain NaN": ([[np.nan, 0.5], [0.5, 0.5]], [0, 1]),
        "1 of 2 rows of target have no label": ([[0.5, 0.5], [0.5, 0.5]], [0, np.nan]),
    }
    for reason, arrays in cases.items():
        with pytest.warns(UndefinedMetricWarning, match=f"{metric.__name__} is NaN.*{reason}") as w:
            assert math.isnan(metric(*arrays))
        assert len(w) == 1
        assert w[0].filename == __file__


@pytest.mark.parametrize("metric", OF_CONFIDENCE)
def test_metrics_of_confidence_without_a_value_are_nan_with_one_warning(metric):
    cases = {
        "there are no documents": ([], []),
        "1 of 2 values of confidence are NaN": ([np.nan, 0.5], [0, 1]),
        "1 of 2 values of correct are NaN": ([0.5, 0.5], [np.nan, 1]),
    }
    for reason, arrays in cases.items():
        with pytest.warns(UndefinedMetricWarning, match=reason) as seen:
            assert math.isnan(metric(*arrays))
        assert len(seen) == 1


def test_rows_with_nan_are_wrong_for_correctness():
    np.testing.assert_array_equal(correctness([[np.nan, 0.5], [0.5, 0.4]], [0, 0]), [False, True])
    assert correctness([], []).shape == (0,)


PROBS = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy(PROBS, [0]), "probs has 2 rows but target has 1"),
        (lambda: accuracy([], [0]), "probs has 0 rows but target has 1"),
        (lambda: accuracy([0.5, 0.5], [0, 1]), r"probs has the shape \[2\]"),
        (lambda: accuracy(np.empty((2, 0)), [0, 1]), r"probs has the shape \[2, 0\]"),
        (lambda: accuracy([[0.5], [0.5, 0.5]], [0, 1]), "probs is not an array of numbers"),
        (lambda: accuracy(PROBS, ["a", "b"]), "target is not an array of numbers"),
        (lambda: auroc(PROBS, [0, 2]), "target contains 2; allowed are label numbers 0 to 1"),
        (lambda: auroc(PROBS, [0, -1]), "target contains -1"),
        (lambda: auroc(PROBS, [0, 0.5]), "target contains 0.5"),
        (lambda: auroc(PROBS, 0), r"target has the shape \[\]"),
        (lambda: macro_f1(PROBS, np.eye(2, dtype=int)), r"target is int64 \[2, 2\].*booleans"),
        (
            lambda: macro_f1(PROBS, np.eye(3, dtype=bool)),
            r"bool \[3, 3\].*shape of probs, \[2, 2\]",
        ),
        (lambda: auarc([0.5], [0, 1]), "confidence has 1 values but correct has 2"),
        (lambda: auarc([0.5, 0.6], [0, 2]), "correct contains 2; allowed are 0 and 1"),
        (lambda: confidence_auroc([[0.5]], [1]), r"confidence has the shape \[1, 1\]"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
