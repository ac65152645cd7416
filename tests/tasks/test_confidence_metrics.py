"""Metrics of (confidence, correct): against scikit-learn, and with documents that have none."""

import math

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from lm_eval_semsoft.tasks import confidence_metrics


@pytest.fixture
def items():
    rng = np.random.default_rng(0)
    confidence = rng.integers(1, 11, 300) / 10
    correct = (rng.random(300) < confidence).astype(float)
    return confidence, correct


def columns(confidence, correct):
    rows = [
        confidence_metrics.payloads(f"d{i:03}", c, y)
        for i, (c, y) in enumerate(zip(confidence, correct, strict=True))
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def values(confidence, correct):
    found = columns(confidence, correct)
    return {name: m.aggregation(found[name]) for name, m in confidence_metrics.METRICS.items()}


def test_values_are_those_of_scikit_learn(items):
    confidence, correct = items
    found = values(confidence, correct)
    assert found["accuracy"] == pytest.approx(correct.mean())
    assert found["mean_confidence"] == pytest.approx(confidence.mean())
    assert found["brier"] == pytest.approx(brier_score_loss(correct, confidence))
    assert found["auroc"] == pytest.approx(roc_auc_score(correct, confidence))


def test_unknown_documents_are_left_out_of_what_they_lack(items):
    confidence, correct = items
    more = values(np.append(confidence, [0.9, math.nan]), np.append(correct, [math.nan, 1.0]))
    found = values(confidence, correct)
    for name in ("ece", "ece_sweep", "auroc", "auarc", "brier"):
        assert more[name] == pytest.approx(found[name])
    assert more["accuracy"] == pytest.approx((correct.sum() + 1) / 301)
    assert more["mean_confidence"] == pytest.approx((confidence.sum() + 0.9) / 301)


def test_nothing_known_is_nan():
    found = values([math.nan, 0.5], [1.0, math.nan])
    assert all(math.isnan(found[name]) for name in ("ece", "auroc", "brier"))


def test_standard_errors_fit_the_spread_of_means(items):
    found = columns(*items)
    error = confidence_metrics.METRICS["accuracy"].stderr(found["accuracy"])
    assert error == pytest.approx(items[1].std() / math.sqrt(300), rel=0.15)
