"""HotpotQA, TriviaQA, NQ-Open, MS MARCO: rows, sources, random questions, prompts."""

import difflib
import json
import logging
import re
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lm_eval_semsoft.tasks import data, hotpotqa, ms_marco, nq_open, questions, triviaqa
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable
from lm_eval_semsoft.tasks.prompts import FixedExamples

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODULES = {"hotpotqa": hotpotqa, "triviaqa": triviaqa, "nq_open": nq_open, "ms_marco": ms_marco}
SAMPLES = {
    "hotpotqa": ("validation_sample", 1000),
    "triviaqa": ("validation_sample", 500),
    "nq_open": ("validation_sample", 1000),
    "ms_marco": ("v1.1_sample", 200),
}
every_set = pytest.mark.parametrize("name", MODULES)
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the published data is not here")

PASSAGES = {"is_selected": [0, 1, 1], "passage_text": ["A.", " B\n b. ", "C."], "url": [""] * 3}
FACTS = {"title": ["Two", "One", "Two"], "sent_id": [0, 1, 1]}
CONTEXT = {"title": ["One", "Zero", "Two"], "sentences": [["O.", " P."], ["Z."], ["T.", "", " U."]]}
# Rows as the hub has them.
HUB = {
    "hotpotqa": {
        "id": "5a", "question": "Q?", "answer": "yes", "type": "comparison", "level": "hard",
        "supporting_facts": FACTS, "context": CONTEXT,
    },
    "triviaqa": {
        "question": "Q?", "question_id": "tc_1", "question_source": "x",
        "answer": {
            "aliases": ["yes", "Yeah", "yes ", "", " "], "normalized_aliases": ["yes", "yeah"],
            "matched_wiki_entity_name": "", "normalized_value": "yes", "type": "FreeForm",
            "value": "Yes",
        },
    },
    "nq_open": {"question": "q", "answer": ["yes"]},
    "ms_marco": {
        "answers": ["yes"], "passages": PASSAGES, "query": "q", "query_id": 7,
        "query_type": "NUMERIC", "wellFormedAnswers": ["It is yes.", "yes"],
    },
}  # fmt: skip
# What becomes of them: id, question, answers, gold context.
READ = {
    "hotpotqa": ("5a", "Q?", ["yes"], "One: O. P.\nTwo: T. U."),
    "triviaqa": ("tc_1", "Q?", ["Yes", "yes", "Yeah"], ""),
    "nq_open": ("nq0000", "q?", ["yes"], ""),
    "ms_marco": ("7", "q?", ["yes", "It is yes."], "B b.\nC."),
}
HUB_FILES = {
    "hotpotqa": ("hotpotqa/hotpot_qa", "distractor/validation-00000-of-00001.parquet"),
    "triviaqa": ("mandarjoshi/trivia_qa", "rc.nocontext/validation-00000-of-00001.parquet"),
    "nq_open": ("google-research-datasets/nq_open", "nq_open/validation-00000-of-00001.parquet"),
    "ms_marco": ("microsoft/ms_marco", "v2.1/validation-00000-of-00001.parquet"),
}


def asking(name, question, answer="yes", /, **more):
    """A row of the local layout."""
    row = {
        "hotpotqa": {"question": question, "answer": answer, "type": "bridge"},
        "triviaqa": {"id": f"t{question}", "question": question, "golden_answers": [answer]},
        "nq_open": {"question": question, "answer": [answer]},
        "ms_marco": {"query_id": 1, "query": question, "answers": [answer], "passages": PASSAGES},
    }[name]
    return {**row, **more}


def write(folder, name, *rows):
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "validation.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def documents(name, **options):
    return MODULES[name].load(**options)["test"]


# --- layouts and sources -------------------------------------------------------------------------


@every_set
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_local_copy_in_the_hubs_layout(local, name, kind):
    if kind == "jsonl":
        write(local, name, HUB[name])
    else:
        write_parquet(local / name / "validation.parquet", HUB[name])
    key, question, answers, gold = READ[name]
    expected = {"id": key, "question": question, "answers": answers, "published_data": 1}
    assert documents(name).to_list() == [{**expected, "context": ""}]
    assert documents(name).features == questions.FEATURES
    if gold:
        assert documents(name, context="gold").to_list() == [{**expected, "context": gold}]


