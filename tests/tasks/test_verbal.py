"""Verbalised confidence: reading replies, prompts, and what unreadable replies count as."""

import functools
import json
import math
from pathlib import Path

import lm_eval
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import sanitize_list

from lm_eval_semsoft.judges import JudgeError
from lm_eval_semsoft.tasks import baseline, questions, right, verbal
from lm_eval_semsoft.tasks.verbal_formats import parse_tags, parse_ten

TASK_CONFIGS = Path(__file__).parents[2] / "task_configs"
LONG = "word " * 2000

# --- tags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "confidence"),
    [
        ("<answer>Oslo</answer><confidence>0.8</confidence>", "Oslo", 0.8),
        (
            "<think>Hm.</think>\n<answer>\nOslo,\n Norway \n</answer>\n<analysis>5 of 6"
            "</analysis>\n<confidence> 0.75 </confidence>",
            "Oslo, Norway",
            0.75,
        ),
        ("<ANSWER>Oslo</Answer> < confidence >.5</ confidence >", "Oslo", 0.5),
        ("<answer>Oslo</answer><confidence>1</confidence>", "Oslo", 1),
        ("<answer>Oslo</answer><confidence>0</confidence>", "Oslo", 0),
        ("<answer>Oslo</answer><confidence>80%</confidence>", "Oslo", 0.8),
        ("<answer>Oslo</answer><confidence>85 percent</confidence>", "Oslo", 0.85),
        ("<answer>Oslo</answer><confidence>7/10</confidence>", "Oslo", 0.7),
        ("<answer>Oslo</answer><confidence>7 out of 10</confidence>", "Oslo", 0.7),
        ("<answer>Oslo</answer><confidence>0,9</confidence>", "Oslo", 0.9),
        ("<answer>Oslo</answer><confidence>80</confidence>", "Oslo", 0.8),  # as published
        ("<answer>Oslo</answer><confidence>about 0.6, I think</confidence>", "Oslo", 0.6),
        ("<answer>Oslo</answer><confidence>٠.٥</confidence>", "Oslo", 0.5),
        # no probability
        ("<answer>Oslo</answer><confidence>high</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>nan</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>inf</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>101</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>120%</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>-0.5</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>3/0</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>0-1</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence>a number from 0 to 1</confidence>", "Oslo", None),
        ("<answer>Oslo</answer><confidence></confidence>", "Oslo", None),
        ("<answer>Oslo</answer>", "Oslo", None),
        # no answer
        ("<confidence>0.8</confidence>", None, 0.8),
        ("<answer> ... </answer><confidence>0.8</confidence>", None, 0.8),
        ("Oslo, and I am 80% sure.", None, None),
        ("", None, None),
        # several: the last complete pair
        ("<answer>A</answer><answer>B</answer><confidence>.1</confidence><confidence>.2"
         "</confidence>", "B", 0.2),
        ("<think>Not <answer>A</answer>.</think><answer>B</answer>", "B", None),
        ("<answer><answer>B</answer></answer><confidence>0.2</confidence>", "B", 0.2),
        ("<answer>A</answer><confidence>0.3</confidence><answer>B<confidence>0.4", "A", 0.3),
        ("</answer><answer>A</answer></answer>", "A", None),
        # the closing tag is missing
        ("<answer>Oslo</answer><confidence>0.8", "Oslo", 0.8),
        ("<answer>Oslo\n<analysis>Sure.</analysis><confidence>0.8", "Oslo", 0.8),
        ("<think>a</think><answer>Oslo", "Oslo", None),
        # other scripts, long texts
        ("<answer>東京</answer><confidence>０.９</confidence>", "東京", 0.9),
        ("<answer>القاهرة</answer><confidence>0.4</confidence>", "القاهرة", 0.4),
        (f"<answer>{LONG}</answer><confidence>0.1</confidence>", LONG.strip(), 0.1),
    ],
)  # fmt: skip
def test_tags(text, answer, confidence):
    assert parse_tags(text) == (answer, pytest.approx(confidence))


