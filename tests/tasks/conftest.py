"""Tasks of the group `human_alignment`, as the harness loads them and asks them for prompts."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lm_eval.tasks import TaskManager

from lm_eval_semsoft.tasks import data, metrics

TASK_CONFIGS = Path(__file__).parents[2] / "task_configs"


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A folder that SEMSOFT_DATA_DIR names; the hub is out of reach."""
    monkeypatch.delenv("SEMSOFT_DATA", raising=False)
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(data, "hub_problem", lambda endpoint: "no network in tests")
    monkeypatch.setattr(data, "_told", set())
    return tmp_path


@pytest.fixture
def embedded(monkeypatch):
    """Only the packaged samples."""
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    monkeypatch.delenv("SEMSOFT_DATA_DIR", raising=False)


@pytest.fixture
def quick(monkeypatch):
    """Few resamples, and warnings that come anew."""
    monkeypatch.setattr(metrics, "RESAMPLES", 30)
    metrics._warn.cache_clear()


@pytest.fixture
def load_task():
    """`load_task(name, **metadata)`: a task as `lm_eval --metadata` builds it."""

    def build(name, include_path=TASK_CONFIGS, **metadata):
        manager = TaskManager(
            include_path=str(include_path), include_defaults=False, metadata=metadata or None
        )
        task = manager.load([name])["tasks"][name]
        task.set_fewshot_seed(1234)
        return task

    return build


def render(messages, add_generation_prompt=True):
    """A chat template that shows what it was given."""
    turns = [f"<{m['role']}>{m['content']}" for m in messages]
    return "".join(turns) + ("<assistant>" if add_generation_prompt else "")


@pytest.fixture
def prompts():
    """`prompts(task)`: (prompt, continuations or generation arguments) of every document."""

    def build(task, num_fewshot=None, chat=False, multiturn=True, **options):
        if num_fewshot is not None:
            task.set_config("num_fewshot", num_fewshot)
        if chat:
            options |= {
                "apply_chat_template": True,
                "fewshot_as_multiturn": multiturn,
                "chat_template": render,
            }
        task.build_all_requests(**options)
        by_doc = {}
        for instance in task.instances:
            prompt, more = instance.args
            by_doc.setdefault(instance.doc_id, (prompt, []))[1].append(more)
        return list(by_doc.values())

    return build


@pytest.fixture
def answers():
    """`answers(probs, readout)`: what a model returns for the options of one document."""

    class Score(tuple):
        def __new__(cls, log_score, readout):
            self = super().__new__(cls, (log_score, False))
            self.constrained, self.readout = log_score, readout
            return self

    def build(probs, entropy=None, top1=0.5):
        logs = np.log(np.asarray(probs, dtype=np.float64))
        if entropy is None:
            return [(float(x), False) for x in logs]
        readout = SimpleNamespace(entropy=entropy, topk_logprobs=np.log([top1, 0.01]))
        return [Score(float(x), readout if i == 0 else None) for i, x in enumerate(logs)]

    return build
