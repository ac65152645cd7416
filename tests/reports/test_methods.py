"""The methods that `semsoft compare` shows, against formulas written out here."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch

from lm_eval_semsoft.core.semantic_softmax import LabelSet, Scoring
from lm_eval_semsoft.reports import methods, scores
from lm_eval_semsoft.reports.methods import METHODS, Answers, Method, answer_all, available
from lm_eval_semsoft.reports.readings import Readings, Source

V, D, K = 80, 8, 30
LABELS = ("joy", "anger", "fear")
SCORING = Scoring(space="centered", tau="q0.8", top_k=K)


def make(n: int = 60, seed: int = 0, labels: tuple[str, ...] = LABELS, **changed: Any) -> Readings:
    """n documents; label l is token l, its neighbours are somewhere in the vocabulary."""
    rng = np.random.default_rng(seed)
    size = len(labels)
    matrix = np.random.default_rng(99).normal(size=(V, D)).astype(np.float32)
    truth = rng.integers(size, size=n)
    logits = (rng.normal(size=(n, D)) + matrix[truth]) @ matrix.T
    logp = scipy.special.log_softmax(logits, axis=1).astype(np.float32)
    order = np.argsort(-logp, axis=1)[:, :K].astype(np.int32)
    about = {"model": "test/model", "top_k": K, "scoring": {**vars(SCORING), "kernel": "auto"}}
    source = Source(Path("somewhere"), {"fingerprint": "f", "about": about})
    vars(source)["_matrix"] = torch.tensor(matrix)
    own = Readings(
        source=source,
        task="emotions",
        labels=labels,
        label_set=LabelSet(labels, tuple((i,) for i in range(size)), ((),) * size),
        why_identity=None,
        keys=tuple(f"d{seed}-{i}" for i in range(n)),
        docs=tuple({"id": f"d{seed}-{i}", "text": f"text {seed} {i}"} for i in range(n)),
        target=truth[:, None] == np.arange(size),
        topk_ids=order,
        topk_logprobs=np.take_along_axis(logp, order, axis=1),
        label_logprobs=logp[:, :size],
        entropy=np.zeros(n),
        prompts=tuple(f"{seed}/{i}" for i in range(n)),
    )
    return replace(own, **changed)


def by_name(answers: list[Answers]) -> dict[str, Answers]:
    return {a.method.name: a for a in answers}


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


# ------------------------------------------------------------------ which methods


def test_names() -> None:
    assert [m.name for m in METHODS] == [
        "uniform",
        "constrained",
        "constrained+temperature",
        "constrained+prior",
        "constrained+prior+temperature",
        "semantic",
        "semantic+temperature",
        "semantic+prior",
        "semantic+prior+temperature",
        "surprise+prior",
        "surprise+prior+temperature",
    ]


def test_without_dev_there_is_no_temperature() -> None:
    names = [a.method.name for a in answer_all(make())]
    assert names == [m.name for m in METHODS if not m.temperature]


@pytest.mark.parametrize(
    "changed", [{"why_identity": "option letters or numbers"}, {"label_set": None}]
)
def test_only_methods_that_make_sense(changed: dict[str, Any]) -> None:
    names = {m.name for m in available(make(**changed), SCORING)}
    assert not any(name.startswith(("semantic", "surprise")) for name in names)
    assert ("constrained+prior" in names) == ("label_set" not in changed)
    assert {"uniform", "constrained", "constrained+temperature"} <= names


def test_kernel_and_scoring_decide_too() -> None:
    letters = make(why_identity="option letters or numbers")
    assert Method("semantic") in available(letters, SCORING, "cosine")
    assert Method("semantic") not in available(make(), SCORING, "identity")
    assert Method("semantic") not in available(make(), Scoring(scoring="constrained"))


# ------------------------------------------------------------------ what they say


def test_every_method_gives_distributions() -> None:
    for answers in answer_all(make(), make(40, seed=1), SCORING):
        assert answers.log_probs.shape == (60, len(LABELS))
        assert np.exp(answers.log_probs).sum(axis=1) == pytest.approx(1)
        assert (answers.temperature is not None) == answers.method.temperature


def test_bases_and_priors_are_their_formulas() -> None:
    readings = make()
    found = by_name(answer_all(readings, scoring=SCORING))
    constrained = softmax(readings.label_logprobs.astype(float))
    assert np.exp(found["constrained"].log_probs) == pytest.approx(constrained)
    assert np.exp(found["uniform"].log_probs) == pytest.approx(1 / 3)
    semantic = softmax(scores.log_scores(readings, SCORING))
    assert np.exp(found["semantic"].log_probs) == pytest.approx(semantic)
    assert np.abs(semantic - constrained).max() > 0.01
    for name, probs in (("constrained", constrained), ("semantic", semantic)):
        divided = probs / probs.mean(axis=0)
        expected = divided / divided.sum(axis=1, keepdims=True)
        assert np.exp(found[f"{name}+prior"].log_probs) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_surprise_is_its_formula(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the own lift, half of the neighbours' p(v|x) / pbar(v)^alpha w(v, l), the unread."""
    monkeypatch.setattr(methods, "SURPRISE", replace(SCORING, space="raw", tau="q0.7"))
    readings = make()
    p = np.zeros((readings.n, V))
    np.put_along_axis(p, readings.topk_ids, np.exp(readings.topk_logprobs.astype(float)), axis=1)
    pbar = p.mean(axis=0)
    weights = scores.kernel_of(readings, replace(SCORING, space="raw", tau="q0.7")).weights
    votes = (p / np.where(pbar > 0, pbar, 1) ** alpha) @ weights
    assert (votes.mean(axis=0) > 0).all()
    own = np.exp(readings.label_logprobs.astype(float))
    lifts = own / own.mean(axis=0) / 2 + votes / votes.mean(axis=0) / 2
    expected = np.log(lifts + 1 - p.sum(axis=1, keepdims=True))
    assert methods.surprise(readings, SCORING, alpha) == pytest.approx(expected, abs=1e-5)


