"""Corrections against their definitions in plain Python, scikit-learn, and planted truths."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from sklearn.linear_model import LogisticRegression

from lm_eval_semsoft.core import corrections
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.calibration import nll
from lm_eval_semsoft.core.corrections import (
    apply_prior,
    apply_temperature,
    fit_temperature,
    label_prior,
    mean_probability,
    prior_correction,
    surprise_weighted,
)


@st.composite
def log_scores(draw, min_documents=1):
    n, size = draw(st.integers(min_documents, 12)), draw(st.integers(1, 5))
    rows = st.lists(st.floats(-30, 30), min_size=size, max_size=size)
    return np.array(draw(st.lists(rows, min_size=n, max_size=n))).reshape(n, size)


def softmax(row):
    top = max(row)
    votes = [math.exp(value - top) for value in row]
    return [vote / sum(votes) for vote in votes]


# ------------------------------------------------------------------ prior correction


@settings(deadline=None)
@given(log_scores())
def test_prior_correction_is_its_definition(scores):
    probs = [softmax(row) for row in scores.tolist()]
    prior = [sum(column) / len(probs) for column in zip(*probs, strict=True)]
    np.testing.assert_allclose(label_prior(scores), np.log(prior), atol=1e-10)
    got = prior_correction(scores)
    for row, corrected in zip(scores.tolist(), got, strict=True):
        expected = softmax([s - math.log(p) for s, p in zip(row, prior, strict=True)])
        np.testing.assert_allclose(np.exp(corrected), expected, atol=1e-10)
    np.testing.assert_array_equal(got, apply_prior(scores, label_prior(scores)))


@settings(deadline=None)
@given(log_scores(), st.randoms(use_true_random=False))
def test_prior_correction_keeps_its_symmetries(scores, random):
    got = prior_correction(scores)
    np.testing.assert_allclose(special.logsumexp(got, axis=1), 0, atol=1e-12)

    constants = np.array([random.uniform(-50, 50) for _ in scores])[:, None]
    np.testing.assert_allclose(prior_correction(scores + constants), got, atol=1e-9)

    rows, columns = list(range(scores.shape[0])), list(range(scores.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    shuffled = prior_correction(scores[rows][:, columns])
    np.testing.assert_allclose(shuffled, got[rows][:, columns], atol=1e-9)


@settings(deadline=None)
@given(log_scores())
def test_every_label_is_equally_probable_before_the_last_normalisation(scores):
    """The mean of P / prior is 1 for every label: exact, unlike that of the corrected P."""
    probs = special.softmax(scores, axis=1)
    lift = probs / np.exp(label_prior(scores))
    np.testing.assert_allclose(lift.mean(axis=0), 1, rtol=1e-9)
    corrected = np.exp(prior_correction(scores))
    np.testing.assert_allclose(corrected * lift.sum(axis=1, keepdims=True), lift, rtol=1e-9)
    log_ratio = prior_correction(scores)[:, :1] - prior_correction(scores)
    expected = scores[:, :1] - scores - (label_prior(scores)[0] - label_prior(scores))
    np.testing.assert_allclose(log_ratio, expected, atol=1e-9)


def test_documents_that_all_say_the_same_say_nothing():
    same = np.tile([3.0, -2.0, 0.5], (4, 1)) + np.arange(4)[:, None]
    np.testing.assert_allclose(np.exp(prior_correction(same)), 1 / 3)
    np.testing.assert_allclose(np.exp(prior_correction([[5.0, -700.0]])), 0.5)
    np.testing.assert_array_equal(prior_correction([[2.0], [3.0]]), 0)


def test_prior_correction_undoes_a_planted_bias():
    rng = np.random.default_rng(0)
    target = rng.integers(4, size=2000)
    fair = rng.normal(size=(2000, 4)) + 2 * np.eye(4)[target]
    biased = fair + np.array([4.0, 0.0, -3.0, 0.0])
    fixed = prior_correction(biased)
    accuracy = [(scores.argmax(axis=1) == target).mean() for scores in (biased, fixed, fair)]
    # One step takes most of a strong bias away, not all: the prior is estimated under the bias.
    assert accuracy[1] > accuracy[0] + 0.7 * (accuracy[2] - accuracy[0])
    halves = apply_prior(biased[:1000], label_prior(biased[1000:]))
    np.testing.assert_allclose(halves, fixed[:1000], atol=0.3)


def test_rows_without_scores_become_nan_and_touch_no_other():
    scores = np.random.default_rng(0).normal(size=(7, 3))
    holes = scores.copy()
    holes[1, 2], holes[3, 0], holes[4] = np.nan, np.inf, -np.inf
    broken = [1, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prior, got = label_prior(holes), prior_correction(holes)
        cooled = apply_temperature(holes, 2.0)
    np.testing.assert_array_equal(prior, label_prior(np.delete(scores, broken, axis=0)))
    assert np.isnan(got[broken]).all()
    assert np.isnan(cooled[broken]).all()
    rest = np.delete(got, broken, axis=0)
    np.testing.assert_allclose(rest, prior_correction(np.delete(scores, broken, axis=0)))


def test_impossible_labels_stay_impossible():
    scores = np.array([[0.0, 1.0, -np.inf], [1.0, 0.0, -np.inf]])
    assert label_prior(scores)[2] == -np.inf
    got = prior_correction(scores)
    assert (got[:, 2] == -np.inf).all()
    np.testing.assert_allclose(got[:, :2], prior_correction(scores[:, :2]))
    # a prior that rules out what a new document finds possible has no answer for it
    new = apply_prior([[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]], label_prior(scores))
    assert np.isfinite(new[0, :2]).all()
    assert np.isnan(new[1]).all()


def test_tiny_probabilities_do_not_underflow():
    got = label_prior([[0.0, -1000.0], [0.0, -1002.0]])
    np.testing.assert_allclose(got[1], -1000 + math.log((1 + math.exp(-2)) / 2))
    np.testing.assert_allclose(np.exp(prior_correction([[0.0, -1000.0], [0.0, -1e5]])[0, 1]), 2 / 3)


def test_no_document_is_nan_with_one_warning():
    for empty in (np.empty((0, 3)), np.full((2, 3), np.nan)):
        with pytest.warns(UndefinedMetricWarning, match="label prior is NaN: .* no document") as w:
            assert np.isnan(label_prior(empty)).all()
        assert len(w) == 1
        assert w[0].filename == __file__
        with pytest.warns(UndefinedMetricWarning, match="label prior"):
            assert prior_correction(empty).shape == empty.shape
    assert apply_prior(np.empty((0, 3)), np.zeros(3)).shape == (0, 3)


# ------------------------------------------------------------------ temperature


def planted(n=20_000, size=4, temperature=2.5, seed=0):
    """Targets drawn from softmax(scores / T)."""
    rng = np.random.default_rng(seed)
    scores = 3 * rng.normal(size=(n, size))
    probs = special.softmax(scores / temperature, axis=1)
    target = (probs.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return scores, target


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_planted_temperature_is_found(temperature):
    assert fit_temperature(*planted(temperature=temperature)) == pytest.approx(
        temperature, rel=0.05
    )


def test_it_is_the_slope_of_a_logistic_regression():
    """With two labels, 1/T is the coefficient of the difference of the scores."""
    scores, target = planted(n=3000, size=2)
    regression = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10)
    regression.fit(scores[:, 1:] - scores[:, :1], target)
    assert fit_temperature(scores, target) == pytest.approx(1 / regression.coef_[0, 0], rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(log_scores(), st.data())
def test_no_other_temperature_has_a_lower_loss(scores, data):
    size = scores.shape[1]
    target = data.draw(
        st.lists(st.integers(0, size - 1), min_size=len(scores), max_size=len(scores))
    )

    def loss(log_t):
        logs = special.log_softmax(scores / math.exp(log_t), axis=1)
        return -logs[np.arange(len(target)), target].mean()

    bounds = (math.log(0.01), math.log(100))
    best = optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    t = fit_temperature(scores, target)
    assert 0.01 <= t <= 100
    assert loss(math.log(t)) <= min(best.fun, *map(loss, (*bounds, 0.0))) + 1e-9


def test_it_goes_with_the_scale_of_the_scores_and_ignores_their_level():
    scores, target = planted(n=500)
    t = fit_temperature(scores, target)
    for scale in (0.1, 3.0):
        assert fit_temperature(scale * scores, target) == pytest.approx(scale * t, rel=1e-9)
    level = np.arange(500.0)[:, None]
    assert fit_temperature(scores + level, target) == pytest.approx(t, rel=1e-9)
    order = np.random.default_rng(0).permutation(500)
    assert fit_temperature(scores[order], target[order]) == pytest.approx(t, rel=1e-9)
    several = np.eye(4, dtype=bool)[target]
    assert fit_temperature(scores, several) == t


def test_the_fit_ends_at_its_bounds():
    right = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert fit_temperature(right, [0, 1]) == corrections.COLDEST
    assert fit_temperature(1000 * right, [0, 1]) == corrections.COLDEST
    assert fit_temperature(right, [1, 0]) == corrections.HOTTEST
    assert fit_temperature(np.ones((3, 4)), [0, 1, 2]) == 1
    assert fit_temperature([[5.0], [3.0]], [0, 0]) == 1
    assert fit_temperature([[5.0, -np.inf]], [0]) == 1
    # one document right, one just as clearly wrong: nothing to be sure of
    assert fit_temperature([[1.0, 0.0], [1.0, 0.0]], [0, 1]) == corrections.HOTTEST


def test_impossible_labels_take_no_part():
    scores, target = planted(n=300)
    wider = np.column_stack([scores, np.full(300, -np.inf)])
    assert fit_temperature(wider, target) == pytest.approx(fit_temperature(scores, target))


def test_a_temperature_is_applied():
    scores, target = planted(n=400)
    t = fit_temperature(scores, target)
    got = apply_temperature(scores, t)
    np.testing.assert_allclose(got, special.log_softmax(scores / t, axis=1), atol=1e-12)
    losses = [nll(np.exp(apply_temperature(scores, t * f)), target) for f in (0.8, 1, 1.25)]
    assert losses[1] == min(losses)
    np.testing.assert_array_equal(got.argmax(axis=1), scores.argmax(axis=1))
    assert apply_temperature(np.empty((0, 2)), 1.0).shape == (0, 2)
    assert np.isnan(apply_temperature(scores, math.nan)).all()


@pytest.mark.parametrize(
    ("scores", "target", "reason"),
    [
        (np.empty((0, 3)), [], "there are no documents"),
        ([[0.0, np.nan], [0.0, 1.0]], [0, 1], "1 of 2 rows of log_scores hold NaN"),
        ([[0.0, np.inf]], [0], "1 of 1 rows of log_scores hold NaN, .inf"),
        ([[0.0, 1.0]], [[False, False]], "1 of 1 rows of target have no label"),
        ([[0.0, 1.0], [-np.inf, 1.0]], [0, 0], "target of 1 of 2 documents has the score -inf"),
    ],
)
def test_no_fit_is_nan_with_one_warning(scores, target, reason):
    with pytest.warns(UndefinedMetricWarning, match=f"fit_temperature is NaN: .*{reason}") as seen:
        assert math.isnan(fit_temperature(scores, target))
    assert len(seen) == 1


# ------------------------------------------------------------------ surprise-weighted votes


def top_k(n=30, k=5, vocabulary=12, seed=0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(vocabulary, 0.3), n)
    ids = np.argsort(-probs, axis=1)[:, :k].astype(np.int32)
    return ids, np.log(np.take_along_axis(probs, ids, axis=1)).astype(np.float32), probs


def test_mean_probability_is_its_definition(monkeypatch):
    ids, logprobs, _ = top_k()
    expected = np.zeros(12)
    for row_ids, row in zip(ids, logprobs, strict=True):
        for token, logprob in zip(row_ids, row, strict=True):
            expected[token] += math.exp(logprob) / 30
    np.testing.assert_allclose(mean_probability(ids, logprobs, 12), expected, rtol=1e-6)
    monkeypatch.setattr(corrections, "_ROWS", 7)
    np.testing.assert_allclose(mean_probability(ids, logprobs, 12), expected, rtol=1e-6)
    assert mean_probability(ids, logprobs, 20).shape == (20,)


def test_mean_probability_of_the_whole_vocabulary_is_exact():
    ids, logprobs, probs = top_k(k=12)
    np.testing.assert_allclose(mean_probability(ids, logprobs, 12), probs.mean(axis=0), atol=1e-7)
    assert (mean_probability(*top_k()[:2], 12) <= probs.mean(axis=0) + 1e-7).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [7, 1024])
def test_surprise_weights_are_their_definition(alpha, rows, monkeypatch):
    monkeypatch.setattr(corrections, "_ROWS", rows)
    ids, logprobs, _ = top_k()
    pbar = mean_probability(ids, logprobs, 12)
    got = surprise_weighted(ids, logprobs, pbar, alpha)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.exp(logprobs) / pbar[ids] ** alpha, rtol=1e-5)
    assert got.max() <= 30**alpha * 1.0001
    if alpha == 1:  # the mean lift of every token that occurs is 1
        lift = np.bincount(ids.ravel(), got.ravel(), 12) / 30
        np.testing.assert_allclose(lift[pbar > 0], 1, rtol=1e-5)


def test_a_token_of_unknown_frequency_does_not_vote():
    ids, logprobs = np.array([[0, 1]]), np.log([[0.5, 0.25]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(surprise_weighted(ids, logprobs, [0.25, 0], 0.5), [[1, 0]])
        np.testing.assert_allclose(surprise_weighted(ids, logprobs, [0.25, 0], 0), [[0.5, 0.25]])


def test_votes_of_broken_documents_are_nan_and_touch_no_other():
    ids, logprobs, _ = top_k()
    holes = logprobs.copy()
    holes[3, 1] = np.nan
    pbar = mean_probability(ids, holes, 12)
    rest = np.delete(ids, 3, axis=0), np.delete(logprobs, 3, axis=0)
    np.testing.assert_allclose(pbar, mean_probability(*rest, 12))
    got = surprise_weighted(ids, holes, pbar, 1)
    assert np.isnan(got[3]).all()
    assert np.isfinite(np.delete(got, 3, axis=0)).all()


def test_padding_is_silent():
    ids, logprobs, _ = top_k()
    padded = np.column_stack([ids, np.zeros(30, int)]), np.column_stack([logprobs, [-np.inf] * 30])
    pbar = mean_probability(*padded, 12)
    np.testing.assert_array_equal(pbar, mean_probability(ids, logprobs, 12))
    assert (surprise_weighted(*padded, pbar, 1)[:, -1] == 0).all()


def test_no_votes():
    empty = np.empty((0, 5), dtype=np.int32), np.empty((0, 5))
    with pytest.warns(UndefinedMetricWarning, match="mean probability is NaN") as seen:
        assert np.isnan(mean_probability(*empty, 12)).all()
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert surprise_weighted(*empty, np.ones(12), 1).shape == (0, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prior_correction([1.0, 2.0]), r"log_scores has the shape \[2\]"),
        (lambda: label_prior(np.empty((3, 0))), r"log_scores has the shape \[3, 0\]"),
        (lambda: apply_prior([[0.0, 1.0]], [0.0]), "log_prior .* each of the 2 labels"),
        (lambda: apply_temperature([[0.0, 1.0]], 0.0), "temperature=0.0 is not allowed"),
        (lambda: apply_temperature([[0.0, 1.0]], math.inf), "temperature=inf is not allowed"),
        (lambda: fit_temperature([[0.0, 1.0]], [0, 1]), "log_scores has 1 rows but target"),
        (lambda: fit_temperature([[0.0, 1.0]], [2]), "target contains 2"),
        (lambda: mean_probability([[0]], [[0.0, -1.0]], 5), r"topk_ids has the shape \[1, 1\]"),
        (lambda: mean_probability([[0, 5]], [[0.0, -1.0]], 5), "0 to 5; allowed are .* 0 to 4"),
        (lambda: mean_probability([[0, -1]], [[0.0, -1.0]], 5), "holds -1 to 0"),
        (lambda: mean_probability([[0.5]], [[0.0]], 5), "must be integers"),
        (lambda: mean_probability([[0]], [[0.0]], 0), "vocabulary=0 is not allowed"),
        (lambda: surprise_weighted([[0]], [[0.0]], [[1.0]], 1), r"pbar has the shape \[1, 1\]"),
        (lambda: surprise_weighted([[0]], [[0.0]], [1.0], -1), "alpha=-1 is not allowed"),
        (lambda: surprise_weighted([[2]], [[0.0]], [1.0], 1), "allowed are token ids 0 to 0"),
    ],
)  # fmt: skip
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- pooled lift ---------------------------------------------------------------------------------


def test_pooled_lift_by_hand() -> None:
    own = np.array([[0.1, 0.3], [0.3, 0.1]])
    votes = np.array([[0.0, 2.0], [0.0, 4.0]])
    unseen = np.array([0.0, 0.5])
    # label 0: nobody votes, so its own lift stands alone; label 1: half own, half neighbours
    expected = [[0.5, 0.5 * 1.5 + 0.5 * 2 / 3], [1.5 + 0.5, 0.5 * 0.5 + 0.5 * 4 / 3 + 0.5]]
    np.testing.assert_allclose(np.exp(corrections.pooled_lift(own, votes, unseen)), expected)


def test_pooled_lift_gives_every_label_the_same_mean_and_no_zero() -> None:
    rng = np.random.default_rng(0)
    own, votes = rng.random((50, 7)) ** 9, rng.random((50, 7)) ** 9
    votes[:, 3] = 0
    votes[5:, 4] = 0
    unseen = rng.random(50) * 0.1
    scores = np.exp(corrections.pooled_lift(own, votes, unseen))
    np.testing.assert_allclose((scores - unseen[:, None]).mean(0), 1.0)
    assert (scores >= unseen[:, None]).all()
    # a label's scale does not matter: that is what the prior correction is for
    scaled = corrections.pooled_lift(own * np.arange(1, 8), votes * 3, unseen)
    np.testing.assert_allclose(np.exp(scaled), scores)


def test_pooled_lift_of_bad_input() -> None:
    own = np.array([[0.5, 0.5], [np.nan, np.nan], [0.25, 0.75]])
    found = corrections.pooled_lift(own, own, np.zeros(3))
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()
    with pytest.raises(ValueError, match="documents, labels"):
        corrections.pooled_lift(own, own[:2], np.zeros(3))
    with pytest.raises(ValueError, match="own_share=2"):
        corrections.pooled_lift(own, own, np.zeros(3), own_share=2)
