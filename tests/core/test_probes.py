"""Probes against scikit-learn on the full activations, and against what chance does."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.model_selection import KFold

from lm_eval_semsoft.core import probes
from lm_eval_semsoft.core.alignment import spearman
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning, interval, stderr
from lm_eval_semsoft.core.probes import Estimate, probe
from lm_eval_semsoft.core.ridge import PENALTIES, Ridge, principal_scores

FEW = {"permutations": 20, "draws": 50}


def activations(n: int, layers: int, d: int, seed: int = 0) -> np.ndarray:
    """Some numbers large, most small, and far from 0, as in a residual stream."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, layers, d)) * np.exp(-3 * np.arange(d) / d) + 5


def planted(n: int = 120, layers: int = 4, d: int = 200, at: int = 2, noise: float = 0.5):
    """The target is a direction of layer `at`, strong enough to be found."""
    rng = np.random.default_rng(1)
    y = rng.normal(size=n)
    hidden = activations(n, layers, d)
    direction = rng.normal(size=d)
    hidden[:, at] += 1.5 * y[:, None] * direction / np.linalg.norm(direction) * math.sqrt(6)
    return hidden.astype(np.float16), y + noise * rng.normal(size=n)


# ------------------------------------------------------------------ scikit-learn


@pytest.mark.parametrize(("n", "d"), [(40, 90), (90, 30), (40, 32)])
def test_it_is_scikit_learns_ridge_and_least_squares(n, d):
    """RidgeCV and LinearRegression in each fold, on all of the layer's numbers."""
    x, y = activations(n, 1, d)[:, 0], np.random.default_rng(3).normal(size=n)
    y = y + x[:, 0] + 0.5 * x[:, 1]
    scores = principal_scores(x)
    assert scores.shape == (n, min(n, d))
    for train, test in KFold(5, shuffle=True, random_state=42).split(x):
        centred = x[train] - x[train].mean(axis=0)
        alphas = PENALTIES * (centred**2).sum()
        theirs = RidgeCV(alphas=alphas).fit(x[train], y[train])
        ours = Ridge(scores[train], y[train, None])
        assert alphas[ours.choice[0]] == theirs.alpha_
        assert ours.error[0] == pytest.approx(-theirs.best_score_, rel=1e-8)
        np.testing.assert_allclose(
            ours.predict(scores[test])[:, 0], theirs.predict(x[test]), rtol=1e-7
        )
        ols = LinearRegression().fit(x[train], y[train])
        np.testing.assert_allclose(
            ours.predict_ols(scores[test])[:, 0], ols.predict(x[test]), rtol=1e-6
        )


def test_many_targets_are_scikit_learns_alpha_per_target():
    x, y = activations(50, 1, 80)[:, 0], np.random.default_rng(3).normal(size=(50, 6))
    y[:, 0] += x[:, 0]
    alphas = PENALTIES * ((x - x.mean(axis=0)) ** 2).sum()
    theirs = RidgeCV(alphas=alphas, alpha_per_target=True).fit(x, y)
    ours = Ridge(principal_scores(x), y)
    assert len(set(ours.choice)) > 1
    np.testing.assert_array_equal(alphas[ours.choice], theirs.alpha_)
    np.testing.assert_allclose(ours.predict(principal_scores(x)), theirs.predict(x), rtol=1e-6)


def test_the_whole_procedure_is_nested_ridge():
    """Written once more, slowly: layer and penalty by leave-one-out inside each fold."""
    hidden, y = planted(n=50, layers=3, d=30, noise=2.0)
    got = probe(hidden, y, folds=5, seed=7, **FEW)
    wide = hidden.astype(np.float64)
    predicted, observed, chosen, alone = np.zeros(50), np.zeros(50), [], np.zeros((3, 50))
    for train, test in KFold(5, shuffle=True, random_state=7).split(y):
        models = []
        for layer in range(3):
            x = wide[train, layer]
            alphas = PENALTIES * ((x - x.mean(axis=0)) ** 2).sum()
            models.append(RidgeCV(alphas=alphas).fit(x, y[train]))
            own = models[-1].predict(wide[test, layer])
            alone[layer, test] = (own - own.mean()) / own.std()
        chosen.append(int(np.argmax([m.best_score_ for m in models])))
        predicted[test] = alone[chosen[-1], test]
        observed[test] = y[test] - y[test].mean()
    assert got.layer_of_fold == tuple(chosen)
    assert got.layer == Counter(sorted(chosen)).most_common(1)[0][0]
    assert got.pearson.r == pytest.approx(np.corrcoef(predicted, observed)[0, 1])
    assert got.spearman.r == pytest.approx(scipy.stats.spearmanr(predicted, observed).statistic)
    for layer, own in enumerate(got.layers):
        assert own.pearson.r == pytest.approx(np.corrcoef(alone[layer], observed)[0, 1])
    assert got.max_over_layers == int(np.argmax([own.pearson.r for own in got.layers]))


