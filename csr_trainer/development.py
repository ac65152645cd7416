"""While training: how well does the policy know what it knows, on questions it never trains on?

Each development question gets N sampled answers. As in the tasks of `semantic_uncertainty`, a judge
puts them into clusters of one meaning, the first answer of the largest is the prediction, and its
share the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import calibration, classification, semantic_entropy
from lm_eval_semsoft.judges import Judge
from lm_eval_semsoft.judges.text import clean
from lm_eval_semsoft.tasks.right import right_answers

METRICS = ("accuracy", "ece", "auroc", "semantic_entropy")


class Asked(NamedTuple):
    """A question, its right answers, and what the policy answered."""

    question: str
    answers: Sequence[str]
    samples: Sequence[str]


def measure(judge: Judge, reference: Judge, asked: Sequence[Asked]) -> dict[str, float]:
    """`METRICS` of sampled answers, and ``mean_confidence`` and ``n``.

    Questions to which nobody knows an answer count for the semantic entropy alone. A metric that
    cannot be computed (no question, or AUROC where all are right) is NaN.

    Args:
        judge: of meanings.
        reference: of right and wrong.
        asked: [n] questions, each with at least one sample.
    """
    samples = [[clean(text) for text in own.samples] for own in asked]
    tables = judge.matrices([own.question for own in asked], samples)
    ids = [semantic_entropy.cluster(table) for table in tables]
    predictions = [
        own[semantic_entropy.representative(clusters)]
        for own, clusters in zip(samples, ids, strict=True)
    ]
    right = np.array(
        right_answers(
            reference,
            [own.question for own in asked],
            predictions,
            [list(own.answers) for own in asked],
        ),
        dtype=np.float64,
    )
    share = np.array([semantic_entropy.cluster_share(own) for own in ids], dtype=np.float64)
    known = ~np.isnan(right)
    correct, confidence = right[known], share[known]
    entropy = [semantic_entropy.semantic_entropy(own) for own in ids]
    return {
        "accuracy": _mean(correct),
        "ece": float(calibration.ece(confidence, correct)) if known.any() else math.nan,
        "auroc": _auroc(confidence, correct),
        "semantic_entropy": _mean(np.array(entropy, dtype=np.float64)),
        "mean_confidence": _mean(confidence),
        "n": float(known.sum()),
    }


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan


def _auroc(confidence: NDArray[np.float64], correct: NDArray[np.float64]) -> float:
    if not 0 < correct.sum() < correct.size:  # all right or all wrong: nothing to tell apart
        return math.nan
    return float(classification.confidence_auroc(confidence, correct))


def share_of(process: int, processes: int, n: int) -> list[int]:
    """Numbers of the questions that one process asks: as many for each, some of them twice.

    vLLM in server mode wants as many prompts from every process.
    """
    each = math.ceil(n / processes)
    return [(process * each + i) % n for i in range(each)] if n else []


# --- the picture ---------------------------------------------------------------------------------

_TITLES = {
    "accuracy": "accuracy",
    "ece": "ECE (lower is better)",
    "auroc": "AUROC of confidence",
    "semantic_entropy": "semantic entropy (nats)",
}


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Metrics over optimiser steps, into a PNG.

    Args:
        rows: with ``step`` and `METRICS`, None where a metric is not known.
        path: of the PNG.
        title: of the picture.
    """
    from matplotlib.figure import Figure

    from lm_eval_semsoft.reports.figures import COLOURS

    figure = Figure(figsize=(7.2, 4.8), layout="constrained", facecolor=COLOURS["paper"])
    figure.suptitle(title, color=COLOURS["ink"], fontsize=10)
    for axes, name in zip(figure.subplots(2, 2, sharex=True).flat, METRICS, strict=True):
        known = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        axes.plot(*zip(*known, strict=True) if known else ([], []),
                  color=COLOURS["semantic"], marker="o", markersize=3)  # fmt: skip
        axes.set_title(_TITLES[name], fontsize=9, color=COLOURS["ink"], loc="left")
        axes.grid(color=COLOURS["grid"], linewidth=0.5)
        axes.tick_params(colors=COLOURS["muted"], labelsize=8)
        for spine in axes.spines.values():
            spine.set_color(COLOURS["grid"])
        if name in ("ece", "semantic_entropy"):
            axes.set_ylim(bottom=0)
    for axes in figure.axes[2:]:
        axes.set_xlabel("optimiser step", fontsize=8, color=COLOURS["muted"])
    figure.savefig(path, dpi=150, format="png")
