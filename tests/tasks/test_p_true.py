"""P(True): prompts of both stages, and both stages in one command under several models."""

import copy
import json
import math
import pickle
from pathlib import Path

import datasets
import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from lm_eval_semsoft.tasks import p_true, questions
from lm_eval_semsoft.tasks.p_true import AboutAnswer, AnswerMissing, Frame, answer_text

TASK_CONFIGS = Path(__file__).parents[2] / "task_configs"
NAME = "triviaqa_ptrue"
ROWS = {
    "id": [f"q{i}" for i in range(4)],
    "question": [f"Capital number {i}?" for i in range(4)],
    "answers": [["Oslo"], ["Oslo"], ["Oslo"], []],
    "context": [""] * 4,
    "published_data": [1] * 4,
}


@pytest.fixture(autouse=True)
def four(monkeypatch):
    """The task has four questions."""
    data = datasets.Dataset.from_dict(ROWS, features=questions.FEATURES)
    monkeypatch.setattr(questions, "load", lambda *_: datasets.DatasetDict(test=data))


def evaluate(lm, *tasks, **options):
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata={"judge": "rules"}
    )
    return lm_eval.simple_evaluate(
        lm, tasks=list(tasks), task_manager=manager, log_samples=True, bootstrap_iters=0, **options
    )


# --- prompts -------------------------------------------------------------------------------------

SECOND = "Question: Capital number 0?\nProposed answer: Oslo\nIs the proposed answer True or False?"


def second_stage(task, doc_id=0, answer=" Oslo \n"):
    """Arguments of the two requests about an answer."""
    first, *about = [x for x in task.instances if x.doc_id == doc_id]
    first.resps.append(answer)
    return [instance.args for instance in about]


def test_base_prompts(load_task, prompts):
    task = load_task(NAME, judge="rules")
    task.build_all_requests()
    context, how = task.instances[0].args
    assert context.endswith("\n\nQuestion: Capital number 0?\nAnswer:")
    assert how["until"] == ["\n"]
    (prompt, yes), (same, no) = second_stage(task)
    assert (yes, no) == (" True", " False")
    assert prompt == same
    assert prompt.endswith(f"\n\n{SECOND}\nThe proposed answer is:")
    assert prompt.startswith(
        "Question: In which country does the river Po reach the sea?\nProposed answer: Italy\n"
        "Is the proposed answer True or False?\nThe proposed answer is: True\n\n"
    )
    assert prompt.count("is: True\n") == prompt.count("is: False\n") == 2


def render(messages, add_generation_prompt=True):
    """A chat template that shows what it was given."""
    turns = [f"<{m['role']}>{m['content']}" for m in messages]
    return "".join(turns) + ("<assistant>" if add_generation_prompt else "")


@pytest.mark.parametrize("multiturn", [True, False])
def test_chat_prompts(load_task, multiturn):
    task = load_task(NAME, judge="rules")
    task.set_config("num_fewshot", 1)
    task.build_all_requests(
        apply_chat_template=True, chat_template=render, fewshot_as_multiturn=multiturn
    )
    context, how = task.instances[0].args
    assert context.startswith(f"<system>{questions.INSTRUCTION}<user>Which English composer")
    assert context.endswith("Capital number 0?<assistant>")
    sampled = load_task("triviaqa_se", judge="rules")
    sampled.set_config("num_fewshot", 1)
    sampled.build_all_requests(
        apply_chat_template=True, chat_template=render, fewshot_as_multiturn=multiturn
    )
    assert sampled.instances[1].args == (context, how)  # the same greedy answer
    assert how["until"] == []
    assert task.config.generation_kwargs["until"] == ["\n"]
    assert second_stage(task) == [
        (
            f"<system>{p_true.INSTRUCTION}<user>Question: In which country does the river Po reach "
            "the sea?\nProposed answer: Italy\nIs the proposed answer True or False?"
            f"<assistant>True<user>{SECOND}<assistant>",
            label,
        )
        for label in ("True", "False")
    ]


