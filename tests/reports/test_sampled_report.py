"""Reports of runs with free-text answers: against loops and scikit-learn, and as pages are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli.report import report as command
from lm_eval_semsoft.cli.shared import plain
from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.reports import readings, report_statistics, sampled_section, samples
from lm_eval_semsoft.reports import report as pages

DATE = "2026-01-02T03-04-05.678901"
N = 10

Row = dict[str, Any]


# --------------------------------------------------------------------------------------------
# files as the harness writes them
# --------------------------------------------------------------------------------------------


def sampled_rows(n: int = 60, seed: int = 0, **doc: Any) -> list[list[Row]]:
    """Questions of more or less doubt, with N answers each: [n][filters] payload pairs."""
    rng = np.random.default_rng(seed)
    return [one_question(rng, i) for i in range(n)]


def one_question(rng: np.random.Generator, i: int) -> list[Row]:
    known = rng.beta(0.8, 0.8)  # how much of the mass is on one meaning
    meaning = np.where(rng.random(N) < known, 0, 1 + rng.integers(0, 6, N))
    right_one = 0 if rng.random() < 0.35 + 0.6 * known else 9
    answers = [f"meaning {m} of {i}{' indeed' * int(rng.random() < 0.2)}" for m in meaning]
    logprobs = (-0.2 - rng.random(N)).tolist()
    greedy = {"answer": f"meaning 0 of {i}", "right": right_one == 0}
    return [
        [payload(answers[:k], meaning[:k].tolist(), right_one, logprobs[:k]), greedy]
        for k in (N, 5, 2)
    ]


def payload(
    answers: Sequence[str], meanings: Sequence[int], right: int | None, logprobs: Sequence[float]
) -> Row:
    order = list(dict.fromkeys(meanings))
    sizes = {m: meanings.count(m) for m in order}
    top = max(order, key=lambda m: sizes[m])
    return {
        "answers": list(answers),
        "clusters": [order.index(m) for m in meanings],
        "mean_logprobs": list(logprobs),
        "n_tokens": [3] * len(answers),
        "right": None if right is None else top == right,
        "prediction": answers[meanings.index(top)],
        "confidence": sizes[top] / len(answers),
    }


def doc_of(i: int, **more: Any) -> Row:
    own = {"id": f"q{i}", "question": f"What is {i}?", "answers": [f"meaning 0 of {i}", "alias"]}
    return {**own, "context": "", "published_data": 1, **more}


def write(
    folder: Path,
    rows: Sequence[Sequence[Any]],
    *,
    task: str = "triviaqa_se",
    model: str = "test/model",
    date: str = DATE,
    names: Sequence[str] = ("n10", "n5", "n2"),
    docs: Callable[[int], Row] = doc_of,
    dump: Callable[[Any], Any] = str,
    results: bool = True,
    **metadata: Any,
) -> Path:
    """A run's samples, as `lm_eval --log_samples` leaves them: filter by filter.

    Args:
        rows: [n][filters] what a document's filters returned.
        dump: what the harness makes of a dictionary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    lines = [
        json.dumps(
            {
                "doc_id": i,
                "doc": docs(i),
                "target": "x",
                "resps": [["…"]],
                "filtered_resps": [dump(part) for part in row[f]],
                "filter": name,
                "accuracy": 1.0,
            },
            ensure_ascii=False,
        )
        for f, name in enumerate(names)
        for i, row in enumerate(rows)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if results:
        table = {"alias": task, **{f"parse_rate,{name}": 0.75 for name in names}}
        record = {"results": {task: table}, "configs": {task: {"metadata": metadata}},
                  "model_name": model}  # fmt: skip
        (folder / f"results_{date}.json").write_text(json.dumps(record))
    return path
