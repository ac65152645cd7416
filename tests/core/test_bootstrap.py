"""The bootstrap against known standard errors, scipy, and resampling written out in full."""

import functools
import inspect
import math
import warnings

import numpy as np
import pytest
from scipy import stats

from lm_eval_semsoft.core import alignment, bootstrap, calibration, classification, corrections
from lm_eval_semsoft.core.bootstrap import (
    Paired,
    UndefinedMetricWarning,
    interval,
    paired,
    replicates,
    resamples,
    stderr,
)

METRICS_OF_PROBS = [
    classification.accuracy,
    classification.macro_f1,
    classification.auroc,
    calibration.brier,
    calibration.nll,
    corrections.fit_temperature,
]
METRICS_OF_CONFIDENCE = [
    classification.confidence_auroc,
    classification.auarc,
    calibration.ece,
    calibration.ece_mass,
    calibration.ece_sweep,
    calibration.smooth_ece,
    alignment.spearman_r,
    functools.partial(calibration.ece, n_bins=4, norm=2),
    functools.partial(calibration.ece_mass, n_bins=4, ties="split"),
    functools.partial(calibration.ece_sweep, norm=1, ties="split"),
]


def example(n=60, labels=4, seed=0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(labels), n).round(2)
    probs[:, 0] += 1 - probs.sum(axis=1)
    return probs, rng.integers(labels, size=n)


def name(metric):
    return getattr(metric, "__name__", None) or f"{metric.func.__name__}-{metric.keywords}"


def test_blocks_are_the_resamples_in_their_order():
    each = np.array(list(resamples(9, 130, seed=2)))
    found = list(bootstrap.blocks(9, 130, seed=2))
    assert len(found) > 1
    assert (np.concatenate([draws.counts for draws in found]) == each).all()
    assert all((draws.columns == draws.counts.T).all() for draws in found)


@pytest.mark.parametrize("ties", [1, 2, 9])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("metric", METRICS_OF_CONFIDENCE, ids=lambda m: name(m))
def test_many_counts_at_a_time_are_each_by_itself(metric, share, ties):
    """Also where half of the documents do not count, or few confidences are different."""
    rng = np.random.default_rng([ties, int(10 * share)])
    confidence, right = rng.random(40).round(ties), rng.random(40) < share
    counts = rng.poisson(0.7, size=(30, 40))
    counts[0] = 1
    try:
        statistic = bootstrap._bind(metric, (confidence, right))
    except bootstrap.UndefinedMetricError:
        return
    found = bootstrap.values_at(statistic, bootstrap.Draws(counts))
    each = [bootstrap.number_at(statistic, own) for own in counts]
    np.testing.assert_allclose(found, each, rtol=0, atol=1e-9)