# --- 0 to 10 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "confidence"),
    [
        ("Answer: Oslo, Confidence: 8", "Oslo", 0.8),
        ("answer: Oslo, Norway, confidence: 10.", "Oslo, Norway", 1),
        ("Answer: U.S.\nConfidence: 0", "U.S.", 0),
        ("  ANSWER : Oslo\r\n\r\nCONFIDENCE = 7\r\n", "Oslo", 0.7),
        ("**Answer:** Oslo\n**Confidence:** **9**/10", "Oslo", 0.9),
        ("**Answer**: Oslo\n\n**Confidence Level**: 9 out of 10", "Oslo", 0.9),
        ("Answer: Oslo\nConfidence (0-10): 6", "Oslo", 0.6),
        ('Answer: "Oslo"; Confidence: 6', "Oslo", 0.6),
        ("Answer: <Oslo>, Confidence: <6>", "Oslo", 0.6),
        ("Answer: Oslo, Confidence: 80%", "Oslo", 0.8),
        ("Answer: Oslo, Confidence: 8.5", "Oslo", 0.85),
        ("Answer: Oslo, Confidence: 0.7", "Oslo", 0.7),
        ("Answer: Oslo\nIt has been the capital since 1814.\nConfidence: High (9)", "Oslo", 0.9),
        ("Answer:\nOslo\nConfidence:\n9", "Oslo", 0.9),
        ("Confidence: 4\nAnswer: Oslo", "Oslo", 0.4),
        ("I think it is\nOslo.\nConfidence: 4", "Oslo.", 0.4),
        ("Oslo, confidence is 4", "Oslo", 0.4),
        # no confidence
        ("Answer: Oslo", "Oslo", None),
        ("Answer: Oslo, Confidence: high", "Oslo", None),
        ("Answer: Oslo, Confidence: 11", "Oslo", None),
        ("Answer: Oslo, Confidence: -1", "Oslo", None),
        ("Answer: Oslo, Confidence: NaN", "Oslo", None),
        ("Answer: Oslo, Confidence: 0-10", "Oslo", None),
        ("Oslo", None, None),
        ("8", None, None),
        ("", None, None),
        # no answer
        ("Answer: , Confidence: 3", None, 0.3),
        ("Answer: ..., Confidence: 3", None, 0.3),
        ("Confidence: 3", None, 0.3),
        # several: the last one that has a number
        ("Answer: A, Confidence: 3\nAnswer: B, Confidence: 5", "B", 0.5),
        ("Answer: A, Confidence: 3\nOn second thoughts, Confidence: 5", "A", 0.5),
        ("Use this form: Answer: x, Confidence: 0-10.\nAnswer: B, Confidence: 5", "B", 0.5),
        ("Answer: A, Confidence: 3\nAnswer: B, Confidence:", "A", 0.3),
        # other scripts, long texts
        ("Answer：東京，Confidence：９", "東京", 0.9),
        ("Answer: Москва, Confidence: 9", "Москва", 0.9),
        (f"Answer: {LONG}, Confidence: 1", LONG.strip(), 0.1),
    ],
)
def test_ten(text, answer, confidence):
    assert parse_ten(text) == (answer, pytest.approx(confidence))


PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<confidence>", "</confidence>", "Answer:", "Confidence:", "Oslo",
     "0.7", "7/10", "80%", "-1", "9" * 400, "nan", "\n", " ", ",", "<", "/0", "e9", "٧", "²", "½"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5)).map("".join))
def test_any_text_can_be_read(text):
    for read in (parse_tags, parse_ten):
        answer, confidence = read(text)
        assert answer is None or answer.strip()
        assert confidence is None or 0 <= confidence <= 1


@pytest.mark.parametrize(
    "text",
    ["<answer>", "</answer>", "<answer></answer>", "<confidence>1 - ", "answer: ", "confidence: 1 ",
     "confidence: ", "< ", "* ", "9", "1,", "1 - ", " "],
)  # fmt: skip
def test_time_is_linear(text):
    for read in (parse_tags, parse_ten):
        read(text * 20_000)  # a quadratic reader would take minutes


# --- prompts -------------------------------------------------------------------------------------

TASKS = {"triviaqa_verbal": verbal.TagsTask, "triviaqa_verbal10": verbal.TenTask}