def test_least_squares_is_the_studys_figure():
    """Mean over folds of Pearson's r of LinearRegression, predictions not centred."""
    hidden, y = planted(n=60, layers=2, d=100, at=1)
    got = probe(hidden, y, **FEW)
    for layer in range(2):
        x, r = hidden[:, layer].astype(np.float64), []
        for train, test in KFold(10, shuffle=True, random_state=42).split(x):
            own = LinearRegression().fit(x[train], y[train]).predict(x[test])
            r.append(np.corrcoef(own, y[test])[0, 1])
        assert got.layers[layer].ols_r == pytest.approx(np.mean(r), abs=1e-6)
    assert got.ols_layer == 1


def test_intervals_are_stretched_percentiles_of_resampled_pairs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    y = x[:, 0] + rng.normal(size=50)
    plain, naive = np.ones(2), probes._correlations(x, y[:, None])[1]

    def slow(a, b):
        return np.corrcoef(a, b)[0, 1]

    got = probes._pearson(x, y, plain, 100, 3, 0.9)
    twice = probes._pearson(x, y, 2 * plain, 100, 3, 0.9)
    ranked = probes._spearman(x, y, plain, 100, 3, 0.9)
    for i in range(2):
        assert got[i].r == pytest.approx(slow(x[:, i], y))
        low, high = interval(slow, x[:, i], y, n=100, seed=3, level=0.9)
        assert (got[i].low, got[i].high) == pytest.approx((low, high))
        assert naive[i] ** 0.5 == pytest.approx(stderr(slow, x[:, i], y), rel=0.1)
        assert twice[i].high - twice[i].r == pytest.approx(2 * (high - got[i].r))
        assert twice[i].r - twice[i].low == pytest.approx(2 * (got[i].r - low))
        theirs = spearman(x[:, i], y, n=100, seed=3, level=0.9)
        assert (ranked[i].r, ranked[i].low) == pytest.approx((theirs.r, theirs.low))


# ------------------------------------------------------------------ what it finds


def test_a_planted_direction_is_found():
    hidden, y = planted()
    got = probe(hidden, y, **FEW)
    assert got.layer == got.max_over_layers == got.ols_layer == 2
    assert got.layer_of_fold == (2,) * 10
    assert got.pearson.r > 0.7
    assert 0.5 < got.pearson.low < got.pearson.r < got.pearson.high <= 1
    assert got.spearman.low > 0.5
    assert got.p == 1 / 21
    assert got.layers[2].pearson.r > got.layers[2].control_high
    for other in (0, 1, 3):
        assert got.layers[other].pearson.low < 0 < got.layers[other].pearson.high
        assert got.layers[other].control_low < got.layers[other].pearson.r
    assert min(got.stretch) >= 1
    assert 0 < got.stderr < 0.1
    assert (got.n, got.dropped, got.dropped_activations) == (120, 0, 0)


@pytest.mark.slow
def test_on_shuffled_targets_the_headline_covers_0_and_the_maximum_does_not():
    n, layers, repetitions = 60, 24, 100
    hidden = activations(n, layers, 12)
    covered = dict.fromkeys(("nested", "spearman", "max_over_layers", "unstretched"), 0)
    exact = 0
    for seed in range(repetitions):
        y = np.random.default_rng(seed).permutation(np.arange(n) ** 1.5)  # skewed, as times are
        got = probe(hidden, y, folds=5, seed=seed, permutations=40, draws=200)
        assert got.max_over_layers is not None
        best = got.layers[got.max_over_layers].pearson
        r, (low, high), k = got.pearson.r, (got.pearson.low, got.pearson.high), got.stretch[0]
        plain = replace(got.pearson, low=r - (r - low) / k, high=r + (high - r) / k)
        found = (got.pearson, got.spearman, best, plain)
        for name, own in zip(covered, found, strict=True):
            covered[name] += own.low <= 0 <= own.high
        exact += got.p <= 0.05
    assert covered["nested"] >= 93
    assert covered["spearman"] >= 93
    assert covered["max_over_layers"] < 93
    assert covered["unstretched"] < 93  # why intervals are wider than the bootstrap's
    assert exact <= 11  # 5 expected; more than 11 once in 200 tests


def test_chance_gives_0_on_average():
    """Pooled predictions that are only centred would not: see the module's docstring."""
    x, y = activations(60, 1, 20)[:, 0], np.random.default_rng(2).normal(size=60)
    targets = probes._with_shuffles(y, 400, 1)
    split = list(KFold(10, shuffle=True, random_state=42).split(y))
    fit, _, _ = probes._fit_layer(x, targets, split)
    assert abs(fit.r[1:].mean()) < 3 * fit.r[1:].std() / math.sqrt(400)
    assert fit.r[1:].std() > 1.2 * math.sqrt(fit.naive[1:].mean())  # hence stretched intervals