def test_no_examples(load_task):
    task = load_task(NAME, judge="rules")
    task.set_config("num_fewshot", 0)
    task.build_all_requests()
    assert second_stage(task)[0][0] == f"{SECOND}\nThe proposed answer is:"


def test_too_many_examples(load_task):
    task = load_task(NAME, judge="rules")
    task.set_config("num_fewshot", 5)
    with pytest.raises(ValueError, match="num_fewshot=5 is too large"):
        task.build_all_requests()


def test_context(load_task):
    task = load_task("hotpotqa_ptrue", judge="rules", context="gold")
    task.build_all_requests()
    prompt = second_stage(task)[0][0]
    assert prompt.count("Context: ") == len(p_true.CHECKED)  # our document has none


@pytest.mark.parametrize("shown", [0, 2])
def test_a_template_that_does_not_show_the_question_once(shown):
    def template(messages, add_generation_prompt):
        return messages[-1]["content"] * shown

    doc = {"question": "Why?", "context": ""}
    with pytest.raises(ValueError, match=f"shows the user's last message {shown} times"):
        p_true.chat_frame(doc, "none", 0, template)


@pytest.mark.parametrize("answer", ["", "{} %s \\1 $x", "東京", "word " * 2000, "a\n\nb"])
def test_any_answer_fits_into_the_frame(answer):
    assert Frame("<", ">").around(answer_text(answer)) == f"<{' '.join(answer.split())}>"


def test_an_answer_is_in_whole_characters():
    assert answer_text(" Os\ud800lo ") == "Os\ufffdlo"


# --- requests ------------------------------------------------------------------------------------


@pytest.fixture
def about():
    first = Instance("generate_until", {"id": "a"}, ("p", {}), 0, ("task", 3, 1))
    return AboutAnswer(first, Frame("<", ">"), " True", 1, ("task", 3, 1))


def test_a_request_about_an_answer(about):
    assert (about.request_type, about.doc_id, about.task_name, about.repeats) == (
        "loglikelihood", 3, "task", 1,
    )  # fmt: skip
    with pytest.raises(AnswerMissing, match="in a command of their own"):
        _ = about.args
    about.answer.resps += ["x", "padding"]
    assert about.args == ("<x>", " True")
    assert "' True'" in repr(about)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_requests_survive_pickling_together(about, again):
    first, second = again([about.answer, about])
    first.resps.append("y")
    assert second.args == ("<y>", " True")


# --- the confidence ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_true", "log_false", "expected"),
    [
        (math.log(0.3), math.log(0.1), 0.75),
        (-1000, -1001, 1 / (1 + math.exp(-1))),
        (-1001, -1000, 1 / (1 + math.e)),
        (-1e6, -1, 0),
        (-math.inf, -1, 0),
        (-1, -math.inf, 1),
        (-math.inf, -math.inf, math.nan),
        (math.nan, -1, math.nan),
    ],
)
def test_p_true(log_true, log_false, expected):
    assert p_true.p_true(log_true, log_false) == pytest.approx(expected, nan_ok=True)


# --- both stages in one command ------------------------------------------------------------------