def expected_replicates(metric, arrays, n, seed):
    """Repeat the rows and call the public metric: what the counts must amount to."""
    values = []
    for counts in resamples(len(arrays[0]), n, seed):
        rows = np.repeat(np.arange(len(counts)), counts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = metric(*(array[rows] for array in arrays))
        values.append(getattr(result, "value", result))
    return values


@pytest.mark.parametrize("metric", METRICS_OF_PROBS, ids=name)
def test_counts_equal_repeated_rows_for_metrics_of_probs(metric):
    arrays = example()
    got = replicates(metric, *arrays, n=40, seed=3)
    np.testing.assert_allclose(got, expected_replicates(metric, arrays, 40, 3), atol=1e-12)
    assert np.ptp(got) > 0


@pytest.mark.parametrize("metric", METRICS_OF_CONFIDENCE, ids=name)
def test_counts_equal_repeated_rows_for_metrics_of_confidence(metric):
    probs, target = example()
    arrays = probs.max(axis=1), classification.correctness(probs, target)
    got = replicates(metric, *arrays, n=40, seed=3)
    np.testing.assert_allclose(got, expected_replicates(metric, arrays, 40, 3), atol=1e-12)
    assert np.ptp(got) > 0


def test_several_labels_per_document_are_resampled_with_their_rows():
    probs, _ = example()
    allowed = np.random.default_rng(1).random(probs.shape) < 0.4
    allowed[:, 0] |= ~allowed.any(axis=1)
    for metric in METRICS_OF_PROBS:
        got = replicates(metric, probs, allowed, n=10)
        np.testing.assert_allclose(
            got, expected_replicates(metric, (probs, allowed), 10, 0), atol=1e-12
        )


def test_stderr_of_a_mean_is_the_textbook_one():
    values = np.random.default_rng(0).random(400)
    exact = values.std() / math.sqrt(len(values))
    assert stderr(calibration.mean_confidence, values, n=4000) == pytest.approx(exact, rel=0.05)
    assert stderr(np.mean, values, n=4000) == pytest.approx(exact, rel=0.05)


def test_interval_agrees_with_scipy():
    x = np.random.default_rng(0).random(300)
    low, high = interval(calibration.mean_confidence, x, n=4000, level=0.9)
    theirs = stats.bootstrap(
        (x,), np.mean, n_resamples=4000, confidence_level=0.9, method="percentile", rng=1
    )
    width = high - low
    assert low == pytest.approx(theirs.confidence_interval.low, abs=0.06 * width)
    assert high == pytest.approx(theirs.confidence_interval.high, abs=0.06 * width)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = interval(calibration.mean_confidence, rng.random(80), n=200, level=0.9)
        covered += low <= 0.5 <= high
    assert 0.82 <= covered / 200 <= 0.96


def test_a_seed_fixes_the_resamples_and_all_metrics_share_them():
    first, again = list(resamples(7, 5, 1)), list(resamples(7, 5, 1))
    np.testing.assert_array_equal(first, again)
    assert all(counts.sum() == 7 and counts.min() >= 0 for counts in first)
    assert not np.array_equal(first, list(resamples(7, 5, 2)))

    x = np.random.default_rng(0).random(50)
    np.testing.assert_allclose(
        replicates(calibration.mean_confidence, x, n=20), replicates(np.mean, x, n=20)
    )


def test_every_document_is_drawn_equally_often():
    total = sum(resamples(20, 5000, 0))
    assert stats.chisquare(total).pvalue > 1e-4


def test_undefined_resamples_are_dropped_without_warnings():
    confidence, correct = np.linspace(0.1, 0.9, 12), np.arange(12) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = replicates(classification.confidence_auroc, confidence, correct)
        value = stderr(classification.confidence_auroc, confidence, correct)
        low, high = interval(classification.confidence_auroc, confidence, correct)
    assert 100 < np.isnan(values).sum() < 500  # (11/12)^12 = .35 of them have no right answer
    assert value == pytest.approx(np.nanstd(values, ddof=1))
    assert (low, high) == pytest.approx(tuple(np.nanpercentile(values, [2.5, 97.5])))
    assert 0 < value < high - low


@pytest.mark.parametrize("measure", [stderr, interval])
def test_too_few_defined_resamples_give_nan_and_one_warning(measure):
    def spread(x):  # defined on 3! / 3^3 = .22 of the resamples
        return x.std() if len(set(x)) == 3 else math.nan

    with pytest.warns(UndefinedMetricWarning, match=r"of spread is NaN.*on \d+ of 1000") as seen:
        assert np.isnan(measure(spread, [1.0, 2.0, 4.0])).all()
    assert len(seen) == 1


@pytest.mark.parametrize("measure", [stderr, interval])
def test_no_second_warning_where_the_metric_itself_is_undefined(measure):
    for arrays in (([], []), ([0.2, np.nan], [0, 1]), ([0.2, 0.3], [1, 1])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isnan(measure(classification.confidence_auroc, *arrays)).all()


def test_one_document_has_no_standard_error():
    with pytest.warns(UndefinedMetricWarning, match="at least two") as seen:
        assert math.isnan(stderr(calibration.ece, [0.5], [1]))
    assert len(seen) == 1
    assert seen[0].filename == __file__


def test_infinite_replicates_give_nan_and_one_warning():
    probs, target = np.array([[1.0, 0.0], [0.5, 0.5], [0.4, 0.6]]), np.array([1, 0, 1])
    with pytest.warns(UndefinedMetricWarning, match="nll.*infinite") as seen:
        assert math.isnan(stderr(calibration.nll, probs, target))
    assert len(seen) == 1


def test_parts_of_the_brier_score_are_functions_of_the_counts_too():
    probs, target = example()
    at = calibration.brier_decomposition.prepare(probs, target).at
    for counts in resamples(len(target), 10, 3):
        rows = np.repeat(np.arange(len(counts)), counts)
        expected = calibration.brier_decomposition(probs[rows], target[rows])
        assert at(counts) == pytest.approx(expected, abs=1e-12)


def test_paired_is_the_difference_on_the_same_resamples():
    (a, target), (b, _) = example(), example(seed=1)
    expected = np.subtract(
        expected_replicates(calibration.brier, (a, target), 200, 5),
        expected_replicates(calibration.brier, (b, target), 200, 5),
    )
    got = paired(calibration.brier, (a, target), (b, target), n=200, seed=5, level=0.8)
    difference = calibration.brier(a, target) - calibration.brier(b, target)
    assert got.difference == pytest.approx(difference)
    assert (got.low, got.high) == pytest.approx(tuple(np.percentile(expected, [10, 90])))
    assert got.probability == np.mean(expected > 0)
    assert got.n == 60
    loss = paired(
        calibration.brier, (a, target), (b, target), n=200, seed=5, higher_is_better=False
    )
    assert loss.difference == got.difference
    assert loss.probability == pytest.approx(1 - got.probability)


def test_paired_turns_around_with_its_sides():
    (a, target), (b, _) = example(), example(seed=1)
    one = paired(classification.accuracy, (a, target), (b, target), n=300)
    other = paired(classification.accuracy, (b, target), (a, target), n=300)
    assert other.difference == -one.difference
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=1e-12)
    assert other.probability == pytest.approx(1 - one.probability)


def test_paired_is_far_sharper_than_two_intervals():
    rng = np.random.default_rng(0)
    hard = rng.random(500)  # what makes a document hard, it does for both
    a, b = hard + 0.001 + 0.001 * rng.random(500), hard + 0.001 * rng.random(500)
    got = paired(np.mean, (a,), (b,))
    assert got.low > 0
    assert got.probability == 1
    width = np.ptp(interval(np.mean, a))
    assert got.high - got.low < width / 100


def test_paired_ties_count_one_half():
    probs, target = example()
    assert paired(classification.accuracy, (probs, target), (probs, target)) == Paired(
        0.0, 0.0, 0.0, 0.5, 60
    )
    # One document of two is right for a only: a resample without it (1/4 of all) is a tie.
    got = paired(np.mean, ([1, 0],), ([0, 0],), n=4000)
    assert got.probability == pytest.approx(0.75 + 0.25 / 2, abs=0.02)


def test_paired_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        a, b = rng.random((2, 80))
        got = paired(calibration.mean_confidence, (a,), (b,), n=100, level=0.9)
        covered += got.low <= 0 <= got.high
    assert 0.82 <= covered / 200 <= 0.96


def test_paired_drops_undefined_resamples():
    correct = np.arange(12) == 7  # a third of the resamples has no right answer
    a, b = np.linspace(0.1, 0.9, 12), np.linspace(0.9, 0.1, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = paired(classification.confidence_auroc, (a, correct), (b, correct))
    assert got.difference == pytest.approx(7 / 11 - 4 / 11)
    assert -1 <= got.low < got.difference < got.high <= 1
    assert 0.5 < got.probability < 1


def test_paired_without_a_value_is_nan_with_one_warning():
    auroc, fine = classification.confidence_auroc, ([0.2, 0.3], [1, 0])
    for a, b in ((([0.2, 0.3], [1, 1]), fine), (fine, ([0.2, np.nan], [0, 1])), (([], []),) * 2):
        with pytest.warns(UndefinedMetricWarning, match="confidence_auroc is NaN") as seen:
            got = paired(auroc, a, b)
        assert len(seen) == 1 + (a == b)
        assert np.isnan([got.difference, got.low, got.high, got.probability]).all()
    with pytest.warns(UndefinedMetricWarning, match="paired comparison of ece.*least two") as seen:
        got = paired(calibration.ece, ([0.5], [1]), ([0.25], [1]))
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert got.difference == -0.25
    assert np.isnan([got.low, got.high, got.probability]).all()

    certain, sure = np.array([[1.0, 0.0], [0.5, 0.5], [0.4, 0.6]]), np.full((3, 2), 0.5)
    with pytest.warns(UndefinedMetricWarning, match="paired.*infinite"):
        got = paired(calibration.nll, (certain, [1, 0, 1]), (sure, [1, 0, 1]))
    assert got.difference == math.inf
    assert math.isnan(got.probability)


def test_two_documents_work():
    probs, target = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0])
    assert 0 < stderr(classification.accuracy, probs, target) < 1
    assert 0 < stderr(calibration.ece_sweep, probs.max(axis=1), np.array([1, 0])) < 1


