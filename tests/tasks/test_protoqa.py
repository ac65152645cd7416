"""`protoqa_mc`: clusters, counts, order, and what is left out."""

import json
import math
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from scipy.stats import entropy

from lm_eval_semsoft.tasks import protoqa
from lm_eval_semsoft.tasks.data import BrokenData

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "protoqa"


def question(key, counts, text="Name something.", answers=None):
    names = answers or [[f"answer {key} {i}", "another"] for i in range(len(counts))]
    clusters = {
        f"{key}.{i}": {"count": count, "answers": own}
        for i, (count, own) in enumerate(zip(counts, names, strict=True))
    }
    return {
        "metadata": {"id": key},
        "question": {"original": text, "normalized": text.lower()},
        "answers": {"clusters": clusters},
    }


def write(folder, *rows, name="dev.scraped.jsonl"):
    (folder / "protoqa").mkdir(exist_ok=True)
    path = folder / "protoqa" / name
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_options_are_clusters_and_shares_are_counts(local):
    write(local, question("q", [5, 30, 15], "  Name a THING. "))
    (doc,) = protoqa.load(order="count")["test"]
    assert doc["question"] == "Name a THING."
    assert doc["options"] == ["answer q 1", "answer q 2", "answer q 0"]
    assert doc["human_shares"] == pytest.approx([0.6, 0.3, 0.1])
    assert doc["labels"] == [0]
    assert doc["human_accuracy"] == pytest.approx(0.6)
    assert doc["human_entropy"] == pytest.approx(entropy([30, 15, 5], base=3), abs=1e-12)
    assert math.isnan(doc["response_time"])


def test_the_order_is_shuffled_and_always_the_same(local):
    rows = [question(f"q{i}", [40, 30, 20, 10]) for i in range(60)]
    write(local, *rows)
    first = protoqa.load()["test"]
    assert first["options"][:] == protoqa.load()["test"]["options"][:]
    places = [doc["labels"][0] for doc in first]
    assert {places.count(i) > 5 for i in range(4)} == {True}  # not always A
    for doc in first:
        assert doc["human_shares"][doc["labels"][0]] == pytest.approx(0.4)
        assert doc["options"][doc["labels"][0]].endswith(" 0")
    write(local, *rows[::-1])
    again = {doc["id"]: doc["options"] for doc in protoqa.load()["test"]}
    assert again == {doc["id"]: doc["options"] for doc in first}


def test_as_many_people_for_two_answers(local):
    write(local, question("q", [10, 20, 20]))
    (doc,) = protoqa.load()["test"]
    right = {doc["options"][i] for i in doc["labels"]}
    assert right == {"answer q 1", "answer q 2"}
    assert doc["label"] == min(doc["labels"])
    assert doc["human_accuracy"] == pytest.approx(0.8)


def test_what_is_left_out(local):
    write(
        local,
        question("one", [30]),
        question("many", range(1, 11)),
        question("zero", [0, 34]),
        question("nobody", [0, 0]),
        question("nine", range(1, 10)),
        question("two", [1, 1]),
    )
    test = protoqa.load()["test"]
    assert test["id"][:] == ["nine", "two"]
    assert set(test["dropped_documents"]) == {4}
    kept = protoqa.load(zero_counts="keep")["test"]
    assert kept["id"][:] == ["zero", "nine", "two"]
    assert kept["human_entropy"][0] == 0
    assert set(kept["dropped_documents"]) == {3}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question("", [1, 2]), "an id"),
        (question("q", [1, 2], " "), "a question"),
        (question("q", [1, -2]), "clusters with a count and answers"),
        (question("q", [1, "2"]), "clusters with a count and answers"),
        (question("q", [1, 2], answers=[["a"], []]), "clusters with a count and answers"),
        (question("q", [1, 2], answers=[["a"], [" "]]), "clusters with a count and answers"),
        ({"question": "?"}, "an id"),
    ],
)
def test_broken_rows(local, row, message):
    write(local, question("fine", [1, 2]), row)
    with pytest.raises(BrokenData, match=rf"dev\.scraped\.jsonl, line 2: expected {message}"):
        protoqa.load()


@pytest.mark.parametrize("name", protoqa.HUB_CLUSTERS)
@pytest.mark.parametrize("columns", [True, False])
def test_the_hubs_parquet(tmp_path, name, columns):
    clusters = [{"count": 3, "clusterid": "a", "answers": ["x", "y"]},
                {"count": 7, "clusterid": "b", "answers": ["z"]}]  # fmt: skip
    if columns:
        clusters = {key: [c[key] for c in clusters] for key in clusters[0]}
    row = {"id": "q", "question": "Name it.", name: clusters, "totalcount": 10}
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    expected = {"id": "q", "question": "Name it.", "clusters": [("x", 3), ("z", 7)]}
    assert protoqa.read_parquet_file(path) == [expected]


def test_unknown_options(embedded):
    with pytest.raises(ValueError, match=r"survey='scrapped' is not known.*did you mean 'scraped'"):
        protoqa.load(survey="scrapped")


def test_prompt_with_many_options(embedded, load_task, prompts):
    task = load_task("protoqa_mc", survey="crowdsourced")
    prompt, continuations = prompts(task, num_fewshot=0)[0]
    n = len(task.eval_docs[0]["options"])
    assert continuations == [" A", " B", " C", " D", " E"][:n]
    assert prompt.startswith("Question: Name something that makes a waiting room feel longer.\nA. ")
    assert {"no phone signal", "crying children"} <= set(task.eval_docs[0]["options"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published data is not here")
def test_the_published_questions(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    raw = [json.loads(line) for line in (SHARED / "dev.scraped.jsonl").open(encoding="utf-8")]
    by_id = {row["metadata"]["id"]: row["answers"]["clusters"].values() for row in raw}
    test = protoqa.load(order="count")["test"]
    for doc in test:
        counts = [cluster["count"] for cluster in by_id[doc["id"]]]
        expected = entropy(counts) / math.log(len(counts))
        assert doc["human_entropy"] == pytest.approx(expected, abs=1e-9)
        assert 0 not in counts
    assert len(test) + test["dropped_documents"][0] == 980
    crowd = protoqa.load(survey="crowdsourced")["test"]
    assert len(crowd) + crowd["dropped_documents"][0] == 52
