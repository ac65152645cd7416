"""The group `human_alignment` in the harness: YAMLs, metrics in the table, a stock model."""

import math
from pathlib import Path

import lm_eval
import pytest
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from lm_eval_semsoft.tasks import alignment_metrics, free_response, people

TASK_CONFIGS = Path(__file__).parents[2] / "task_configs"
TASKS = ("coane_mc", "coane_oe", "protoqa_mc", "camchoice", "mmlu_calibration")
LETTERED = tuple(task for task in TASKS if task != "coane_oe")
pytestmark = pytest.mark.usefixtures("embedded", "quick")


def read_yaml(path):
    """A YAML with its include; functions are strings."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: node.value)
    own = yaml.load(path.read_text(), Loader=loader)
    shared = own.pop("include", None)
    return {**read_yaml(path.parent / shared), **own} if shared else own


def test_the_group_has_them_all():
    manager = TaskManager(include_path=str(TASK_CONFIGS), include_defaults=False)
    assert tuple(manager.load(["human_alignment"])["tasks"]) == TASKS
    assert set(manager.all_tasks) >= {*TASKS, "human_alignment"}
    assert not any(name.startswith("_") for name in manager.all_tasks)
    for task in TASKS:
        assert (TASK_CONFIGS / task / "README.md").is_file()


@pytest.mark.parametrize("name", TASKS)
def test_documents_have_all_columns(load_task, name):
    task = load_task(name)
    assert set(task.eval_docs.features) == set(people.FEATURES)
    assert len(set(task.eval_docs["id"])) == len(task.eval_docs)
    for doc in task.eval_docs:
        assert (doc["label"] in doc["labels"]) == (name != "coane_oe")
        if doc["human_shares"] and name != "coane_oe":
            assert len(doc["human_shares"]) == len(doc["options"])


@pytest.mark.parametrize("name", TASKS)
def test_every_metric_is_listed_with_its_error_behind_it(load_task, answers, name):
    config = read_yaml(TASK_CONFIGS / name / f"{name}.yaml")
    listed = [entry["metric"] for entry in config["metric_list"]]
    task = load_task(name)
    doc = task.eval_docs[0]
    results = (
        [" Nectar}."]
        if name == "coane_oe"
        else answers([1 / len(doc["options"])] * len(doc["options"]), 1.0)
    )
    assert list(task.process_results(doc, results)) == listed
    for entry, before in zip(config["metric_list"][1:], config["metric_list"], strict=False):
        if entry["metric"].endswith("_stderr"):
            assert entry["metric"] == f"{before['metric']}_stderr"
            twin = before["aggregation"].rpartition(".")[2]
            assert entry["aggregation"].endswith(f".{twin}_stderr")
    assert all("aggregation" in entry and "higher_is_better" in entry
               for entry in config["metric_list"])  # fmt: skip


def test_the_lists_of_the_lettered_tasks_agree():
    """An included list is replaced, so the shared entries stand in several files."""
    shared = read_yaml(TASK_CONFIGS / "_lettered_options.yaml")["metric_list"]
    for name in LETTERED:
        own = read_yaml(TASK_CONFIGS / name / f"{name}.yaml")["metric_list"]
        both = {entry["metric"] for entry in own} & {entry["metric"] for entry in shared}
        assert [e for e in own if e["metric"] in both] == [e for e in shared if e["metric"] in both]


def test_a_stock_model_runs_them_all():
    manager = TaskManager(include_path=str(TASK_CONFIGS), include_defaults=False)
    out = lm_eval.simple_evaluate(
        model="dummy", tasks=["human_alignment"], task_manager=manager, bootstrap_iters=0
    )
    table = make_table(out)
    for name in TASKS:
        found = out["results"][name]
        assert found["published_data,none"] == 0
        assert 0 <= found["accuracy,none"] <= 1
        assert isinstance(found["accuracy_stderr,none"], float)
    found = out["results"]["coane_mc"]
    assert -1 <= found["spearman_entropy_option,none"] <= 1
    assert found["spearman_rt_option_stderr,none"] > 0
    for measure in alignment_metrics.MEASURES[1:]:
        assert math.isnan(found[f"spearman_entropy_{measure},none"])
    found = out["results"]["coane_oe"]
    for measure in free_response.MEASURES:
        assert math.isnan(found[f"spearman_rt_{measure},none"])
    assert out["results"]["protoqa_mc"]["dropped_documents,none"] == 2
    assert "spearman_rt_correct_option" in table
