"""Our metrics in a YAML of the user's own: the examples of docs/tasks.md, run by the harness."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import numpy as np
import pytest
from lm_eval.tasks import TaskManager
from scipy.stats import entropy, spearmanr

from lm_eval_semsoft.core import calibration
from lm_eval_semsoft.tasks import hooks

pytestmark = pytest.mark.usefixtures("quick")
DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
BLOCK = re.compile(r"<!-- (base|snippet) -->\n```yaml\n(.*?)```", re.DOTALL)


class Score(tuple):
    """A pair that carries a readout."""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The documented YAMLs with data beside them."""
    rows = [
        {
            "question": f"Capital number {i}?",
            "options": ["Oslo", "Lima", "Riga"][: 2 + i % 2],
            "answer": i % 2,
            "difficulty": None if i == 4 else (i * 7 % 20) / 2,
        }
        for i in range(20)
    ]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    monkeypatch.chdir(tmp_path)
    for kind, text in BLOCK.findall(DOCS.read_text(encoding="utf-8")):
        name = re.search(r"^task: (\w+)$", text, re.MULTILINE)[1]
        (tmp_path / f"{name}.yaml").write_text(text)
        assert (kind == "base") == (name == "capitals")
    return tmp_path


def evaluate(folder, *tasks):
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    out = lm_eval.simple_evaluate(
        model="dummy", tasks=list(tasks), task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    return out["results"], out["samples"]


def test_the_documented_yamls(own):
    names = ("capitals_calibration", "capitals_doubt", "capitals_all")
    results, samples = evaluate(own, *names)
    for name in names:
        scores = [[r[0][0] for r in sample["resps"]] for sample in samples[name]]
        docs = [sample["doc"] for sample in samples[name]]
        probs = [np.exp(s) / np.exp(s).sum() for s in map(np.array, scores)]
        correct = [p.argmax() == doc["answer"] for p, doc in zip(probs, docs, strict=True)]
        found = results[name]
        if "ece_sweep,none" in found:
            expected = calibration.ece_sweep([p.max() for p in probs], correct).value
            assert found["ece_sweep,none"] == pytest.approx(expected)
            assert found["ece_sweep_stderr,none"] > 0
        if "spearman_difficulty,none" in found:
            doubt = [entropy(p) / math.log(len(p)) for p in probs]
            pairs = [
                (x, d["difficulty"])
                for x, d in zip(doubt, docs, strict=True)
                if d["difficulty"] is not None
            ]
            assert len(pairs) == 19
            expected = spearmanr(*zip(*pairs, strict=True)).statistic
            assert found["spearman_difficulty,none"] == pytest.approx(expected)
            assert found["spearman_difficulty_stderr,none"] > 0
        if "acc,none" in found:
            assert found["acc,none"] == pytest.approx(np.mean(correct))
    assert {"acc,none", "ece_sweep,none", "spearman_difficulty,none"} <= set(
        results["capitals_all"]
    )
    assert math.isnan(results["capitals_all"]["spearman_difficulty_full,none"])
    assert "acc,none" not in results["capitals_doubt"]
    assert math.isnan(
        evaluate(own, "capitals_probe")[0]["capitals_probe"]["probe_r_difficulty,none"]
    )


def test_probes_share_one_payload(own):
    """Activations that hold the number: the probe finds it."""
    task = TaskManager(include_path=str(own), include_defaults=False).load(["capitals_probe"])
    task = task["tasks"]["capitals_probe"]
    rng = np.random.default_rng(0)
    items = []
    for doc in list(task.eval_docs) * 3:
        hidden = rng.normal(size=(3, 8)).astype(np.float16)
        hidden[1, 0] = 4 * (doc["difficulty"] or 0)
        first = Score((-1.0, False))
        first.readout = SimpleNamespace(hidden=hidden)
        items.append(
            task.process_results(doc, [first, *[(-2.0, False)] * (len(doc["options"]) - 1)])
        )
    column = {name: [item[name] for item in items] for name in items[0]}
    assert set(column) == {
        "probe_r_difficulty",
        "probe_r_difficulty_stderr",
        "probe_layer_difficulty",
    }
    for item in items:
        assert item["probe_r_difficulty"] is item["probe_layer_difficulty"]
    aggregations = task.aggregation()
    assert aggregations["probe_r_difficulty"](column["probe_r_difficulty"]) > 0.9
    assert aggregations["probe_layer_difficulty"](column["probe_layer_difficulty"]) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{metric: spearman, field: dificulty}", "field='dificulty' is not known.*'difficulty'"),
        ("{metric: spearman}", "field=None is not known: use one of question"),
        ("{metric: spearman, field: difficulty, measure: ful}", "measure='ful'.*'full'"),
        ("{metric: ece_sweep, field: difficulty}", "option='field' is not known"),
    ],
)
def test_mistakes_are_named_before_the_model_runs(own, entry, message):
    (own / "bad.yaml").write_text(
        "include: capitals.yaml\ntask: bad\n"
        "class: !function lm_eval_semsoft.tasks.hooks.MeasuredTask\n"
        f"metric_list:\n  - {entry}\n"
    )
    with pytest.raises(ValueError, match=message):
        TaskManager(include_path=str(own), include_defaults=False).load(["bad"])


def test_a_field_without_numbers(own):
    (own / "bad.yaml").write_text(
        "include: capitals.yaml\ntask: bad\n"
        "class: !function lm_eval_semsoft.tasks.hooks.MeasuredTask\n"
        "metric_list:\n  - {metric: spearman, field: question}\n"
    )
    with pytest.raises(ValueError, match="'question', not 'Capital number 0\\?'"):
        evaluate(own, "bad")


def test_other_output_types():
    with pytest.raises(ValueError, match="output_type='generate_until' is not known"):
        hooks.MeasuredTask({"task": "x", "output_type": "generate_until"})


def test_targets_of_the_harness():
    assert hooks._labels(2, ["a", "b", "c"]) == [2]
    assert hooks._labels("b", ["a", "b"]) == [1]
    assert hooks._labels([0, 2], ["a", "b", "c"]) == [0, 2]
