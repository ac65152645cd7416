"""How long the metrics take: `python benchmarks/metrics_speed.py` prints a table of seconds.

No model runs here; confidences and labels are random numbers of a realistic shape. Every figure
is the best of three runs, since other processes can only make a run slower.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lm_eval_semsoft.core.bootstrap import stderr
from lm_eval_semsoft.core.calibration import brier, ece, ece_sweep, mean_confidence, nll
from lm_eval_semsoft.core.classification import accuracy, auroc, correctness, macro_f1

RUNS = 3
DOCUMENTS, LABELS = 5400, 28  # the GoEmotions test split
SCORINGS = 2  # each metric is reported for the run's scoring and for the constrained softmax

Row = tuple[str, float]


def seconds(fn: Callable[[], Any]) -> float:
    """Best wall-clock seconds of `RUNS` calls."""
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        fn()
        best = min(best, time.perf_counter() - start)
    return best


def graded(n: int, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of an overconfident model on n documents."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(2, 1, n)
    correct = rng.random(n) < confidence**1.5
    return (confidence if decimals is None else confidence.round(decimals)), correct


def nearly_separable(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidence that ranks all but one pair right: the sweep goes on for n/2 numbers of bins."""
    correct = np.arange(n) >= n // 2
    correct[n // 2 - 2 : n // 2] = True, False
    return np.linspace(0, 1, n), correct


def sweep_rows() -> list[Row]:
    """Seconds of ece_sweep on a million confidences, and of its bootstrap on 5000 documents."""
    million = {
        "no ties": graded(1_000_000),
        "3 decimals": graded(1_000_000, 3),
        "nearly separable": nearly_separable(1_000_000),
    }
    documents = {"no ties": graded(5000), "2 decimals": graded(5000, 2)}
    return [
        (
            f"ece_sweep, 1,000,000 confidences, {kind}",
            seconds(functools.partial(ece_sweep, *arrays)),
        )
        for kind, arrays in million.items()
    ] + [
        (
            f"ece_sweep, 1000 resamples of 5000, {kind}",
            seconds(functools.partial(stderr, ece_sweep, *arrays)),
        )
        for kind, arrays in documents.items()
    ]


def table_rows() -> list[Row]:
    """Seconds of 1000 resamples of every metric in the results table, and of all together."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(DOCUMENTS, LABELS)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    target = (probs.cumsum(axis=1) > rng.random((DOCUMENTS, 1))).argmax(axis=1)
    confidence, correct = probs.max(axis=1), correctness(probs, target)
    arguments: dict[Callable[..., Any], tuple[np.ndarray, ...]] = {
        accuracy: (probs, target),
        macro_f1: (probs, target),
        auroc: (probs, target),
        brier: (probs, target),
        nll: (probs, target),
        ece: (confidence, correct),
        ece_sweep: (confidence, correct),
        mean_confidence: (confidence,),
    }
    of = f"1000 resamples of {DOCUMENTS}"
    rows = [
        (f"{metric.__name__}, {of}", seconds(functools.partial(stderr, metric, *arrays)))
        for metric, arrays in arguments.items()
    ]
    total = SCORINGS * sum(value for _, value in rows)
    return [*rows, (f"all of the table, {SCORINGS} scorings, {of}", total)]


def main() -> list[Row]:
    """Print the table and return its rows: (what, seconds)."""
    rows = sweep_rows() + table_rows()
    width = max(len(what) for what, _ in rows)
    for what, value in rows:
        print(f"{what:<{width}}  {value:8.3f} s")
    return rows


if __name__ == "__main__":
    main()