def test_a_function_from_elsewhere_may_raise_its_own_errors():
    with pytest.raises(ZeroDivisionError):
        stderr(lambda x: 1 / 0, [1, 2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stderr(np.mean), "no arrays"),
        (lambda: stderr(np.mean, [1, 2], [1, 2, 3]), "2, 3 rows"),
        (lambda: stderr(np.mean, 3.0), "single number"),
        (lambda: stderr(np.mean, [1, 2], n=1), "n=1 is not allowed"),
        (lambda: replicates(np.mean, [1, 2], n=0), "n=0 is not allowed"),
        (lambda: resamples(0), "documents=0 is not allowed"),
        (lambda: interval(np.mean, [1, 2], level=95), "level=95"),
        (lambda: paired(np.mean, ([1, 2],), ([1, 2],), level=95), "level=95"),
        (lambda: paired(np.mean, ([1, 2],), ([1, 2],), n=1), "n=1 is not allowed"),
        (lambda: paired(np.mean, ([1, 2],), ([1, 2, 3],)), "2, 3 rows"),
        (lambda: paired(np.mean, np.ones(2), (np.ones(2),)), "a_arrays is ndarray"),
        (lambda: stderr(calibration.ece, [0.5, 0.5], [1, 2]), "correct contains 2"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_metrics_keep_their_documentation_and_show_their_real_type():
    signature = inspect.signature(calibration.ece)
    assert list(signature.parameters) == ["confidence", "correct", "n_bins", "norm"]
    assert signature.return_annotation is float
    assert inspect.signature(calibration.ece_sweep).return_annotation is calibration.SweepECE
    assert "equal-width" in (calibration.ece.__doc__ or "")
    assert calibration.ece(confidence=[0.5], correct=[1]) == 0.5
    assert bootstrap.Interval(0.1, 0.2).high == 0.2