@every_set
def test_the_hubs_file(local, name, monkeypatch, tmp_path):
    """The published parquet, pinned by commit."""
    repo, file = HUB_FILES[name]
    write_parquet(tmp_path / file, HUB[name])
    asked = []

    def download(repo_id, filename, *, repo_type, revision, local_files_only):
        asked.append((repo_id, filename))
        assert repo_type == "dataset"
        assert re.fullmatch("[0-9a-f]{40}", revision)
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setenv("SEMSOFT_DATA", "hub")
    (doc,) = documents(name)
    assert (doc["id"], doc["question"], doc["answers"]) == READ[name][:3]
    assert asked == [(repo, file)]
    if READ[name][3]:
        assert documents(name, context="gold")["context"][:] == [READ[name][3]]


def test_the_other_ms_marco(local, monkeypatch, tmp_path, caplog):
    path = "v1.1/validation-00000-of-00001.parquet"
    write_parquet(tmp_path / path, {**HUB["ms_marco"], "wellFormedAnswers": []})
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _, name, **__: tmp_path / name)
    monkeypatch.setenv("SEMSOFT_DATA", "hub")
    assert documents("ms_marco", data_version="v1.1")["answers"][:] == [["yes"]]
    assert "the published split has 10047" in caplog.text


def test_the_samples_layouts(local):
    """Columns of the hub that a local copy may lack."""
    for name in MODULES:
        write(local, name, asking(name, "what"), asking(name, "who"))
    ids = {name: sorted(documents(name)["id"]) for name in MODULES}
    assert ids == {
        "hotpotqa": ["hotpotqa0000", "hotpotqa0001"],
        "triviaqa": ["twhat", "twho"],
        "nq_open": ["nq0000", "nq0001"],
        "ms_marco": ["1", "1-2"],  # ids are made distinct
    }


@every_set
def test_nothing_at_hand(local, name, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "local")
    with pytest.raises(DataUnavailable, match=rf"{name}/validation.jsonl or validation.parquet"):
        documents(name)


# --- which rows, and what of them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("who was it", "who was it?"),
        ("Who was it?", "Who was it?"),
        ("  Who\n was  it ? ", "Who was it ?"),
        ("where does it cross \u200b", "where does it cross?"),
        ("Who was it? ,", "Who was it?"),
        ("Name him.", "Name him?"),
        ("it is known as a(n)", "it is known as a(n)?"),
        ("what is the meaning of e.g.", "what is the meaning of e.g.?"),
        ('Who sings "Lola?"', 'Who sings "Lola?"?'),
    ],
)
def test_questions_end_with_a_question_mark(local, given, asked):
    write(local, "nq_open", asking("nq_open", given))
    assert documents("nq_open")["question"][:] == [asked]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ('"Who sang ""Lola""?"', 'Who sang "Lola"?'),
        ('"""Lola"" is whose song?"', '"Lola" is whose song?'),
        ('"Name the singer of ""Lola"""', 'Name the singer of "Lola"?'),
        ('"Lola" is whose song? "Mine"', '"Lola" is whose song? "Mine"?'),
        ('"Whose song is it?"', '"Whose song is it?"?'),
        ('"', ""),
    ],
)
def test_quotes_of_a_csv_file(local, given, asked):
    write(local, "triviaqa", asking("triviaqa", given), asking("triviaqa", "x"))
    assert [q for q in documents("triviaqa")["question"] if q != "x?"] == [asked][: bool(asked)]


@pytest.mark.parametrize(
    ("name", "answers", "expected"),
    [
        ("triviaqa", ["Bell", "bell", " Bell ", "", "\t", "A  bell"], ["Bell", "bell", "A bell"]),
        ("nq_open", ["14", "14 ", "fourteen"], ["14", "fourteen"]),
        ("nq_open", [], []),
        ("nq_open", [" "], []),
        ("ms_marco", ["No Answer Present."], []),
        ("ms_marco", ["no answer present "], []),
        ("ms_marco", ["No Answer Present.", "ten"], ["ten"]),
        ("ms_marco", [], []),
        ("ms_marco", [""], []),
    ],
)  # fmt: skip
def test_gold_answers(local, name, answers, expected, caplog):
    column = {"triviaqa": "golden_answers", "nq_open": "answer", "ms_marco": "answers"}[name]
    write(local, name, asking(name, "who", **{column: answers}))
    with caplog.at_level(logging.INFO):
        assert documents(name)["answers"][:] == [expected]
    assert f"{int(not expected)} of them without a gold answer" in caplog.text


