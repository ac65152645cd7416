"""`camchoice`: the user's own files in two layouts, and what is left out."""

import json
import math
import re
from pathlib import Path

import pyarrow.parquet
import pytest
from scipy.stats import entropy

from lm_eval_semsoft.tasks import camchoice
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "camchoice"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the published data is not here")


def asked(shares, answer="b", text="What then?"):
    """A question in the layout of CMCQRD."""
    options = {
        letter: {"text": f"option {letter}", "fac": share}
        for letter, share in zip("abcd", shares, strict=False)
    }
    return {"text": text, "answer": answer, "options": options}


def passage(*questions, text="It rained. ", **more):
    return {"text": text, "questions": {str(i + 1): q for i, q in enumerate(questions)}, **more}


def item(shares, key="n1", stem="What then?", **more):
    """A question in the layout of NAEP."""
    return {
        "stem": stem,
        "options": [f"option {i}" for i in range(len(shares))],
        "correct_option_index": 1,
        "response_distribution": shares,
        "item_id": key,
        **more,
    }


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return str(path)


# --- layouts -------------------------------------------------------------------------------------


def test_a_passage_and_its_questions(tmp_path):
    path = write(
        tmp_path / "mine.jsonl",
        passage(asked([0.1, 0.6, 0.2, 0.1]), asked([0.25] * 4, "d", "And now? "), id="T7"),
    )
    test = camchoice.load(path)["test"]
    assert test["id"][:] == ["T7.1", "T7.2"]
    assert test["question"][:] == ["It rained. What then?", "It rained. And now?"]
    assert test["labels"][:] == [[1], [3]]
    assert test["options"][0] == ["option a", "option b", "option c", "option d"]
    assert test["human_accuracy"][:] == pytest.approx([0.6, 0.25])
    expected = [entropy([1, 6, 2, 1], base=4), 1]
    assert test["human_entropy"][:] == pytest.approx(expected, abs=1e-12)
    assert set(test["source"]) == {"local"}


def test_percentages_and_fractions_are_the_same(tmp_path):
    shares = [0.1, 0.6, 0.2, 0.1]
    path = write(
        tmp_path / "x.jsonl",
        passage(asked(shares), asked([100 * s for s in shares], text="Again?")),
    )
    first, second = camchoice.load(path)["test"]["human_shares"]
    assert first == pytest.approx(second, abs=1e-12)


def test_items_of_a_survey(tmp_path):
    path = write(tmp_path / "x.jsonl", item([0.2, 0.5, 0.21]), item([0.5, 0.5], "n2", "Else?"))
    test = camchoice.load(path)["test"]
    assert test["id"][:] == ["n1", "n2"]
    assert test["human_shares"][0] == pytest.approx([0.2 / 0.91, 0.5 / 0.91, 0.21 / 0.91])
    assert test["human_entropy"][0] == pytest.approx(entropy([20, 50, 21], base=3), abs=1e-12)
    assert test["human_entropy"][1] == pytest.approx(1)


def test_what_is_left_out(tmp_path):
    path = write(
        tmp_path / "x.jsonl",
        passage(
            asked([0.1, None, 0.2, 0.1]),
            asked([None] * 4, text="b"),
            asked([0.2, 0.2, 0.2, 0.2], text="c"),
            asked([20, 20, 20, 25], text="d"),
            asked([0.25] * 4, text="e"),
            asked([math.nan, 0.5, 0.25, 0.25], text="f"),
        ),
        item([0.2, 0.2, 0.6], grade=8),
        item([0.3, 0.3, 0.4], grade=12),
        item([0.5, 0.1, 0.4], grade=4),
        {k: v for k, v in item([0.5, 0.5], stem="g").items() if k != "response_distribution"},
    )
    test = camchoice.load(path)["test"]
    assert test["question"][:] == ["It rained. e", "What then?"]
    assert test["human_shares"][1] == pytest.approx([0.3, 0.3, 0.4])  # the oldest pupils'
    assert set(test["dropped_documents"]) == {8}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"title": "x"}, "text and questions, or stem, options and response_distribution"),
        (passage(asked([0.5] * 2, "c")), "answer to be one of a, b"),
        (passage({"text": "?", "answer": "a", "options": ["x"]}), "options by letter"),
        (passage(asked([0.5, "many"], "a")), "a share per option"),
        (passage(asked([0.5, 101], "a")), "a share per option"),
        (passage(asked([0.5, -0.1], "a")), "a share per option"),
        (passage(asked([1.0], "a")), "two options or more"),
        (passage("what?"), "options by letter"),
        ({"text": 5, "questions": {}}, "text and questions"),
        (item([0.5, 0.5], correct_option_index=2), "the number of the right option"),
        (item([0.5, 0.5], response_distribution=[0.5]), "a share per option"),
        (item([0.5, 0.5], stem=" "), "the text of a question"),
        (item([0.5, 0.5], options=["x", ""]), "two options or more"),
        (item([0.5, 0.5], grade="8th"), "a grade to be a number"),
    ],
)
def test_broken_rows(tmp_path, row, message):
    path = write(tmp_path / "x.jsonl", item([0.5, 0.5]), row)
    with pytest.raises(BrokenData, match=rf"x\.jsonl, line 2: expected .*{re.escape(message)}"):
        camchoice.load(path)


