"""`coane_mc`: rules for broken rows, entropies, prompts, and the task in the harness."""

import csv
import json
import math
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from scipy.stats import entropy

from lm_eval_semsoft.tasks import coane, people
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "coane"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the published data is not here")


def row(**changes):
    return {
        "Question": "Who wrote it?",
        "Answers": ["Ann", "Bob", "Cy", "Di"],
        "Answer_Ratios": [0.1, 0.2, 0.3, 0.4],
        "Correct_Answer": "D",
        "Correct_Answer_Text": "Di",
        "MC_Human_Prop_Correct": 0.4,
        "MC_Human_RT_Correct": 5000.0,
        "MC_Human_RT_Wrong": 6000.0,
        "MC_Human_RT_Combined": 5600.0,
        "FR_Human_Prop_Correct": 0.2,
        "FR_Human_Prop_Wrong": 0.3,
        "FR_Human_Prop_DK": 0.4,
        "FR_Human_Prop_DR": 0.1,
        "FR_Human_RT_Correct": 9000.0,
        "FR_Human_RT_Wrong": 12000.0,
        "FR_Human_RT_ANS": 10800.0,
        **changes,
    }


def write(folder, *rows):
    (folder / "coane").mkdir()
    path = folder / "coane" / "coane.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


# --- which rows, and what of them ----------------------------------------------------------------


def test_columns(local):
    write(local, row())
    (mc,) = coane.load_mc()["test"]
    assert mc["id"] == "coane000"
    assert (mc["options"], mc["label"], mc["labels"]) == (["Ann", "Bob", "Cy", "Di"], 3, [3])
    assert mc["human_shares"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert mc["human_entropy"] == pytest.approx(entropy([1, 2, 3, 4], base=4), abs=1e-12)
    assert mc["human_accuracy"] == 0.4
    assert [mc[name] for name in people.TIMES] == [5000, 6000, 5600]
    assert (mc["answers"], mc["source"], mc["published_data"]) == ([], "local", 1)
    (oe,) = coane.load_oe()["test"]
    assert (oe["id"], oe["options"], oe["labels"], oe["label"]) == ("coane000", [], [], -1)
    assert oe["human_shares"] == pytest.approx([0.2, 0.3, 0.4, 0.1])
    assert oe["human_entropy"] == pytest.approx(entropy([2, 3, 4, 1], base=4), abs=1e-12)
    assert (oe["human_accuracy"], oe["answers"]) == (0.2, ["Di"])
    assert [oe[name] for name in people.TIMES] == [9000, 12000, 10800]


def test_shares_are_renormalised(local):
    fr = {"FR_Human_Prop_Correct": 0.35, "FR_Human_Prop_Wrong": 0.59}
    fr |= {"FR_Human_Prop_DK": 0.13, "FR_Human_Prop_DR": 0.15}  # as printed: they sum to 1.22
    write(local, row(Answer_Ratios=[0.327, 0.327, 0.041, 0.31], **fr))
    (mc,) = coane.load_mc()["test"]
    assert sum(mc["human_shares"]) == pytest.approx(1, abs=1e-12)
    (oe,) = coane.load_oe()["test"]
    assert oe["human_accuracy"] == pytest.approx(0.35 / 1.22)
    assert sum(oe["human_shares"]) == pytest.approx(1, abs=1e-12)


def test_a_wrong_option_that_reads_like_the_right_one(local):
    twin = row(Answers=["Di ", "Bob", "Cy", "Di"])
    write(local, twin, row())
    test = coane.load_mc()["test"]
    assert test["id"][:] == ["coane001"]
    assert test["dropped_documents"][:] == [1]
    kept = coane.load_mc(duplicates="keep")["test"]
    assert kept["labels"][:] == [[3, 0], [3]]
    assert kept["dropped_documents"][:] == [0, 0]
    assert len(coane.load_oe()["test"]) == 2  # there are no options


def test_two_wrong_options_alike_stay(local):
    write(local, row(Answers=["Ann", "Ann", "Cy", "Di"]))
    assert coane.load_mc()["test"]["labels"][:] == [[3]]


def test_times_that_nobody_has(local):
    nobody_wrong = {"MC_Human_Prop_Correct": 1.0, "Answer_Ratios": [0, 0, 0, 1]}
    unknown = {"MC_Human_RT_Wrong": None, "MC_Human_RT_Combined": None}
    write(local, row(**unknown, **nobody_wrong), row(**unknown))
    test = coane.load_mc()["test"]
    assert test["response_time"][0] == 5000  # everybody was right
    assert math.isnan(test["response_time"][1])
    assert all(math.isnan(ms) for ms in test["response_time_wrong"])


def test_times_can_be_trimmed_and_logged(local):
    write(local, row(MC_Human_RT_Correct=201), row(MC_Human_RT_Correct=45500))
    assert coane.load_mc()["test"]["response_time_correct"][:] == [201, 45500]
    test = coane.load_mc(trim_times=[1000, 40000], log_times=True)["test"]
    assert all(math.isnan(ms) for ms in test["response_time_correct"])
    assert test["response_time"][:] == pytest.approx([math.log(5600)] * 2)
    assert test["dropped_times"][:] == [2, 2]
    assert test["dropped_documents"][:] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Answers": ["Ann", "Bob", "Cy"]}, "Answers to be 4 texts"),
        ({"Answers": ["Ann", "Bob", "Cy", " "]}, "Answers to be 4 texts"),
        ({"Correct_Answer": "E"}, "Correct_Answer to be A, B, C or D"),
        ({"Answer_Ratios": [0.5, 0.5]}, "a share per answer"),
        ({"Answer_Ratios": [0, 0, 0, 0]}, "a share per answer"),
        ({"Answer_Ratios": [0.5, 0.5, 0.5, "x"]}, "a share per answer"),
        ({"MC_Human_RT_Correct": "fast"}, "MC_Human_RT_Correct to be a number"),
        ({"MC_Human_RT_Correct": -1}, "MC_Human_RT_Correct to be a number"),
        ({"MC_Human_RT_Correct": math.inf}, "MC_Human_RT_Correct to be a number"),
        ({"MC_Human_Prop_Correct": 1.7}, "MC_Human_Prop_Correct to be a share"),
        ({"FR_Human_Prop_DK": None}, "free-response shares"),
        ({"Question": ""}, "Question to be a text"),
    ],
)
def test_broken_rows(local, changes, message):
    write(local, row(), row(**changes))
    with pytest.raises(BrokenData, match=rf"coane\.jsonl, line 2: .*{re.escape(message)}"):
        coane.load_mc()


