"""Payloads and aggregations of label-set tasks, against scikit-learn and loops written here."""

import json
import math
import pickle
import random
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from lm_eval_semsoft.core import calibration
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.tasks import metrics
from lm_eval_semsoft.tasks.metrics import DocRecord, DocValue, process_results

BASE_YAML = Path(__file__).parents[2] / "task_configs" / "_label_set.yaml"
N_LABELS = 6
MEASURES = ("accuracy", "macro_f1", "auroc", "brier", "nll", "ece", "ece_sweep", "mean_confidence")


@pytest.fixture(autouse=True)
def quick_and_fresh(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)
    metrics._warn.cache_clear()


class Score(tuple):
    """As a semsoft model returns it: a pair that knows the label's own probability."""

    def __new__(cls, score, constrained):
        self = super().__new__(cls, (score, False))
        self.constrained = constrained
        return self


def document(i, labels, published=1):
    return {"id": f"doc{i:04}", "labels": labels, "published_data": published}


@pytest.fixture(scope="module")
def run():
    """60 documents: constrained log-scores, semantic ones, one target each."""
    rng = np.random.default_rng(5)
    target = np.concatenate([np.arange(N_LABELS), rng.integers(N_LABELS, size=54)])
    own = rng.normal(size=(60, N_LABELS)) * 2 - 8
    own[np.arange(60), target] += rng.normal(1, 1, size=60)
    scores = np.logaddexp(own, rng.normal(size=(60, N_LABELS)) - 9)
    docs = [document(i, [int(t)]) for i, t in enumerate(target)]
    payloads = [
        process_results(d, [Score(s, o) for s, o in zip(*both, strict=True)])
        for d, both in zip(docs, zip(scores, own, strict=True), strict=True)
    ]
    return SimpleNamespace(scores=scores, own=own, target=target, docs=docs, payloads=payloads)


def aggregate(payloads):
    """What the harness does: every metric's aggregation, as the YAML names it."""
    return {
        entry["metric"]: entry["aggregation"]([p[entry["metric"]] for p in payloads])
        for entry in metric_list()
    }


def metric_list():
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: resolve(node.value))
    return yaml.load(BASE_YAML.read_text(), Loader=loader)["metric_list"]


def resolve(name):
    module, _, function = name.rpartition(".")
    assert module == "lm_eval_semsoft.tasks.metrics"
    return getattr(metrics, function)


def oracle(scores, target):
    """The same figures from scikit-learn and from definitions written as loops."""
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    top, confidence = probs.argmax(axis=1), probs.max(axis=1)
    bins = [[i for i, c in enumerate(confidence) if min(int(c * 15), 14) == b] for b in range(15)]
    right = top == target
    return {
        "accuracy": accuracy_score(target, top),
        "macro_f1": f1_score(target, top, average="macro", zero_division=0),
        "auroc": roc_auc_score(target, probs, multi_class="ovr", average="macro"),
        "brier": np.mean(((probs - np.eye(N_LABELS)[target]) ** 2).sum(axis=1)),
        "nll": log_loss(target, probs),
        "ece": sum(abs(sum(right[i] - confidence[i] for i in b)) for b in bins) / len(target),
        "ece_sweep": calibration.ece_sweep(confidence, right).value,
        "mean_confidence": confidence.mean(),
    }


def test_values_equal_scikit_learn(run):
    table = aggregate(run.payloads)
    expected = oracle(run.scores, run.target)
    expected |= {f"constrained_{k}": v for k, v in oracle(run.own, run.target).items()}
    winner = run.scores.argmax(axis=1)
    rows = np.arange(60)
    share = 1 - np.exp(run.own[rows, winner]) / np.exp(run.scores[rows, winner])
    expected |= {"silent_vote": share.mean(), "published_data": 1.0}
    assert {k: v for k, v in table.items() if not k.endswith("_stderr")} == pytest.approx(expected)
    assert expected["accuracy"] != expected["constrained_accuracy"]


