"""Evaluations while training, held against the tasks that evaluate the result."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from csr_trainer.development import METRICS, Asked, draw, measure, share_of
from csr_trainer.steplog import StepLog
from lm_eval_semsoft.core.calibration import ece
from lm_eval_semsoft.judges.exact import Exact
from lm_eval_semsoft.judges.f1 import F1
from lm_eval_semsoft.tasks.sampled import Options, Question, judge_all, payloads

WORDS = ("red", "green", "blue", "red green", "")


def asked(seed=0, n=30, samples=6):
    rng = np.random.default_rng(seed)
    return [
        Asked(f"Which colour is number {i}?", ["red"] if i % 5 else [],
              [WORDS[j] for j in rng.integers(len(WORDS), size=samples)])
        for i in range(n)
    ]  # fmt: skip


def test_metrics_are_those_of_the_tasks():
    rows, judge = asked(), F1(0.5)
    found = measure(judge, Exact(), rows)
    outcomes = judge_all(
        judge,
        Exact(),
        [Question(row.question, tuple(row.answers)) for row in rows],
        [row.samples for row in rows],
        [row.samples[0] for row in rows],
        Options(n_samples=6),
    )
    docs = [
        payloads({"id": str(i), "answers": row.answers}, outcome.samples[6], outcome.greedy)
        for i, (row, outcome) in enumerate(zip(rows, outcomes, strict=True))
    ]
    pairs = np.array([tuple(doc["ece"]) for doc in docs if not math.isnan(doc["accuracy"])])
    assert found["n"] == len(pairs) == 24
    assert found["accuracy"] == pytest.approx(pairs[:, 1].mean())
    assert found["ece"] == pytest.approx(ece(pairs[:, 0], pairs[:, 1]))
    assert found["auroc"] == pytest.approx(roc_auc_score(pairs[:, 1], pairs[:, 0]))
    assert found["mean_confidence"] == pytest.approx(pairs[:, 0].mean())
    entropies = [doc["semantic_entropy"] for doc in docs]
    assert found["semantic_entropy"] == pytest.approx(np.mean(entropies))


def test_what_cannot_be_computed_is_nan():
    nobody_knows = measure(F1(0.5), F1(0.5), [Asked("Who?", [], ["a", "b"])])
    assert math.isnan(nobody_knows["accuracy"])
    assert math.isnan(nobody_knows["ece"])
    assert nobody_knows["semantic_entropy"] == pytest.approx(math.log(2))
    all_right = measure(
        F1(0.5), F1(0.5), [Asked("Who?", ["a"], ["a"]), Asked("Who?", ["b"], ["b"])]
    )
    assert math.isnan(all_right["auroc"])
    assert all_right["ece"] == 0


@pytest.mark.parametrize(("n", "processes"), [(7, 1), (7, 2), (8, 3), (1, 4)])
def test_processes_share_all_questions_evenly(n, processes):
    shares = [share_of(process, processes, n) for process in range(processes)]
    assert {i for own in shares for i in own} == set(range(n))
    assert len({len(own) for own in shares}) == 1


def test_picture(tmp_path):
    rows = [{"step": i, **dict.fromkeys(METRICS, 0.1 * i)} for i in range(3)]
    rows[1]["auroc"] = None
    draw(rows, tmp_path / "a.png", "csr")
    draw([], tmp_path / "b.png", "nothing yet")
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "b.png").stat().st_size > 1000


def test_log_survives_a_cut_line_and_forgets_what_is_done_again(tmp_path):
    log = StepLog(tmp_path / "a" / "log.jsonl")
    assert log.rows() == []
    for step in (1, 2, 3):
        log.append(step, {"loss": math.nan if step == 2 else 0.5})
    with log.path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [row["loss"] for row in log.rows()] == [0.5, None, 0.5]
    assert [row["step"] for row in log.keep(2)] == [1, 2]
    log.append(3, {"loss": 1.0})
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 3]
