"""Payloads and aggregations of the `human_alignment` tasks, against scipy."""

import math
import pickle
import warnings

import numpy as np
import pytest
from scipy.stats import entropy, spearmanr

from lm_eval_semsoft.core import calibration
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.tasks import alignment_metrics, metrics, people
from lm_eval_semsoft.tasks.alignment_metrics import (
    constant,
    process_calibration,
    process_entropy,
    process_times,
    spearman,
    spearman_stderr,
)

pytestmark = pytest.mark.usefixtures("quick")
N = 40


def document(i, rng, n_options=4):
    shares = rng.dirichlet(np.ones(n_options)).tolist()
    row = people.document(
        f"d{i:03}",
        "?",
        options=[str(k) for k in range(n_options)],
        labels=[int(rng.integers(n_options))],
        human_shares=shares,
        human_accuracy=shares[0],
        response_time=float(rng.integers(1000, 9000)),
        response_time_correct=math.nan if i % 7 == 0 else float(rng.integers(1000, 9000)),
    )
    return {**row, "published_data": 1, "dropped_documents": 3, "dropped_times": 2}


@pytest.fixture
def run(answers):
    """Documents with 2 to 5 options, what the model said, and all payloads."""
    rng = np.random.default_rng(3)
    docs = [document(i, rng, 2 + i % 4) for i in range(N)]
    probs = [rng.dirichlet(np.ones(len(doc["options"]))) for doc in docs]
    told = [(float(rng.uniform(0, 9)), float(rng.uniform(0.1, 1))) for _ in docs]
    results = [answers(p * 0.7, *t) for p, t in zip(probs, told, strict=True)]
    payloads = [process_times(d, r) for d, r in zip(docs, results, strict=True)]
    return docs, probs, told, payloads


def column(payloads, name):
    return [payload[name] for payload in payloads]


def test_spearman_of_every_measure_and_target(run):
    docs, probs, told, payloads = run
    measures = {
        "option": [entropy(p) / math.log(len(p)) for p in probs],
        "full": [e for e, _ in told],
        "top1": [1 - p for _, p in told],
    }
    targets = {
        "entropy": [entropy(d["human_shares"]) / math.log(len(d["options"])) for d in docs],
        "rt": [d["response_time"] for d in docs],
        "rt_correct": [d["response_time_correct"] for d in docs],
    }
    for target, y in targets.items():
        for measure, x in measures.items():
            known = ~np.isnan(y)
            expected = spearmanr(np.array(x)[known], np.array(y)[known]).statistic
            items = column(payloads, f"spearman_{target}_{measure}")
            assert spearman(items) == pytest.approx(expected, abs=1e-12)
            assert 0.02 < spearman_stderr(items) < 0.5


def test_calibration_is_that_of_the_options(run):
    docs, probs, _, payloads = run
    confidence = [p.max() for p in probs]
    correct = [p.argmax() in d["labels"] for p, d in zip(probs, docs, strict=True)]
    assert metrics.mean(column(payloads, "accuracy")) == pytest.approx(np.mean(correct))
    assert metrics.ece(column(payloads, "ece")) == calibration.ece(confidence, correct)
    expected = calibration.ece_sweep(confidence, correct).value
    assert metrics.ece_sweep(column(payloads, "ece_sweep")) == pytest.approx(expected)


def test_people_have_a_calibration_of_their_own(run):
    docs, _, _, payloads = run
    confidence = [max(d["human_shares"]) for d in docs]
    correct = [int(np.argmax(d["human_shares"])) in d["labels"] for d in docs]
    expected = calibration.ece(confidence, correct)
    assert metrics.ece(column(payloads, "human_ece")) == pytest.approx(expected)
    assert metrics.mean(column(payloads, "human_accuracy")) == pytest.approx(
        np.mean([d["human_shares"][0] for d in docs])
    )


def test_counts(run):
    *_, payloads = run
    assert constant(column(payloads, "dropped_documents")) == 3
    assert constant(column(payloads, "dropped_times")) == 2
    assert math.isnan(constant([]))


def test_a_stock_model_has_no_readouts(answers):
    rng = np.random.default_rng(3)
    docs = [document(i, rng) for i in range(N)]
    payloads = [process_times(d, answers(rng.dirichlet(np.ones(4)))) for d in docs]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for measure in ("full", "top1"):
            items = column(payloads, f"spearman_entropy_{measure}")
            assert math.isnan(spearman(items))
            assert math.isnan(spearman_stderr(items))
        assert not math.isnan(spearman(column(payloads, "spearman_entropy_option")))


@pytest.mark.parametrize("target", ["entropy", "rt"])
def test_targets_that_have_no_order_are_nan_with_a_reason(answers, target):
    rng = np.random.default_rng(3)
    docs = [document(i, rng) for i in range(N)]
    for doc in docs:
        doc |= {"human_entropy": 0.5, "response_time": math.nan}
    payloads = [process_times(d, answers(rng.dirichlet(np.ones(4)))) for d in docs]
    with pytest.warns(UndefinedMetricWarning, match="constant|at least 10"):
        assert math.isnan(spearman(column(payloads, f"spearman_{target}_option")))


def test_fewer_than_ten_documents(run):
    *_, payloads = run
    with pytest.warns(UndefinedMetricWarning, match="there are 9 pairs"):
        assert math.isnan(spearman(column(payloads[:9], "spearman_entropy_option")))


def test_no_shares_no_human_ece(answers):
    doc = {**people.document("a", "?", options=["x", "y"], labels=[0]), "published_data": 1}
    doc |= {"dropped_documents": 0}
    payloads = process_entropy(doc, answers([0.6, 0.4]))
    assert np.isnan(tuple(payloads["human_ece"])).all()
    assert set(process_calibration(doc, answers([0.6, 0.4]))) == {
        *(f"{name}{tail}" for name in alignment_metrics.CALIBRATION for tail in ("", "_stderr")),
        *("dropped_documents", "published_data"),
    }


def test_nan_scores_do_not_pass_for_something(answers):
    rng = np.random.default_rng(3)
    payload = process_times(document(1, rng), answers([math.nan, 0.5, 0.2, 0.2]))
    assert math.isnan(payload["accuracy"])
    assert math.isnan(payload["spearman_entropy_option"][0])


def test_standard_errors_do_not_depend_on_the_order(run):
    *_, payloads = run
    items = column(payloads, "spearman_entropy_full")
    assert spearman_stderr(items) == spearman_stderr(items[::-1])
    assert pickle.loads(pickle.dumps(items)) == items