def test_standard_errors(run, monkeypatch):
    """Of a mean: s / sqrt(n) to 10 %. Of all others: positive, seeded, smaller than the range."""
    monkeypatch.setattr(metrics, "RESAMPLES", 1000)
    table = aggregate(run.payloads)
    probs = np.exp(run.scores) / np.exp(run.scores).sum(axis=1, keepdims=True)
    right = probs.argmax(axis=1) == run.target
    assert table["accuracy_stderr"] == pytest.approx(right.std() / math.sqrt(60), rel=0.1)
    for name in (*MEASURES, *(f"constrained_{m}" for m in MEASURES), "silent_vote"):
        assert 0 < table[f"{name}_stderr"] < 0.3, name
    assert aggregate(run.payloads) == table


def test_order_of_documents_changes_nothing(run):
    """Exactly: documents reach rank 0 in another order under data parallelism."""
    shuffled = run.payloads.copy()
    random.Random(0).shuffle(shuffled)
    assert aggregate(shuffled) == aggregate(run.payloads)


def test_payloads_survive_pickling(run):
    """Ranks send them to each other."""
    copied = pickle.loads(pickle.dumps(run.payloads))
    assert aggregate(copied) == aggregate(run.payloads)
    assert copied[0]["accuracy"].doc == "doc0000"
    assert copied[0]["auroc"].doc == "doc0000"
    assert len(pickle.dumps(run.payloads[0])) < 2000


def test_payloads_read_well_in_the_sample_file(run):
    line = json.loads(json.dumps(run.payloads[0]))
    assert line["accuracy"] in (0.0, 1.0)
    assert line["nll"] == run.payloads[0]["nll"]
    assert line["ece"] == [line["mean_confidence"], line["accuracy"]]
    assert len(line["auroc"][0]) == N_LABELS
    assert line["auroc"][1] == run.target[0]


# --- keys ----------------------------------------------------------------------------------------


def test_yaml_lists_exactly_the_metrics_that_documents_have(run):
    """In this order, too: the harness overwrites `x_stderr` unless it follows `x`."""
    listed = [entry["metric"] for entry in metric_list()]
    assert listed == list(run.payloads[0])
    names = [name for name in listed if not name.endswith("_stderr")]
    constrained = [f"constrained_{m}" for m in MEASURES]
    assert names == [*MEASURES, *constrained, "silent_vote", "published_data"]
    for name in names[:-1]:
        assert listed[listed.index(name) + 1] == f"{name}_stderr"
    assert "published_data_stderr" not in listed


def test_yaml_pairs_each_metric_with_the_standard_error_of_the_same(run):
    by_name = {entry["metric"]: entry["aggregation"].__name__ for entry in metric_list()}
    for name, function in by_name.items():
        if f"{name}_stderr" in by_name:
            assert by_name[f"{name}_stderr"] == f"{function}_stderr"


def test_directions():
    better = {entry["metric"]: entry["higher_is_better"] for entry in metric_list()}
    for prefix in ("", "constrained_"):
        up = [better[prefix + m] for m in ("accuracy", "macro_f1", "auroc")]
        down = [better[prefix + m] for m in ("brier", "nll", "ece", "ece_sweep")]
        assert up == [True] * 3
        assert down == [False] * 4
        assert better[f"{prefix}mean_confidence"] is None
    assert better["silent_vote"] is None
    assert better["published_data"] is None


@pytest.mark.filterwarnings("ignore::lm_eval_semsoft.core.bootstrap.UndefinedMetricWarning")
def test_keys_are_the_same_for_every_document_and_model(run):
    keys = list(run.payloads[0])
    odd = [
        (document(1, [0]), [(-1.0, True)] * N_LABELS),
        (document(2, [1, 4]), [(float("nan"), False)] * N_LABELS),
        (document(3, [5], published=0), [(-math.inf, False)] * N_LABELS),
        (document(4, [0]), [Score(-1.0, -2.0)]),
    ]
    for doc, results in odd:
        assert list(process_results(doc, results)) == keys


# --- rules ---------------------------------------------------------------------------------------


def one(labels, scores):
    return process_results(document(0, labels), [Score(s, s) for s in scores])