class Scripted(LM):
    """Answers, and is the surer the longer the answer is."""

    answers = (" Oslo", " Rome, Italy", "\n", " Oslo")

    def __init__(self):
        super().__init__()
        self.calls = []

    def generate_until(self, requests, disable_tqdm=False):
        self.calls.append(("generate_until", len(requests)))
        return [self.answers[request.doc_id] for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        self.calls.append(("loglikelihood", len(requests)))
        out = []
        for context, label in (request.args for request in requests):
            answer = context.rsplit("Proposed answer: ")[-1].partition("\n")[0]
            share = len(answer) / 20
            out.append((math.log(share if label == " True" else 1 - share) if share else -5, True))
        return out

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise AssertionError


def test_both_stages_in_one_command(quick):
    lm = Scripted()
    out = evaluate(lm, NAME)
    assert lm.calls == [("generate_until", 4), ("loglikelihood", 8)]
    found = out["results"][NAME]
    confidence = [4 / 20, 11 / 20, 1 / 2, 4 / 20]
    assert found["mean_confidence,none"] == pytest.approx(np.mean(confidence))
    assert found["accuracy,none"] == pytest.approx(1 / 3)  # of three with a gold answer
    assert found["auroc,none"] == 0
    assert found["brier,none"] == pytest.approx((0.8**2 + 0.55**2 + 0.5**2) / 3)
    assert found["parse_rate,none"] == 3 / 4
    assert found["no_gold,none"] == 1 / 4
    rows = out["samples"][NAME]
    assert [row["filtered_resps"][0]["confidence"] for row in rows] == pytest.approx(confidence)
    assert [row["filtered_resps"][0]["right"] for row in rows] == [True, False, False, None]
    arguments = json.loads(json.dumps(rows[1]["arguments"]))
    assert arguments[1][0].endswith("answer: Rome, Italy\n" + f"{p_true.CHECK}\n{p_true.LEAD}")
    assert [pair[1] for pair in arguments[1:]] == [" True", " False"]


def test_limit_write_out_and_repeated_runs(quick):
    first, second = (
        evaluate(Scripted(), NAME, limit=2, write_out=True)["results"][NAME] for _ in range(2)
    )
    assert first == second


def test_predict_only(quick):
    out = evaluate(Scripted(), NAME, predict_only=True)
    assert [row["filtered_resps"][0]["answer"] for row in out["samples"][NAME]] == [
        "Oslo", "Rome, Italy", "", "Oslo",
    ]  # fmt: skip


def test_another_task_comes_first(tmp_path, quick):
    (tmp_path / "first.yaml").write_text(
        "task: first\ndataset_path: json\noutput_type: multiple_choice\ntest_split: train\n"
        f"dataset_kwargs: {{data_files: {tmp_path}/first.json}}\n"
        "doc_to_text: text\ndoc_to_choice: ['a', 'b']\ndoc_to_target: 0\n"
        "metric_list: [{metric: acc}]\n"
    )
    (tmp_path / "first.json").write_text('{"text": "Proposed answer: x"}\n')
    manager = TaskManager(
        include_path=[str(TASK_CONFIGS), str(tmp_path)],
        include_defaults=False,
        metadata={"judge": "rules"},
    )
    tasks = manager.load(["first", NAME])
    assert list(tasks["tasks"]) == ["first", NAME]
    with pytest.raises(AnswerMissing, match=NAME):
        lm_eval.evaluate(Scripted(), tasks, bootstrap_iters=0)


# --- real models ---------------------------------------------------------------------------------


def model(kind, tiny, **more):
    from lm_eval.models.huggingface import HFLM

    from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

    own = HFLM if kind == "hf" else SemsoftHF
    return own(pretrained=tiny.model, tokenizer=tiny.tokenizer, batch_size=1, device="cpu", **more)


def told(out):
    return [row["filtered_resps"][0] for row in out["samples"][NAME]]


@pytest.mark.parametrize("chat", [False, True])
def test_semsoft_hf_equals_hf(tiny_model, quick, one_thread, chat, tmp_path):
    tiny, options = tiny_model("qwen3"), {"num_fewshot": 1, "gen_kwargs": "max_gen_toks=4"}
    if chat:
        options |= {"apply_chat_template": True, "fewshot_as_multiturn": True}
    stock = told(evaluate(model("hf", tiny), NAME, **options))
    readouts = {} if chat else {"readouts": str(tmp_path / "readouts")}
    ours = told(evaluate(model("ours", tiny, **readouts), NAME, **options))
    assert [row["answer"] for row in ours] == [row["answer"] for row in stock]
    assert any(row["answer"] for row in ours)
    confidence = [row["confidence"] for row in ours]
    assert confidence == pytest.approx([row["confidence"] for row in stock], abs=1e-4)
    assert len(set(confidence)) > 1
    if not chat:
        for _ in range(2):  # the second time from the cache
            cached = evaluate(
                model("ours", tiny), NAME, use_cache=str(tmp_path / "cache"), **options
            )
            assert told(cached) == ours