def test_a_missing_column(local):
    write(local, {k: v for k, v in row().items() if k != "FR_Human_RT_ANS"})
    with pytest.raises(BrokenData, match="a row with FR_Human_RT_ANS"):
        coane.load_mc()


def test_parquet_is_read_like_json(local):
    path = write(local, row(), row(MC_Human_RT_Wrong=None))
    expected = coane.load_mc()["test"].to_list()
    table = pyarrow.Table.from_pylist([row(), row(MC_Human_RT_Wrong=None)])
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    path.unlink()
    assert str(coane.load_mc()["test"].to_list()) == str(expected)
    path.with_suffix(".parquet").write_bytes(b"no parquet")
    with pytest.raises(BrokenData, match=r"coane\.parquet: expected parquet with Question"):
        coane.load_mc()


def test_without_data_the_message_says_where_to_get_it(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "local")
    with pytest.raises(DataUnavailable) as error:
        coane.load_mc()
    assert "a61e6899535516c5356b4f2b9592f88c5112fd25/Data/Coane/coane_data.parquet" in str(
        error.value
    )
    assert "coane/coane.parquet or coane.jsonl" in str(error.value)


def test_unknown_options(embedded):
    with pytest.raises(ValueError, match=r"duplicates='dorp' is not known.*did you mean 'drop'"):
        coane.load_mc(duplicates="dorp")


def test_the_sample(embedded):
    test = coane.load_mc()["test"]
    assert len(test) == 24
    assert set(test["published_data"]) == {0}
    assert coane.load_oe()["test"]["question"][:] == test["question"][:]
    for doc in test:
        assert sum(doc["human_shares"]) == pytest.approx(1)


# --- the published data --------------------------------------------------------------------------