@pytest.mark.parametrize(("name", "kind"), TASKS.items())
def test_base_prompt(embedded, load_task, prompts, name, kind):
    task = load_task(name)
    prompt, (arguments,) = prompts(task)[0]
    question = task.eval_docs[0]["question"]
    shown = [
        f"Question: {example.question}\n{kind.written(example)}\n\n" for example in verbal.EXAMPLES
    ]
    assert prompt == f"{kind.instruction}\n\n{''.join(shown)}Question: {question}"
    assert arguments["until"] == ["\nQuestion:"]
    assert arguments["do_sample"] is False
    assert arguments["max_gen_toks"] == (512 if kind is verbal.TagsTask else 256)


@pytest.mark.parametrize(("name", "kind"), TASKS.items())
def test_chat_prompt(embedded, load_task, prompts, name, kind):
    task = load_task(name)
    prompt, _ = prompts(task, num_fewshot=1, chat=True)[0]
    question = task.eval_docs[0]["question"]
    example = verbal.EXAMPLES[0]
    assert prompt == (
        f"<system>{kind.instruction}<user>Question: {example.question}"
        f"<assistant>{kind.written(example)}<user>Question: {question}<assistant>"
    )


def test_context_goes_in_front_of_examples_too(embedded, load_task, prompts):
    task = load_task("hotpotqa_verbal10", context="gold")
    (prompt, _), doc = prompts(task)[0], task.eval_docs[0]
    assert prompt.count("Context: ") == 5
    assert f"Context: {doc['context']}\nQuestion: {doc['question']}" in prompt


@pytest.mark.parametrize("read", [parse_tags, parse_ten])
def test_examples_can_be_read(read):
    kind = verbal.TagsTask if read is parse_tags else verbal.TenTask
    found = [read(kind.written(example)) for example in verbal.EXAMPLES]
    assert found == [(x.answer, x.tenths / 10) for x in verbal.EXAMPLES]
    assert {x.tenths for x in verbal.EXAMPLES} >= {1, 10}


# --- what unreadable replies count as ------------------------------------------------------------

REPLIES = (
    "Answer: Oslo, Confidence: 9",  # right
    "Answer: Rome, Confidence: 6",  # wrong
    "Answer: Oslo",  # right, without confidence
    "I cannot say.",  # nothing
    "Answer: Oslo, Confidence: 2",  # right
    "Answer: Oslo, Confidence: 8",  # nobody knows
)


