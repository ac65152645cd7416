"""Probes as metrics: once per run, small in the samples, quiet where nothing was captured."""

from __future__ import annotations

import gc
import json
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from lm_eval_semsoft.core import probes
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
from lm_eval_semsoft.reports.probe import Settings, probe_all
from lm_eval_semsoft.tasks import probe_metrics

SHAPE = (3, 16)


@dataclass
class Score:
    """What stands for a `LabelScore`."""

    readout: Any


@dataclass
class Read:
    hidden: Any


def documents(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, hidden = rng.normal(size=n), rng.normal(size=(n, *SHAPE))
    hidden[:, 1] += 2 * y[:, None]
    return hidden.astype(np.float16), y


def items_of(hidden: Any, y: Any, metric: str = "probe_r") -> list[Any]:
    made = [
        probe_metrics.payloads({"id": f"{i:03}"}, [Score(Read(own)), Score(None)], target)
        for i, (own, target) in enumerate(zip(hidden, y, strict=True))
    ]
    return [own[metric] for own in made]


def test_it_is_the_probe_in_the_order_of_the_keys() -> None:
    hidden, y = documents()
    items = items_of(hidden, y)
    shuffled = [items[i] for i in np.random.default_rng(0).permutation(len(items))]
    expected = probes.probe(hidden, y, permutations=probe_metrics.PERMUTATIONS)
    assert probe_metrics.r(shuffled) == expected.pearson.r > 0.5
    assert probe_metrics.r_stderr(shuffled) == expected.stderr
    assert probe_metrics.layer(shuffled) == 1


def test_three_metrics_are_one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return probe(*args, **kwargs)

    probe = probes.probe
    monkeypatch.setattr(probes, "probe", counted)
    items = items_of(*documents())
    for metric in (probe_metrics.r, probe_metrics.r_stderr, probe_metrics.layer):
        metric(list(items))
    assert len(calls) == 1
    probe_metrics.r(items[:-1])
    probe_metrics.r(items_of(*documents()))
    assert len(calls) == 3


def test_what_is_remembered_goes_with_the_activations() -> None:
    gc.collect()
    before = len(probe_metrics._DONE)
    items = items_of(*documents())
    probe_metrics.r(items)
    assert len(probe_metrics._DONE) == before + 1
    del items
    gc.collect()
    assert len(probe_metrics._DONE) == before


def test_all_metrics_share_one_payload_and_names_can_differ() -> None:
    hidden, _ = documents()
    own = probe_metrics.payloads({"id": 3}, [Score(Read(hidden[0]))], 0.5, name="probe_rt")
    assert list(own) == ["probe_rt_r", "probe_rt_r_stderr", "probe_rt_layer"]
    assert len(set(map(id, own.values()))) == 1
    assert own["probe_rt_r"][0].values is hidden[0] or np.shares_memory(
        own["probe_rt_r"][0].values, hidden
    )


def test_a_payload_is_short_in_the_samples_and_whole_between_processes() -> None:
    hidden, y = documents(n=1)
    (item,) = items_of(hidden, y)
    line = json.dumps(item, default=handle_non_serializable)
    assert json.loads(line) == ["activations 3 x 16", float(y[0])]
    back = pickle.loads(pickle.dumps(item))
    np.testing.assert_array_equal(back[0].values, hidden[0])
    assert back[0].values.dtype == np.float16
    assert (back[1], back.doc) == (item[1], item.doc)
    metrics = probe_metrics.payloads({"id": 1}, [Score(Read(hidden[0]))], 0.0)
    assert len(pickle.dumps(metrics)) < hidden[0].nbytes + 1000  # once, not three times


@pytest.mark.parametrize("result", [(0.1, False), Score(None), Score(Read(None))])
def test_where_nothing_was_captured_it_is_nan_and_quiet(result: Any) -> None:
    made = [probe_metrics.payloads({"id": i}, [result], 0.5)["probe_r"] for i in range(20)]
    assert json.loads(json.dumps(made[0])) == [None, 0.5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in (probe_metrics.r, probe_metrics.r_stderr, probe_metrics.layer):
            assert math.isnan(metric(made))
            assert math.isnan(metric([]))


def test_documents_without_activations_or_target_are_left_out() -> None:
    hidden, y = documents(n=42)
    given: list[Any] = list(hidden)
    given[5], y[7] = None, np.nan
    rest = [i for i in range(42) if i not in (5, 7)]
    expected = probes.probe(hidden[rest], y[rest], permutations=probe_metrics.PERMUTATIONS)
    assert probe_metrics.r(items_of(given, y)) == expected.pearson.r


def test_one_warning_says_why_there_is_no_probe() -> None:
    items = items_of(*documents(n=8))
    with pytest.warns(UndefinedMetricWarning, match="there are 8 documents"):
        assert math.isnan(probe_metrics.r(items))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(probe_metrics.r_stderr(items))
        assert math.isnan(probe_metrics.layer(items))


# ------------------------------------------------------------------ in the harness

WORDS = ("river", "stone", "cloud", "lamp", "bread", "horse")


def quiz(**_: Any) -> dict[str, datasets.Dataset]:
    rng = np.random.default_rng(0)
    rows = [
        {
            "id": f"q{i:02}",
            "text": " ".join(rng.choice(WORDS, size=6)),
            "human_entropy": float(rng.random()),
            "labels": [0],
        }
        for i in range(24)
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def process(doc: Any, results: Any) -> dict[str, Any]:
    return probe_metrics.payloads(doc, results, doc["human_entropy"])


def task() -> ConfigurableTask:
    aggregations = {
        "probe_r": probe_metrics.r,
        "probe_r_stderr": probe_metrics.r_stderr,
        "probe_layer": probe_metrics.layer,
    }
    return ConfigurableTask(
        config={
            "task": "quiz",
            "custom_dataset": quiz,
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{text}}\nAnswer:",
            "doc_to_choice": ["A", "B"],
            "doc_to_target": 0,
            "process_results": process,
            "metric_list": [
                {"metric": name, "aggregation": own, "higher_is_better": True}
                for name, own in aggregations.items()
            ],
        }
    )


@pytest.mark.parametrize("capture", [None, "hidden"])
def test_in_the_table_and_the_samples_of_a_run(
    tiny_model: Callable[[str], Any], tmp_path: Path, capture: str | None
) -> None:
    tiny = tiny_model("llama")
    folder = tmp_path / "readouts"
    own = {} if capture is None else {"capture": capture}
    lm = SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, readouts=folder, **own)
    manager = TaskManager(include_defaults=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UndefinedMetricWarning)
        out = simple_evaluate(lm, tasks=[task()], bootstrap_iters=0, task_manager=manager)
    results = out["results"]["quiz"]
    tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
    tracker.general_config_tracker.model_name_sanitized, tracker.date_id = "tiny", "now"
    tracker.save_results_samples("quiz", out["samples"]["quiz"])
    (samples,) = (tmp_path / "out").rglob("samples_quiz_*.jsonl")
    line = json.loads(samples.read_text().splitlines()[0])
    if capture is None:
        assert math.isnan(results["probe_r,none"])
        assert line["probe_r"][0] is None
        return
    assert line["probe_r"][0].startswith("activations ")
    assert max(map(len, samples.read_text().splitlines())) < 4000
    settings = Settings(permutations=probe_metrics.PERMUTATIONS)
    (expected,) = probe_all([folder], "human_entropy", settings=settings).tables
    assert results["probe_r,none"] == expected.probe.pearson.r
    assert results["probe_r_stderr,none"] == expected.probe.stderr
    assert results["probe_layer,none"] == expected.probe.layer