# --- which files ---------------------------------------------------------------------------------


def test_files_folders_patterns_and_lists(tmp_path, monkeypatch):
    a = write(tmp_path / "a.jsonl", item([0.5, 0.5], "a", "A?"))
    b = write(tmp_path / "b.jsonl", item([0.5, 0.5], "b", "B?"))
    for path in (str(tmp_path), f"{tmp_path}/*.jsonl", [a, b], [a, str(tmp_path)]):
        assert camchoice.load(path)["test"]["id"][:] == ["a", "b"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert camchoice.load("~/b.jsonl")["test"]["id"][:] == ["b"]


def test_local_copies_have_any_name(local):
    write(local / "camchoice" / "whatever.jsonl", item([0.5, 0.5]))
    write(local / "camchoice" / "more.jsonl", item([0.5, 0.5], "n2", "Else?"))
    test = camchoice.load()["test"]
    assert test["id"][:] == ["n2", "n1"]
    assert set(test["published_data"]) == {1}


def test_the_same_id_in_two_files(local):
    write(local / "camchoice" / "a.jsonl", item([0.5, 0.5]))
    write(local / "camchoice" / "b.jsonl", item([0.5, 0.5], stem="Else?"))
    assert camchoice.load()["test"]["id"][:] == ["n1", "n1-2"]


@pytest.mark.parametrize("path", ["nowhere.jsonl", "nowhere/*.jsonl", ["nowhere"]])
def test_no_such_file(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataUnavailable, match=r"camchoice: there is no .*nowhere"):
        camchoice.load(path)


@pytest.mark.parametrize("path", [5, [], "", [""], {"a": 1}])
def test_bad_path(path):
    with pytest.raises(ValueError, match=r"path=.* is not known: use the name of a JSONL file"):
        camchoice.load(path)


def test_without_any_file(local, monkeypatch):
    assert set(camchoice.load()["test"]["published_data"]) == {0}  # auto: the sample
    monkeypatch.setenv("SEMSOFT_DATA", "local")
    with pytest.raises(DataUnavailable) as error:
        camchoice.load()
    message = str(error.value)
    assert "\n" not in message
    for part in ("camchoice", "SEMSOFT_DATA_DIR", '--metadata \'{"path"', "SEMSOFT_DATA=embedded"):
        assert part in message


def test_the_sample(embedded, load_task, prompts):
    task = load_task("camchoice")
    assert len(task.eval_docs) == 14
    assert set(task.eval_docs["dropped_documents"]) == {1}
    prompt, continuations = prompts(task)[0]
    assert "spring.' Why had Marta decided against tomatoes?\nA. She had lost" in prompt
    assert continuations == [" A", " B", " C", " D"]


# --- the published data --------------------------------------------------------------------------


@needs_shared
def test_the_open_stand_in(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    raw = {}
    for name in ("naep_economics.jsonl", "naep_history.jsonl"):
        for line in (SHARED / name).open(encoding="utf-8"):
            row = json.loads(line)
            same = (row["stem"].strip(), tuple(o.strip() for o in row["options"]))
            if same not in raw or row["grade"] > raw[same]["grade"]:
                raw[same] = row
    test = camchoice.load()["test"]
    assert len(test) == len(raw) == 350 - test["dropped_documents"][0]
    for doc in test:
        shares = raw[doc["question"], tuple(doc["options"])]["response_distribution"]
        assert doc["human_entropy"] == pytest.approx(entropy(shares, base=4), abs=1e-9)
        assert sum(doc["human_shares"]) == pytest.approx(1, abs=1e-9)


@needs_shared
def test_entropies_of_the_study_are_ours_for_four_options(tmp_path):
    """Its items may not be passed on; shares that have its entropies lie on one line.

    For each published value, bisection finds shares (p, (1-p)/3 three times) of that entropy.
    """
    table = pyarrow.parquet.read_table(SHARED / "human_entropy_only.parquet")
    wanted = table["human-ent"].to_pylist()[::25]
    rows = []
    for i, value in enumerate(wanted):
        low, high = 0.25, 1.0  # the entropy falls from 1 to 0
        for _ in range(60):
            p = (low + high) / 2
            more = entropy([p, *[(1 - p) / 3] * 3], base=4) > value
            low, high = (p, high) if more else (low, p)
        rows.append(asked([100 * p, *[100 * (1 - p) / 3] * 3], text=str(i)))
    path = write(tmp_path / "x.jsonl", passage(*rows))
    assert camchoice.load(path)["test"]["human_entropy"][:] == pytest.approx(wanted, abs=1e-9)