def test_any_of_several_labels_counts():
    scores = np.log([0.1, 0.6, 0.3])
    assert one([0, 1], scores)["accuracy"] == 1
    assert one([0, 1], scores)["nll"] == pytest.approx(-math.log(0.6))
    assert one([2, 0], scores)["accuracy"] == 0
    assert one([2, 0], scores)["nll"] == pytest.approx(-math.log(0.1))  # first in label order
    assert one([0, 1], scores)["brier"] == pytest.approx(0.01 + 0.16 + 0.09)


def test_scores_need_no_normalising():
    scores = np.array([-3.0, -1.0, -2.0])
    near, far = one([1], scores), one([1], scores - 5000)
    assert all(near[k] == pytest.approx(far[k]) for k in ("brier", "nll", "mean_confidence"))


def test_a_probability_that_underflows_has_a_finite_nll():
    assert one([0], [-5000.0, 0.0])["nll"] == pytest.approx(5000)


def test_impossible_target_is_infinite_not_an_error():
    payload = one([0], [-math.inf, 0.0])
    assert payload["nll"] == math.inf
    assert payload["brier"] == pytest.approx(2)
    assert metrics.mean([payload["nll"]] * 2) == math.inf


@pytest.mark.parametrize("labels", [[], [3], [-1], [0, 7]])
def test_labels_that_name_no_choice(labels):
    with pytest.raises(ValueError, match=r"document 'doc0000': labels=.* 0 to 2"):
        one(labels, [0.0, 0.0, 0.0])


def test_silent_vote_is_the_share_of_the_winning_label():
    results = [Score(math.log(0.2), math.log(0.2)), Score(math.log(0.4), math.log(0.1))]
    assert process_results(document(0, [0]), results)["silent_vote"] == pytest.approx(0.75)
    # preset=paper may leave the own vote out of the score
    results = [Score(-708.0, -3.0), Score(-708.0, -2.0)]
    assert process_results(document(0, [0]), results)["silent_vote"] == 0


def test_stock_model_has_no_silent_vote(run):
    plain = [(float(s), False) for s in run.scores[0]]
    with pytest.warns(UndefinedMetricWarning, match="silent_vote is NaN: this model returns plain"):
        payload = process_results(run.docs[0], plain)
    for name in MEASURES:
        assert payload[name] == payload[f"constrained_{name}"] == run.payloads[0][name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(metrics.silent_vote([payload["silent_vote"]]))
        assert math.isnan(metrics.silent_vote_stderr([payload["silent_vote"]] * 2))


# --- what cannot be computed -----------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_scores_are_named_once_and_do_not_stop_the_run(run, bad):
    broken = process_results(run.docs[7], [Score(bad, s) for s in run.own[7]])
    payloads = [*run.payloads[:7], broken, *run.payloads[8:]]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        table = aggregate(payloads)
    assert [str(w.message) for w in caught] == [
        "metrics are NaN: 1 of 60 documents have NaN scores, first 'doc0007'."
    ]
    whole = aggregate(run.payloads)
    for name in MEASURES:
        assert math.isnan(table[name]), name
        assert math.isnan(table[f"{name}_stderr"])
        assert table[f"constrained_{name}"] == whole[f"constrained_{name}"]
    assert table["published_data"] == 1


def test_two_documents_of_one_label(run):
    """`--limit 2`: every number that exists is there, the rest is NaN and says why."""
    payloads = [one([1], [0.0, 1.0, 2.0]), one([1], [0.0, 3.0, 2.0])]
    with pytest.warns(UndefinedMetricWarning, match="auroc is NaN: all targets are the same label"):
        table = aggregate(payloads)
    undefined = {name for name, value in table.items() if math.isnan(value)}
    auroc = {"auroc", "auroc_stderr", "constrained_auroc", "constrained_auroc_stderr"}
    assert undefined == auroc


def test_no_documents():
    with pytest.warns(UndefinedMetricWarning, match="there are no documents"):
        assert math.isnan(metrics.mean([]))
    assert math.isnan(metrics.ece_sweep_stderr([]))


def test_payload_types_behave_like_plain_values():
    value, record = DocValue(0.25, "a"), DocRecord((0.5, 1.0), "a")
    assert value == 0.25
    assert record == (0.5, 1.0)
    assert value + 1 == 1.25
    assert repr(value) == "0.25"