def test_surprise_has_its_prior_inside() -> None:
    """Every label's lift is 1 on average, so nothing is left to divide by."""
    readings = make()
    log_s = methods.surprise(readings, SCORING)
    unread = 1 - np.exp(readings.topk_logprobs.astype(float)).sum(axis=1, keepdims=True)
    assert (np.exp(log_s) - unread).mean(axis=0) == pytest.approx(1, abs=1e-6)
    found = by_name(answer_all(readings, scoring=SCORING))["surprise+prior"].log_probs
    assert found == pytest.approx(scipy.special.log_softmax(log_s, axis=1))


def test_uniform_over_the_choices_that_there_are() -> None:
    readings = make(label_set=None)
    logprobs = readings.label_logprobs.copy()
    logprobs[0, 2] = -np.inf
    found = by_name(answer_all(replace(readings, label_logprobs=logprobs)))
    assert np.exp(found["uniform"].log_probs[0]) == pytest.approx([0.5, 0.5, 0])
    assert np.exp(found["constrained"].log_probs[0, 2]) == 0


def test_the_runs_own_scoring_is_the_default() -> None:
    readings = make()
    own, given = answer_all(readings), answer_all(readings, scoring=SCORING)
    assert all((a.log_probs == b.log_probs).all() for a, b in zip(own, given, strict=True))


# ------------------------------------------------------------------ temperature


def test_temperature_is_fitted_on_development_documents() -> None:
    readings, dev = make(), make(200, seed=1)
    found = by_name(answer_all(readings, dev, SCORING))
    rows = np.arange(dev.n)
    target = dev.gold().argmax(axis=1)
    for name in ("constrained", "constrained+prior", "semantic", "semantic+prior"):
        plain = by_name(answer_all(dev, scoring=SCORING))[name].log_probs

        def loss(log_t: float, log_probs: np.ndarray = plain) -> float:
            scaled = scipy.special.log_softmax(log_probs / math.exp(log_t), axis=1)
            return -float(scaled[rows, target].mean())

        best = math.exp(scipy.optimize.minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
        scaled = found[f"{name}+temperature"]
        assert scaled.temperature == pytest.approx(best, rel=1e-3)
        expected = scipy.special.log_softmax(found[name].log_probs / scaled.temperature, axis=1)
        assert scaled.log_probs == pytest.approx(expected)


def test_no_method_looks_at_the_evaluated_labels() -> None:
    """Other labels on the evaluated documents, or none, change nothing at all."""
    readings, dev = make(), make(50, seed=1)
    shuffled = replace(readings, target=np.roll(readings.target, 1, axis=1))
    expected = answer_all(readings, dev, SCORING)
    for changed in (shuffled, replace(readings, target=None)):
        for a, b in zip(expected, answer_all(changed, dev, SCORING), strict=True):
            assert (a.log_probs == b.log_probs).all()
            assert a.temperature == b.temperature


def test_temperature_needs_labels_of_development_documents() -> None:
    with pytest.raises(ValueError, match="--samples"):
        answer_all(make(), make(seed=1, target=None), SCORING)


# ------------------------------------------------------------------ hard cases


def test_documents_do_not_depend_on_each_other_without_prior() -> None:
    readings = make()
    one = make(n=60, keys=readings.keys[:1], docs=readings.docs[:1], prompts=("x",))
    first = replace(
        one,
        target=readings.target[:1],
        topk_ids=readings.topk_ids[:1],
        topk_logprobs=readings.topk_logprobs[:1],
        label_logprobs=readings.label_logprobs[:1],
        entropy=readings.entropy[:1],
    )
    many, alone = by_name(answer_all(readings)), by_name(answer_all(first))
    for name in ("uniform", "constrained", "semantic"):
        assert alone[name].log_probs[0] == pytest.approx(many[name].log_probs[0])
    # Divided by itself, a single document knows nothing.
    assert np.exp(alone["semantic+prior"].log_probs) == pytest.approx(1 / 3)


def test_nan_stays_in_its_document() -> None:
    readings = make()
    broken = readings.label_logprobs.copy()
    broken[5, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, about the NaN that is given
        found = answer_all(replace(readings, label_logprobs=broken))
    for answers in found:
        is_nan = np.isnan(answers.log_probs).all(axis=1)
        assert is_nan.tolist() == [
            i == 5 and answers.method.base != "uniform" for i in range(readings.n)
        ]


def test_published_formula_with_silent_documents() -> None:
    paper = replace(SCORING, space="raw", tau=0.99, top_k=2, own_vote="top-k")
    found = by_name(answer_all(make(), scoring=paper))
    probs = np.exp(found["semantic"].log_probs)
    assert (np.abs(probs - 1 / 3).max(axis=1) < 1e-9).any()  # nobody votes
    assert np.isfinite(found["semantic"].log_probs).all()
