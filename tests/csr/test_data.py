"""Training questions, and prompts against those that the harness builds for evaluation."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from csr_trainer import data
from csr_trainer.rewards import REWARDS
from lm_eval_semsoft.tasks import data as sources
from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable
from lm_eval_semsoft.tasks.prompts import FixedExamples
from lm_eval_semsoft.tasks.sampled import SampledTask
from lm_eval_semsoft.tasks.verbal import TagsTask, TenTask, doc_to_target, doc_to_text


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A folder that SEMSOFT_DATA_DIR names; the hub is out of reach."""
    monkeypatch.delenv("SEMSOFT_DATA", raising=False)
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(sources, "hub_problem", lambda endpoint: "no network in tests")
    return tmp_path


# --- questions -----------------------------------------------------------------------------------


def test_lines_of_the_user(tmp_path):
    path = lines(
        tmp_path / "mine.jsonl",
        [
            {"question": "Who was it", "answer": "Ann"},
            {"id": 7, "question": "Where?", "answer": ["Oslo"], "aliases": ["Christiania", "Oslo"]},
            {"question": "When?", "answers": "1814", "answer": None},
            {"question": "What?", "golden_answers": ["ice"]},
        ],
    )
    assert [(row["id"], row["question"], row["answers"]) for row in data.read_questions(path)] == [
        ("mine0000", "Who was it?", ["Ann"]),
        ("7", "Where?", ["Oslo", "Christiania"]),
        ("mine0002", "When?", ["1814"]),
        ("mine0003", "What?", ["ice"]),
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"answer": "x"}, "a row with question"),
        ({"question": "Who?"}, "answer, answers or aliases"),
        ({"question": "Who?", "answer": 3}, "a list of texts"),
        ({"question": "Who?", "answers": [3]}, "answers to be a text"),
        ({"question": ["Who?"], "answer": "x"}, "question to be a text"),
        ("Who?", "a JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, told):
    path = lines(tmp_path / "mine.jsonl", [{"question": "Who?", "answer": "x"}, row])
    with pytest.raises(BrokenData, match=rf"mine\.jsonl, line 2: expected .*{told}"):
        data.load(str(path), n_development=0)


def many(n=50):
    return [{"question": f"Question {i}?", "answer": str(i)} for i in range(n)]


def test_the_development_slice_is_held_out_and_keeps_its_questions(tmp_path):
    rows = [*many(), many()[0], {"question": "Unknown?", "answer": "..."}]
    path = str(lines(tmp_path / "mine.jsonl", rows))
    small = data.load(path, n_train=10, n_development=8, seed=3)
    large = data.load(path, n_train=None, n_development=8, seed=3)
    assert small["development"]["question"] == large["development"]["question"]
    assert small["train"]["question"] == large["train"]["question"][:10]
    assert large["train"].num_rows == 50 - 8
    seen = [*large["train"]["question"], *large["development"]["question"]]
    assert len(set(seen)) == 50
    assert "Unknown?" not in seen
    other = data.load(path, n_train=10, n_development=8, seed=4)
    assert other["development"]["question"] != small["development"]["question"]
    assert small["train"].features == data.FEATURES


def test_ids_are_distinct(tmp_path):
    rows = [{"id": 1, "question": f"Q{i}?", "answer": "x"} for i in range(5)]
    found = data.load(str(lines(tmp_path / "mine.jsonl", rows)), n_development=0)
    assert len(set(found["train"]["row_id"])) == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_train": 0}, "n_train=0"),
        ({"n_train": 2.5}, "n_train=2.5"),
        ({"n_development": -1}, "n_development=-1"),
        ({"seed": True}, "seed=True"),
        ({"n_development": 50}, "n_development=50 leaves nothing to train on"),
    ],
)
def test_bad_numbers_are_refused(tmp_path, options, told):
    path = lines(tmp_path / "mine.jsonl", many())
    with pytest.raises(ValueError, match=told):
        data.load(str(path), **options)


def test_unknown_data_sets_and_files():
    with pytest.raises(ValueError, match="did you mean 'hotpotqa'"):
        data.load("hotpot_qa")
    with pytest.raises(DataUnavailable, match="no such file"):
        data.load("mine.jsonl")


