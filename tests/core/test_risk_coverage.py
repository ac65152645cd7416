"""Risk-coverage curves against the definition, with ties resolved by trying every order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lm_eval_semsoft.core import bootstrap
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.classification import auarc
from lm_eval_semsoft.core.risk_coverage import aurc, selective_risk


def by_every_order(confidence: list[float], right: list[int]) -> np.ndarray:
    """Selective risk at k = 1..n, averaged over every order that confidence allows: [n]."""
    n = len(right)
    curves = [
        [sum(1 - right[i] for i in order[:k]) / k for k in range(1, n + 1)]
        for order in itertools.permutations(range(n))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean(curves, axis=0)


def at_all(statistic: bootstrap.Statistic) -> np.ndarray:
    return statistic.at(np.ones(statistic.n, dtype=np.int64))


@pytest.mark.parametrize("seed", range(6))
def test_every_order_of_ties(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    confidence = (rng.integers(0, 3, n) / 10).tolist()
    right = rng.integers(0, 2, n).tolist()
    expected = by_every_order(confidence, right)
    coverage = np.arange(1, n + 1) / n
    assert at_all(selective_risk(confidence, right, coverage)) == pytest.approx(expected)
    assert aurc(confidence, right) == pytest.approx(expected.mean())
    assert aurc(confidence, right) == pytest.approx(1 - auarc(confidence, right))


def test_on_resamples_documents_are_repeated():
    rng = np.random.default_rng(0)
    confidence, right = rng.integers(0, 8, 40) / 8, rng.integers(0, 2, 40)
    grid = np.array([0.01, 0.3, 0.5, 1.0])
    statistic = selective_risk(confidence, right, grid)
    for counts in bootstrap.resamples(40, 5):
        rows = np.repeat(np.arange(40), counts)
        again = selective_risk(confidence[rows], right[rows], grid)
        assert statistic.at(counts) == pytest.approx(at_all(again))


def test_by_hand():
    # two right at .9, one right and one wrong at .5, one wrong at .1
    confidence, right = [0.9, 0.5, 0.1, 0.9, 0.5], [1, 1, 0, 1, 0]
    found = at_all(selective_risk(confidence, right, [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]))
    assert found == pytest.approx([0, 0, 0, 0.5 / 3, 1 / 4, 2 / 5])
    assert aurc(confidence, right) == pytest.approx((0 + 0 + 0.5 / 3 + 1 / 4 + 2 / 5) / 5)


def test_a_confidence_that_knows_nothing_is_flat():
    right = [1, 0, 0, 1, 0]
    assert at_all(selective_risk([0.3] * 5, right, [0.2, 0.5, 1])) == pytest.approx([0.6] * 3)
    assert aurc([0.3] * 5, right) == pytest.approx(0.6)


def test_what_cannot_be_computed():
    with pytest.warns(UndefinedMetricWarning, match="NaN"):
        assert math.isnan(aurc([0.1, math.nan], [1, 0]))
    with pytest.raises(ValueError, match="coverage"):
        selective_risk([0.1], [1], [0.0, 1.0])
    with pytest.raises(ValueError, match="2 values but correct has 1"):
        aurc([0.1, 0.2], [1])