@needs_shared
def test_human_entropy_of_the_published_table(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    table = pyarrow.parquet.read_table(SHARED / "coane.parquet").to_pydict()
    test = coane.load_mc(duplicates="keep")["test"]
    assert len(test) == 421
    assert test["human_entropy"][:] == pytest.approx(table["human-ent"], abs=1e-9)
    assert test["human_accuracy"][:] == table["MC_Human_Prop_Correct"]
    assert test["response_time"][17] == 7917  # the published mean is missing: nobody was wrong
    assert not any(math.isnan(ms) for ms in test["response_time"])
    dropped = coane.load_mc()["test"]
    assert set(range(421)) - {int(key[5:]) for key in dropped["id"]} == {226}
    assert set(dropped["dropped_documents"]) == {1}


@needs_shared
def test_human_entropy_from_the_raw_tables(local, monkeypatch):
    """A2: the share of the right answer, and three foils with a percentage each."""
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    with (SHARED / "table_A2.csv").open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    foils = [name for name in rows[0] if "Foil" in name and "Difference" not in name]
    assert len(foils) == 3
    ours = coane.load_mc(duplicates="keep")["test"]
    by_question = dict(zip(ours["question"], ours["human_entropy"], strict=True))
    for raw in rows:
        percent = [re.search(r"\(\s*([\d.]+)\s*%\s*\)\s*$", raw[name]) for name in foils]
        shares = [float(raw["Correct"]), *(float(match[1]) / 100 for match in percent)]
        expected = entropy(shares) / math.log(4)
        assert by_question[raw["Question"].strip()] == pytest.approx(expected, abs=1e-9)


@needs_shared
def test_free_response_shares_of_the_raw_table(local, monkeypatch):
    """A1: shares of right, wrong, do not know, do not remember; one row sums to 1.22.

    The published arrangement leaves the fifth kind (OE) out, and so do we.
    """
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(SHARED.parent))
    with (SHARED / "table_A1.csv").open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    ours = coane.load_oe()["test"]
    by_question = {doc["question"]: doc for doc in ours}
    sums = []
    for raw in rows:
        kinds = {
            kind: float(raw[f"CR (proportion of responses) – {kind}"])
            for kind in ("Correct", "DR", "DK", "CE")
        }
        shares = [kinds["Correct"], kinds["CE"], kinds["DK"], kinds["DR"]]
        doc = by_question[raw["General Knowledge Question"].strip()]
        assert doc["human_entropy"] == pytest.approx(entropy(shares) / math.log(4), abs=1e-9)
        assert doc["human_accuracy"] == pytest.approx(shares[0] / sum(shares), abs=1e-9)
        sums.append(sum(shares))
    assert max(sums) == pytest.approx(1.22)


# --- prompts -------------------------------------------------------------------------------------

EXAMPLES = (
    "Question: What is the chemical symbol for gold?\nA. Ag\nB. Mo\nC. Au\nD. Gd\nAnswer:",
    "Question: In what year did the First World War end?\n"
    "A. 1939\nB. 1918\nC. 1914\nD. 1945\nAnswer:",
)
OWN = "Question: Who wrote it?\nA. Ann\nB. Bob\nC. Cy\nD. Di\nAnswer:"


def test_base_prompt(local, load_task, prompts):
    write(local, row())
    ((prompt, continuations),) = prompts(load_task("coane_mc"))
    assert prompt == f"{EXAMPLES[0]} C\n\n{EXAMPLES[1]} B\n\n{OWN}"
    assert continuations == [" A", " B", " C", " D"]


def test_chat_prompt(local, load_task, prompts):
    write(local, row())
    task = load_task("coane_mc")
    ((prompt, continuations),) = prompts(task, chat=True)
    system, _, turns = prompt.partition("<user>")
    assert system.startswith("<system>")
    assert "letter" in system
    assert turns == (
        f"{EXAMPLES[0]}<assistant>C<user>{EXAMPLES[1]}<assistant>B<user>{OWN}<assistant>"
    )
    assert continuations == ["A", "B", "C", "D"]
    ((prompt, _),) = prompts(task, chat=True, multiturn=False)
    assert prompt.endswith(f"<user>{EXAMPLES[0]} C\n\n{EXAMPLES[1]} B\n\n{OWN}<assistant>")
    ((prompt, _),) = prompts(task, chat=True, system_instruction="Be brief.")
    assert prompt.startswith("<system>Be brief.<user>")
    ((prompt, _),) = prompts(task)  # and back: no instruction without a template
    assert prompt.startswith(EXAMPLES[0])


@pytest.mark.parametrize(("n", "start"), [(0, OWN), (1, EXAMPLES[0]), (2, EXAMPLES[0])])
def test_fewer_examples(local, load_task, prompts, n, start):
    write(local, row())
    ((prompt, _),) = prompts(load_task("coane_mc"), num_fewshot=n)
    assert prompt.startswith(start)
    assert prompt.count("Question:") == n + 1


def test_more_examples_than_there_are(local, load_task, prompts):
    write(local, row())
    with pytest.raises(ValueError, match="num_fewshot=3 is too large: this task has 2 fixed"):
        prompts(load_task("coane_mc"), num_fewshot=3)