@pytest.mark.parametrize(
    ("well_formed", "expected"),
    [([], ["ten"]), ("[]", ["ten"]), (None, ["ten"]), (["It is ten."], ["ten", "It is ten."])],
)
def test_well_formed_answers(local, well_formed, expected):
    write(local, "ms_marco", asking("ms_marco", "who", "ten", wellFormedAnswers=well_formed))
    assert documents("ms_marco")["answers"][:] == [expected]


def test_an_empty_answer_of_hotpotqa_is_none(local):
    write(local, "hotpotqa", asking("hotpotqa", "who", " "))
    assert documents("hotpotqa")["answers"][:] == [[]]


@every_set
def test_what_is_left_out(local, name, caplog):
    rows = [asking(name, q) for q in ("who", "", "Who", " . ", "who?", "what", "who ")]
    write(local, name, *rows)
    with caplog.at_level(logging.INFO):
        assert sorted(documents(name)["question"]) == ["what?", "who?"]
    assert "left out: 2 without a question, 3 whose question has come before" in caplog.text
    write(local, name, asking(name, " "))
    with pytest.raises(ValueError, match=rf"{name}: none of the rows of .* has a question"):
        documents(name)


def test_web_and_wikipedia_rows_are_one_question(local, caplog):
    other = {**HUB["triviaqa"], "question": "Who?", "question_id": "tc_2"}
    write(local, "triviaqa", HUB["triviaqa"], other, HUB["triviaqa"])
    with caplog.at_level(logging.INFO):
        assert sorted(documents("triviaqa")["id"]) == ["tc_1", "tc_2"]
    assert "2 of 2 questions" in caplog.text
    assert "1 whose question has come before" in caplog.text


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("hotpotqa", {"question": None}, "question to be a text"),
        ("hotpotqa", {"answer": None}, "answer to be a text"),
        ("hotpotqa", {"answer": ["yes"]}, "answer to be a text"),
        ("hotpotqa", {"context": [], "supporting_facts": FACTS}, "context to have a list title"),
        ("hotpotqa", {"context": CONTEXT, "supporting_facts": {}},
         "supporting_facts to have a list title"),
        ("hotpotqa", {"context": {**CONTEXT, "title": ["One"]}, "supporting_facts": FACTS},
         "context to have sentences for each title"),
        ("hotpotqa", {"context": {"title": ["One"], "sentences": ["O."]},
                      "supporting_facts": FACTS}, "sentences to be a list of texts"),
        ("triviaqa", {"golden_answers": "yes"}, "golden_answers to be a list of texts"),
        ("triviaqa", {"golden_answers": [1]}, "golden_answers to be a text"),
        ("triviaqa", {"question": "\ud83d"}, "question to be a text"),
        ("nq_open", {"answer": "yes"}, "answer to be a list of texts"),
        ("nq_open", {"answer": [None]}, "answer to be a text"),
        ("nq_open", {"question": 3}, "question to be a text"),
        ("ms_marco", {"query": None}, "query to be a text"),
        ("ms_marco", {"answers": None}, "answers to be a list of texts"),
        ("ms_marco", {"wellFormedAnswers": "ten"}, "wellFormedAnswers to be a list of texts"),
        ("ms_marco", {"passages": []}, "passages with is_selected and passage_text"),
        ("ms_marco", {"passages": {**PASSAGES, "is_selected": [1]}}, "a mark per passage"),
    ],
)  # fmt: skip
def test_broken_rows(local, name, changes, message):
    write(local, name, asking(name, "who"), asking(name, "what", **changes))
    with pytest.raises(BrokenData, match=rf"validation\.jsonl, line 2: .*{re.escape(message)}"):
        documents(name)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("hotpotqa", {"question": "Who?"}, "a row with question, answer"),
        ("nq_open", {"answer": []}, "a row with question, answer"),
        ("ms_marco", {"query": "who"}, "a row with query, answers"),
        ("triviaqa", {"golden_answers": []}, "a row with question"),
        ("triviaqa", {"question": "Who?"}, "golden_answers, or an answer with value and aliases"),
        ("triviaqa", {"question": "Who?", "answer": "He"}, "golden_answers, or an answer"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_missing_columns(local, name, row, message, kind):
    if kind == "jsonl":
        write(local, name, row)
    else:
        write_parquet(local / name / "validation.parquet", row)
    with pytest.raises(BrokenData, match=f"line 1: expected {re.escape(message)}"):
        documents(name)


@every_set
def test_a_file_that_is_no_parquet(local, name):
    (local / name).mkdir()
    (local / name / "validation.parquet").write_bytes(b"not at all")
    with pytest.raises(BrokenData, match=r"validation\.parquet: expected parquet with"):
        documents(name)


# --- random questions ----------------------------------------------------------------------------


@every_set
def test_random_questions(local, name):
    """Those that numpy draws, in that order; a smaller run is the beginning of a larger one."""
    asked = [f"q{i}?" for i in range(30)]
    write(local, name, *(asking(name, q) for q in ["", *asked, "q3"]))
    order = np.random.default_rng(1234).permutation(30)
    assert documents(name)["question"][:] == [asked[i] for i in order]
    assert documents(name, n_questions=7)["question"][:] == [asked[i] for i in order[:7]]
    assert documents(name, n_questions=None)["question"][:] == [asked[i] for i in order]
    other = documents(name, n_questions=7, question_seed=5)["question"][:]
    assert other == [asked[i] for i in np.random.default_rng(5).permutation(30)[:7]]


# --- options -------------------------------------------------------------------------------------


@every_set
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_questions": 0}, "n_questions=0 is not known: use a whole number from 1, or null"),
        ({"n_questions": 10.0}, "n_questions=10.0 is not known"),
        ({"n_questions": True}, "n_questions=True is not known"),
        ({"n_questions": "all"}, "n_questions='all' is not known"),
        ({"question_seed": -1}, "question_seed=-1 is not known"),
        ({"question_seed": None}, "question_seed=None is not known"),
        ({"context": "golden"}, "context='golden' is not known: use one of none, gold (did you"),
    ],
)
def test_bad_options(embedded, name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        documents(name, **options)


@pytest.mark.parametrize("name", ["triviaqa", "nq_open"])
def test_no_context_where_there_is_none(embedded, name):
    with pytest.raises(ValueError, match=f"context='gold' is not possible with {name}"):
        documents(name, context="gold")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_version": "2.1"}, r"data_version='2.1' is not known: use one of v2.1, v1.1"),
        ({"version": "v1.1"}, "version='v1.1' would name the task's version.*use data_version"),
    ],
)
def test_ms_marcos_versions(embedded, options, message):
    with pytest.raises(ValueError, match=message):
        documents("ms_marco", **options)


