"""`mmlu_calibration`: rows, sources, and examples of the document's subject."""

import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from lm_eval_semsoft.tasks import mmlu
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "mmlu"


def row(question="Q?", split="validation", subject="s", choices=("a", "b", "c", "d"), answer=1):
    return {"split": split, "subject": subject, "question": question,
            "choices": list(choices), "answer": answer}  # fmt: skip


def write(folder, *rows, name="dev_validation.jsonl"):
    (folder / "mmlu").mkdir(exist_ok=True)
    path = folder / "mmlu" / name
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def test_splits_of_one_file(local):
    write(local, row("V1"), row("D1", "dev"), row("V2", subject="t"))
    assert mmlu.load()["test"]["question"][:] == ["V1", "V2"]
    assert mmlu.load()["test"]["id"][:] == ["mmlu-validation-00000", "mmlu-validation-00001"]
    assert mmlu.load(split="dev")["test"]["question"][:] == ["D1"]
    assert mmlu.load()["test"]["subject"][:] == ["s", "t"]
    write(local, {k: v for k, v in row("T1").items() if k != "split"}, name="test.jsonl")
    assert mmlu.load(split="test")["test"]["question"][:] == ["T1"]


def test_edge_whitespace_goes(local):
    write(local, row(" Q\n", choices=[" a", "b ", "\tc", "d\n"]))
    (doc,) = mmlu.load()["test"]
    assert (doc["question"], doc["options"]) == ("Q", ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("choices", "answer", "labels"),
    [
        (["12", "4", "x", "12"], 0, [0, 3]),
        (["12", "4", "x", "12 "], 3, [3, 0]),  # alike but for a space
        (["12", "4", "x", "12"], 1, [1]),
        (["12", "4", "x", "13"], 0, [0]),
    ],
)
def test_identical_choices(local, choices, answer, labels):
    write(local, row(choices=choices, answer=answer))
    (doc,) = mmlu.load()["test"]
    assert doc["labels"] == labels
    assert doc["dropped_documents"] == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(" "), "a question"),
        (row(choices=["a", "b", "c"]), "4 choices with a text"),
        (row(choices=["a", "b", "c", " "]), "4 choices with a text"),
        (row(answer=4), "answer to be 0 to 3"),
        (row(answer="1"), "answer to be 0 to 3"),
    ],
)
def test_broken_rows(local, bad, message):
    write(local, row(), bad)
    with pytest.raises(BrokenData, match=rf"jsonl, line 2: expected {re.escape(message)}"):
        mmlu.load()


def test_the_hubs_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    rows = [{k: v for k, v in row(q).items() if k != "split"} for q in ("A", "B")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = mmlu.read_parquet_file(path, "test")
    assert [r["id"] for r in found] == ["mmlu-test-00000", "mmlu-test-00001"]
    assert found[1]["question"] == "B"


def test_unknown_split(embedded):
    with pytest.raises(ValueError, match=r"split='valid' is not known.*did you mean 'validation'"):
        mmlu.load(split="valid")


# --- examples ------------------------------------------------------------------------------------


def test_two_fixed_examples(embedded, load_task, prompts):
    for prompt, _ in prompts(load_task("mmlu_calibration")):
        assert prompt.startswith("Question: What is the chemical symbol for gold?\nA. Ag")
        assert prompt.count("Answer:") == 3


def test_five_examples_of_the_subject(local, load_task, prompts):
    dev = [row(f"D{s}{i}", "dev", s, answer=i % 4) for i in range(6) for s in ("s", "t")]
    write(local, row("V1", subject="t"), *dev, row("V2", subject="s"))
    (first, _), (second, _) = prompts(load_task("mmlu_calibration"), num_fewshot=5)
    assert [f"Dt{i}" in first for i in range(6)] == [True] * 5 + [False]
    assert "Ds" not in first
    assert "Dt" not in second
    assert first.count("Answer:") == 6
    assert "gold" not in first
    assert "Question: Dt1\nA. a\nB. b\nC. c\nD. d\nAnswer: B\n\n" in first


def test_a_dev_question_is_no_example_of_itself(embedded, load_task, prompts):
    task = load_task("mmlu_calibration", split="dev")
    for (prompt, _), doc in zip(prompts(task, num_fewshot=4), task.eval_docs, strict=True):
        assert prompt.count(f"Question: {doc['question']}\n") == 1
    with pytest.raises(ValueError, match="num_fewshot=5 is too large: the dev split has 4 other"):
        prompts(task, num_fewshot=5)


def test_examples_without_a_dev_split(local, load_task, prompts):
    write(local, row(split="test"), name="test.jsonl")
    task = load_task("mmlu_calibration", split="test")
    assert len(prompts(task)) == 1
    with pytest.raises(DataUnavailable, match="num_fewshot above 2 needs MMLU's dev split"):
        prompts(task, num_fewshot=3)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published data is not here")
def test_the_published_questions(local, monkeypatch, load_task):
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    test = mmlu.load()["test"]
    assert len(test) == 1531
    assert len(set(test["subject"])) == 57
    assert sum(len(labels) > 1 for labels in test["labels"]) == 1
    for doc in test:
        assert all(option == option.strip() for option in doc["options"])
    assert len(mmlu.load(split="dev")["test"]) == 285