@pytest.mark.parametrize(
    ("name", "row", "answers"),
    [
        ("hotpotqa", {"question": "Who?", "answer": "Ann"}, ["Ann"]),
        (
            "triviaqa",
            {"question": "Who?", "answer": {"value": "Ann", "aliases": ["Anna"]}},
            ["Ann", "Anna"],
        ),
        ("nq_open", {"question": "who", "answer": ["Ann", "Anna"]}, ["Ann", "Anna"]),
    ],
)
def test_train_splits_of_the_published_sets(local, name, row, answers):
    lines(local / name / "validation.jsonl", [{**row, "question": "Not this?"}])
    with pytest.raises(DataUnavailable, match=rf"{name}/train\.jsonl or train\.parquet"):
        data.load(name)
    lines(local / name / "train.jsonl", [row])
    train = data.load(name, n_development=0)["train"]
    assert train["question"] == ["Who?"] or train["question"] == ["who?"]
    assert train["answers"] == [answers]


def test_all_parts_of_the_hub_are_read(monkeypatch, tmp_path):
    """HotpotQA's train split comes in two files."""
    asked = []

    def hub_file(hub, split, local_files_only=False):
        asked.append((hub.files[split], hub.revision))
        path = tmp_path / f"{len(asked)}.parquet"
        table = {"id": [str(len(asked))], "question": [f"Q{len(asked)}?"], "answer": ["x"]}
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        return path

    monkeypatch.delenv("SEMSOFT_DATA_DIR", raising=False)
    monkeypatch.setenv("SEMSOFT_DATA", "hub")
    monkeypatch.setattr(sources, "_hub_file", hub_file)
    train = data.load("hotpotqa", n_development=0)["train"]
    assert sorted(train["question"]) == ["Q1?", "Q2?"]
    assert [file for file, _ in asked] == [
        "distractor/train-00000-of-00002.parquet",
        "distractor/train-00001-of-00002.parquet",
    ]
    assert {revision for _, revision in asked} == {data.hotpotqa.spec("none").hub.revision}


# --- prompts -------------------------------------------------------------------------------------

TASKS = {"answer": SampledTask, "tags": TagsTask, "ten": TenTask}


def of_the_harness(form, chat, examples):
    """The prompt that the evaluating task builds, messages as the chat template gets them."""
    doc = {"id": "1", "question": "Who?", "answers": ["x"], "context": "", "published_data": 1}
    verbal = form != "answer"
    task = TASKS[form](
        {
            "task": "t",
            "custom_dataset": lambda **_: questions.datasets.DatasetDict(
                test=questions.datasets.Dataset.from_list([doc], features=questions.FEATURES)
            ),
            "output_type": "generate_until",
            "test_split": "test",
            "num_fewshot": 4,
            "fewshot_config": {
                "sampler": FixedExamples,
                "samples": questions.examples,
            },
            "doc_to_text": doc_to_text if verbal else questions.doc_to_text,
            "doc_to_target": doc_to_target if verbal else questions.doc_to_target,
            "target_delimiter": "\n" if verbal else " ",
            "generation_kwargs": {"until": ["\n"], "do_sample": True},
            "metric_list": [],
            "metadata": {"judge": "exact"},
        }
    )
    seen = []
    text = task.fewshot_context(
        doc,
        examples,
        apply_chat_template=chat,
        fewshot_as_multiturn=True,
        chat_template=lambda messages, **_: seen.append(messages) or "",
    )
    return seen[0] if chat else text


@pytest.mark.parametrize("examples", [0, 4])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("form", data.FORMATS)
def test_prompts_are_those_of_the_evaluation(form, chat, examples):
    assert data.prompt("Who?", form, chat, examples) == of_the_harness(form, chat, examples)


def test_prompts_are_a_column(tmp_path):
    path = lines(tmp_path / "mine.jsonl", many(6))
    table = data.load(str(path), n_development=1)["train"]
    texts, chats = data.with_prompts(table), data.with_prompts(table, "ten", chat=True, examples=1)
    assert texts["prompt"][2].endswith(f"\n\nQuestion: {table['question'][2]}\nAnswer:")
    assert [message["role"] for message in chats["prompt"][0]] == [
        *("system", "user", "assistant", "user")
    ]
    assert {*texts.column_names} == {"prompt", "question", "answers", "row_id"}


def test_unknown_forms_and_numbers_of_examples():
    with pytest.raises(ValueError, match="form='tag'"):
        data.prompt("Who?", "tag")
    with pytest.raises(ValueError, match="examples=5"):
        data.prompt("Who?", examples=5)


def test_every_reward_has_a_form():
    assert data.FORMAT_OF.keys() == REWARDS.keys()
    assert set(data.FORMAT_OF.values()) == set(data.FORMATS)