class Scripted(LM):
    """Gives one document after another its reply."""

    def __init__(self, replies=REPLIES):
        super().__init__()
        self.replies = dict(enumerate(replies))
        self.asked = 0

    def generate_until(self, requests, disable_tqdm=False):
        self.asked += len(requests)
        return [self.replies[request.doc_id] for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        raise AssertionError

    loglikelihood_rolling = loglikelihood


@pytest.fixture
def six(monkeypatch):
    """The task with six questions, and a judge without a model."""
    import datasets

    rows = {
        "id": [f"q{i}" for i in range(6)],
        "question": [f"Capital number {i}?" for i in range(6)],
        "answers": [["Kristiania", "Oslo"]] * 5 + [[]],
        "context": [""] * 6,
        "published_data": [1] * 6,
    }
    data = datasets.Dataset.from_dict(rows, features=questions.FEATURES)
    monkeypatch.setattr(questions, "load", lambda *_: datasets.DatasetDict(test=data))


def evaluate(lm, *tasks, folder, **metadata):
    manager = TaskManager(
        include_path=str(folder), include_defaults=False, metadata={"judge": "rules"} | metadata
    )
    return lm_eval.simple_evaluate(
        lm, tasks=list(tasks), task_manager=manager, log_samples=True, bootstrap_iters=0
    )


@pytest.fixture
def run(six, quick):
    return functools.partial(evaluate, folder=TASK_CONFIGS)


def test_both_conventions(run):
    lm = Scripted()
    out = run(lm, "triviaqa_verbal10")
    found = out["results"]["triviaqa_verbal10"]
    expected = {
        # .9 right, .6 wrong, 0 right, 0 wrong, .2 right; .8, and nobody knows
        "zero": {
            "accuracy": 3 / 5,
            "ece": (0.1 + 0.6 + 2 * 0.5 + 0.8) / 5,
            "auroc": 3.5 / 6,
            "brier": (0.1**2 + 0.6**2 + 1 + 0 + 0.8**2) / 5,
            "mean_confidence": (0.9 + 0.6 + 0.2 + 0.8) / 6,
        },
        # .9 right, .6 wrong, .2 right; .8, and nobody knows
        "exclude": {
            "accuracy": 2 / 3,
            "ece": (0.1 + 0.6 + 0.8) / 3,
            "auroc": 1 / 2,
            "brier": (0.1**2 + 0.6**2 + 0.8**2) / 3,
            "mean_confidence": (0.9 + 0.6 + 0.2 + 0.8) / 4,
        },
    }
    for convention, values in expected.items():
        for name, value in values.items():
            assert found[f"{name},{convention}"] == pytest.approx(value), (name, convention)
            assert found[f"{name}_stderr,{convention}"] >= 0
        assert found[f"parse_rate,{convention}"] == pytest.approx(4 / 6)
        assert found[f"no_gold,{convention}"] == pytest.approx(1 / 6)
        assert found[f"published_data,{convention}"] == 1
        assert math.isnan(found[f"n_tokens,{convention}"])  # this model does not say
    assert lm.asked == 6
    rows = {
        (row["doc_id"], row["filter"]): row["filtered_resps"]
        for row in out["samples"]["triviaqa_verbal10"]
    }
    plain = {"parsed": True, "n_tokens": None}
    assert rows[1, "zero"] == [{"answer": "Rome", "confidence": 0.6, "right": False} | plain]
    assert rows[5, "exclude"] == [{"answer": "Oslo", "confidence": 0.8, "right": None} | plain]
    plain["parsed"] = False
    assert rows[2, "zero"] == [{"answer": "Oslo", "confidence": 0, "right": True} | plain]
    assert rows[2, "exclude"] == [{"answer": "Oslo", "confidence": None, "right": None} | plain]
    assert rows[3, "zero"] == [{"answer": "", "confidence": 0, "right": False} | plain]


def test_samples_are_logged_as_json():
    reply = baseline.Reply("東京", math.nan, parsed=False, n_tokens=3.0)
    (text,) = sanitize_list([baseline.record(reply, 1.0, "exclude")])
    assert json.loads(text) == {
        "answer": "東京", "confidence": None, "right": None, "parsed": False, "n_tokens": 3,
    }  # fmt: skip


def test_half_a_character_can_be_logged(run):
    out = run(Scripted(["Answer: Os\ud800lo, Confidence: 9"] * 6), "triviaqa_verbal10")
    for row in out["samples"]["triviaqa_verbal10"]:
        told = sanitize_list([row["resps"], row["filtered_resps"]])
        json.dumps(told, ensure_ascii=False).encode()


def test_tokens_are_counted(run):
    class Text(str):
        n_tokens = 7

    found = run(Scripted([Text(reply) for reply in REPLIES]), "triviaqa_verbal10")["results"]
    assert found["triviaqa_verbal10"]["n_tokens,zero"] == 7


def test_nothing_can_be_read(run):
    found = run(Scripted(["?"] * 6), "triviaqa_verbal")["results"]["triviaqa_verbal"]
    assert found["parse_rate,zero"] == found["accuracy,zero"] == found["mean_confidence,zero"] == 0
    assert math.isnan(found["accuracy,exclude"])
    assert math.isnan(found["ece,exclude"])


@pytest.mark.parametrize("judge", ["encoder:/no/such/folder", "ruels", None, ["rules"]])
def test_a_missing_judge_is_noticed_before_the_model_runs(run, judge):
    lm = Scripted()
    with pytest.raises(JudgeError, match="judge="):
        run(lm, "triviaqa_verbal10", judge=judge)
    assert lm.asked == 0


def test_all_baselines_load_and_list_their_metrics(embedded):
    groups = ["semantic_uncertainty_verbal", "semantic_uncertainty_ptrue"]
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata={"judge": "rules"}
    )
    tasks = manager.load(groups)["tasks"]
    data = ("hotpotqa", "triviaqa", "nq_open", "ms_marco")
    assert sorted(tasks) == sorted(
        f"{name}_{kind}" for name in data for kind in ("verbal", "verbal10", "ptrue")
    )
    for task in tasks.values():
        assert set(baseline.METRICS) <= set(task.aggregation())
        assert task.judge is right.judge_named("rules")