@every_set
def test_misspelt_options_are_told(embedded, name, caplog):
    documents(name, n_question=5, version=1.0)
    assert "the option 'n_question' is ignored; is 'n_questions' meant?" in caplog.text
    caplog.clear()
    others = ("n_samples", "judge", "cluster", "confidence", "format", "version", "pretrained")
    documents(name, **dict.fromkeys(others, 1))
    assert "is ignored" not in caplog.text


def test_paragraphs_that_a_file_lacks(local):
    write(local, "hotpotqa", HUB["hotpotqa"], asking("hotpotqa", "who"))
    row = asking("ms_marco", "who")
    write(local, "ms_marco", {k: v for k, v in row.items() if k != "passages"})
    for name in ("hotpotqa", "ms_marco"):
        assert set(documents(name)["context"]) == {""}
        with pytest.raises(DataUnavailable, match=rf"context='gold' .*{name}/.*jsonl has none"):
            documents(name, context="gold")


def test_questions_without_a_gold_paragraph(local, caplog):
    bare = {**PASSAGES, "is_selected": [0, 0, 0]}
    write(local, "ms_marco", asking("ms_marco", "a"), asking("ms_marco", "b", passages=bare))
    caplog.set_level(logging.INFO)
    assert sorted(documents("ms_marco", context="gold")["context"]) == ["", "B b.\nC."]
    assert "1 questions have no gold paragraph" in caplog.text
    caplog.clear()
    foreign = {"title": ["Elsewhere"], "sent_id": [0]}
    write(local, "hotpotqa", {**HUB["hotpotqa"], "supporting_facts": foreign})
    assert documents("hotpotqa", context="gold")["context"][:] == [""]
    assert "1 questions have no gold paragraph" in caplog.text


# --- prompts -------------------------------------------------------------------------------------


def test_prompts():
    doc = {"question": "Who?", "answers": ["He", "Him"], "context": ""}
    assert questions.doc_to_text(doc) == "Question: Who?\nAnswer:"
    told = questions.doc_to_text({**doc, "context": "He did.\nI saw him."})
    assert told == "Context: He did.\nI saw him.\nQuestion: Who?\nAnswer:"
    assert questions.doc_to_target(doc) == "He"
    assert questions.doc_to_target({**doc, "answers": []}) == ""