def test_the_same_seed_gives_the_same():
    hidden, y = planted(n=40, layers=2, d=20, at=1)
    assert probe(hidden, y, **FEW) == probe(hidden, y, **FEW)
    assert probe(hidden, y, seed=1, **FEW) != probe(hidden, y, **FEW)


def test_correlations_do_not_know_units():
    hidden, y = planted(n=60, layers=2, d=20, at=1)
    one = probe(hidden.astype(np.float64), y, **FEW)
    other = probe(hidden.astype(np.float64) / 64, 1000 * y - 7, **FEW)
    assert other.pearson.r == pytest.approx(one.pearson.r)
    assert other.layer_of_fold == one.layer_of_fold
    assert other.layers[0].penalties == one.layers[0].penalties
    assert set(one.layers[0].penalties) <= set(PENALTIES)


# ------------------------------------------------------------------ what cannot be computed


def warned(*args, **kwargs):
    """The result and the reasons that were given."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = probe(*args, **(FEW | kwargs))
    assert all(w.category is UndefinedMetricWarning for w in seen)
    return got, [str(w.message) for w in seen]


def is_nan(estimate: Estimate) -> bool:
    return bool(np.isnan([estimate.r, estimate.low, estimate.high]).all())


@pytest.mark.parametrize(
    ("n", "change", "reason"),
    [
        (9, None, "there are 9 documents"),
        (19, None, "19 documents are too few for 10 folds"),
        (40, lambda hidden, y: (hidden, np.full(40, 0.3)), "the target is constant"),
        (40, lambda hidden, y: (hidden, np.full(40, np.nan)), "there are 0 documents"),
        (40, lambda hidden, y: (np.full_like(hidden, np.nan), y), "there are 0 documents"),
        (40, lambda hidden, y: (hidden * 0, y), "all documents have the same activations"),
        (0, None, "there are 0 documents"),
    ],
)
def test_it_is_nan_with_a_reason(n, change, reason):
    hidden, y = activations(n, 2, 8), np.random.default_rng(0).normal(size=n)
    got, messages = warned(*(change(hidden, y) if change else (hidden, y)))
    assert is_nan(got.pearson)
    assert is_nan(got.spearman)
    assert np.isnan([got.p, got.stderr]).all()
    assert (got.layer, got.max_over_layers, got.ols_layer) == (None, None, None)
    assert [is_nan(layer.pearson) for layer in got.layers] == [True, True]
    assert len(messages) == 1
    assert reason in messages[0]
    assert reason in got.flaw


def test_documents_without_target_are_dropped_and_counted():
    hidden, y = planted(n=60, layers=2, d=20, at=1)
    y[[3, 30, 59]] = np.nan, np.inf, np.nan
    hidden[10] = np.nan
    got, messages = warned(hidden, y)
    assert (got.n, got.dropped, got.dropped_activations) == (56, 3, 1)
    rest = np.delete(np.arange(60), [3, 10, 30, 59])
    assert got.pearson == probe(hidden[rest], y[rest], **FEW).pearson
    assert messages == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_layer_that_overflowed_is_nan_and_the_others_are_not(value):
    hidden, y = planted(n=60, layers=3, d=20)
    clean = probe(hidden[:, 1:], y, **FEW)
    hidden[[5, 6], 0, 3] = value
    got, messages = warned(hidden, y)
    assert messages == [
        "the probe of layer 0 is NaN: activations of 2 of 60 documents are NaN or infinite."
    ]
    assert is_nan(got.layers[0].pearson)
    assert math.isnan(got.layers[0].ols_r)
    assert "2 of 60" in got.layers[0].flaw
    assert got.layers[1:] == clean.layers
    assert got.pearson == clean.pearson
    assert got.layer_of_fold == tuple(layer + 1 for layer in clean.layer_of_fold)


def test_a_target_that_is_constant_in_some_folds():
    """Right or wrong, and hardly ever right."""
    hidden, y = activations(40, 2, 20), np.zeros(40)
    y[[0, 1, 2]] = 1
    got, messages = warned(hidden, y)
    assert messages == []
    assert -1 <= got.pearson.r <= 1
    assert np.isfinite([layer.ols_r for layer in got.layers]).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden": np.zeros((20, 4))}, r"hidden is float64 of the shape \[20, 4\]"),
        ({"hidden": np.zeros((20, 2, 3), dtype=int)}, "it must be floating-point numbers"),
        ({"hidden": np.zeros((20, 0, 3))}, "there is nothing in it"),
        ({"target": np.zeros(19)}, r"target has the shape \[19\] but hidden has 20 documents"),
        ({"folds": 1}, "folds=1 is not allowed; it must be an integer >= 2"),
        ({"permutations": 5}, "permutations=5 is not allowed; it must be an integer >= 20"),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence):
    given = {"hidden": np.zeros((20, 2, 3)), "target": np.arange(20.0)}
    with pytest.raises(ValueError, match=sentence):
        probe(**(given | change))