def test_examples():
    closed, opened = questions.examples(), questions.examples("gold")
    assert [doc["answers"] for doc in closed] == [doc["answers"] for doc in opened]
    assert {doc["context"] for doc in closed} == {""}
    assert all(doc["context"] for doc in opened)
    targets = [questions.doc_to_target(doc) for doc in FixedExamples(closed).sample(4)]
    assert targets[1].isdigit()
    assert targets[2] in ("yes", "no")
    assert all("\n" not in questions.doc_to_target(doc) for doc in closed)
    with pytest.raises(ValueError, match="context='golden' is not known"):
        questions.examples("golden")


# --- samples -------------------------------------------------------------------------------------


def plain(text):
    return " ".join(re.findall(r"\w+", text.casefold()))


@every_set
def test_embedded_sample(embedded, name):
    docs = documents(name).to_list()
    assert len(docs) == len({doc["id"] for doc in docs}) == 24
    assert {doc["published_data"] for doc in docs} == {0}
    assert all(doc["question"].endswith("?") for doc in docs)
    assert sum(not doc["answers"] for doc in docs) == (3 if name == "ms_marco" else 0)
    assert not {plain(d["question"]) for d in docs} & {plain(q) for q, *_ in questions.EXAMPLES}
    if name == "hotpotqa":
        assert sum(doc["answers"] in (["yes"], ["no"]) for doc in docs) == 5
    if name == "triviaqa":
        assert min(len(doc["answers"]) for doc in docs) >= 2


def test_embedded_paragraphs_hold_the_answers(embedded):
    docs = documents("hotpotqa", context="gold").to_list()
    for doc in docs:
        (answer,) = doc["answers"]
        assert doc["context"].count("\n") == 1
        assert answer in ("yes", "no") or answer in doc["context"]
    docs = documents("ms_marco", context="gold").to_list()
    assert sum(not doc["context"] for doc in docs) == 4  # one of them with an answer
    assert all("\n" not in doc["context"] for doc in docs)


@needs_shared
@every_set
def test_published_questions(local, monkeypatch, name):
    file, n = SAMPLES[name]
    (local / name).mkdir()
    (local / name / "validation.jsonl").symlink_to(SHARED / name / f"{file}.jsonl")
    docs = documents(name, n_questions=None).to_list()
    assert len(docs) == len({doc["id"] for doc in docs}) == n
    assert sum(not doc["answers"] for doc in docs) == (7 if name == "ms_marco" else 0)
    for doc in docs:
        assert doc["question"].endswith("?")
        assert doc["question"] == " ".join(doc["question"].split())
        assert len(set(doc["answers"])) == len(doc["answers"])
        assert '""' not in doc["question"]
    published = {plain(doc["question"]) for doc in docs}
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    ours = [d["question"] for d in documents(name)] + [q for q, *_ in questions.EXAMPLES]
    for question in map(plain, ours):
        assert not difflib.get_close_matches(question, published, n=1, cutoff=0.85)
    if name == "ms_marco":
        monkeypatch.setenv("SEMSOFT_DATA", "local")
        assert sum(not doc["context"] for doc in documents(name, context="gold")) == 11


def test_columns_that_are_not_needed_are_not_read(local, monkeypatch):
    """The passages of MS MARCO are nine tenths of its file."""
    write_parquet(local / "ms_marco" / "validation.parquet", HUB["ms_marco"])
    asked = []
    read = pyarrow.parquet.ParquetFile.iter_batches

    def iter_batches(self, *args, columns, **kwargs):
        asked.append(columns)
        return read(self, *args, columns=columns, **kwargs)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", iter_batches)
    documents("ms_marco")
    documents("ms_marco", context="gold")
    assert [any("passages" in name for name in columns) for columns in asked] == [False, True]


def test_every_set_names_its_files():
    for spec in (
        *(hotpotqa.spec("none"), triviaqa.SPEC, nq_open.SPEC),
        *(ms_marco.spec(version, "none") for version in ms_marco.VERSIONS),
    ):
        assert spec.local_names("validation") == ["validation.jsonl", "validation.parquet"]
        assert (data.EMBEDDED_DIR / spec.name / "validation.jsonl").is_file()


def test_a_line_break_ends_no_answer_of_a_chat_model():
    assert questions.chat_stops(["\n"]) == questions.chat_stops("\n") == []
    assert questions.chat_stops("END") == ["END"]
    assert questions.chat_stops(["\n", "END"]) == ["\n", "END"]
