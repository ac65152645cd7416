"""`semsoft align`: planted relations are found, noise is not; what it refuses; the page."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from typer.testing import CliRunner

from lm_eval_semsoft.cli import app
from lm_eval_semsoft.cli.align import page
from lm_eval_semsoft.cli.output import as_text
from lm_eval_semsoft.core import alignment, calibration
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.records import Answer
from lm_eval_semsoft.engine.store import Store, StoredDocument, text_key
from lm_eval_semsoft.engine.trace import Trace
from lm_eval_semsoft.reports import align_figure
from lm_eval_semsoft.reports.align import Alignments, align, rows_of, signed
from lm_eval_semsoft.reports.align_subjects import (
    Subject,
    TimeRule,
    calibration_of,
    named,
    subjects_of,
)

RUNNER = CliRunner()
V, K = 130, 110


# ------------------------------------------------------------------ subjects


def subject(
    n: int = 200, seed: int = 0, noise: float = 1.0, name: str = "a", **fields: Any
) -> Subject:
    """Measures `near` and `far` follow people's entropy, `noise` does not; times have holes."""
    people, own = np.random.default_rng(seed), np.random.default_rng([seed, len(name), 7])
    human = people.random(n)
    times = 1000 + 4000 * human + 500 * people.normal(size=n)
    times[people.random(n) < 0.1] = np.nan
    near = np.exp(human + noise * 0.3 * own.normal(size=n))
    docs = [
        {"id": f"q{i}", "human_entropy": human[i], "response_time": times[i], "text": "?"}
        | {key: value[i] for key, value in fields.items()}
        for i in range(n)
    ]
    measures = {
        "near": near,
        "near_norm": near / 7,
        "far": human + noise * own.normal(size=n),
        "noise": own.random(n),
    } | {f"more{i}": human + noise * (i / 4 + 0.5) * own.normal(size=n) for i in range(8)}
    return Subject(
        f"ro/{name}", name, f"test/{name}", "mc", tuple(d["id"] for d in docs), tuple(docs),
        measures,
    )  # fmt: skip


def cells(found: Alignments, place: int = 0) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    record = found.record()["tables"][place]
    return {(c["measure"], c["target"]): c for c in record["cells"]}


def test_planted_relations_are_found_and_noise_is_not() -> None:
    own = subject()
    found = align([own], resamples=100)
    (table,) = found.tables
    assert table.targets == ("human_entropy", "response_time")
    got = cells(found)
    for target in table.targets:
        assert got["near", target]["p_holm"] < 0.001
        assert got["near", target]["low"] > 0.3
        assert got["noise", target]["p_holm"] > 0.05
        assert got["noise", target]["low"] < 0 < got["noise", target]["high"]
    for name, values in own.measures.items():
        human = own.numbers["human_entropy"]
        assert got[name, "human_entropy"]["r"] == pytest.approx(stats.spearmanr(values, human)[0])
    holes = int(np.isnan(own.numbers["response_time"]).sum())
    assert holes > 5
    cell = got["near", "response_time"]
    assert (cell["n"], cell["dropped"]) == (200 - holes, holes)
    assert "why" not in cell


def test_shuffled_people_are_not_found() -> None:
    clear = 0
    for seed in range(10):
        own = subject(seed=seed)
        rng = np.random.default_rng(seed)
        docs = [own.docs[i] for i in rng.permutation(200)]
        found = align([replace(own, docs=tuple(docs))], resamples=2)
        clear += bool((found.tables[0].p_holm < 0.05).any())
    assert clear <= 2  # .05 of the matrices, whatever is in them


def test_holm_counts_equal_ranks_once() -> None:
    found = align([subject()], resamples=2)
    (table,) = found.tables
    assert table.twins() == [("near_norm", "near")]
    distinct = table.matrix.p[table.distinct]
    np.testing.assert_allclose(table.p_holm[table.distinct], alignment.holm(distinct))
    assert distinct.size == 11 * 2
    np.testing.assert_array_equal(table.p_holm[0], table.p_holm[1])
    assert found.record()["tables"][0]["same_ranks"] == {"near_norm": "near"}


def test_what_has_no_value_has_a_reason_and_harms_no_other() -> None:
    own = subject(human_accuracy=[0.5] * 200, response_time_correct=[math.nan] * 200)
    own = replace(own, measures={**own.measures, "flat": np.ones(200)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = align([own], resamples=20)
    got = cells(found)
    assert got["near", "human_accuracy"]["why"] == "the target is constant"
    assert math.isnan(got["near", "human_accuracy"]["p_holm"])
    assert got["flat", "human_entropy"]["why"] == "the measure is constant"
    assert ("near", "response_time_correct") not in got  # nobody has such a time
    assert got["near", "human_entropy"]["r"] > 0.5
    assert "a, mc: no r of human_accuracy: the target is constant." in found.notes
    assert "a, mc: no r of flat: the measure is constant." in found.notes
    few = align([subject(n=9)], resamples=20)
    assert few.empty
    assert "it takes at least 10" in few.notes[0]


def test_targets_are_chosen_by_name() -> None:
    own = subject(age=np.arange(200.0), flag=[True] * 200)
    assert align([own], targets=["age"], resamples=2).tables[0].targets == ("age",)
    with pytest.raises(ValueError, match=r"field 'agee'. Did you mean age\? There are: age, hum"):
        align([own], targets=["agee"])
    with pytest.raises(ValueError, match="field 'flag'"):
        align([own], targets=["flag"])


def test_tasks_without_people_are_named_and_left_out() -> None:
    own = subject()
    bare = replace(own, docs=tuple({"id": d["id"]} for d in own.docs), task="mmlu")
    found = align([own, bare], resamples=2)
    assert len(found.tables) == 1
    assert found.notes == ("a: the documents of mmlu say nothing about people: left out.",)
    nothing = align([bare])
    assert nothing.empty
    assert as_text(page(nothing)) == f"! {found.notes[0]}\n"  # and no legend


# ------------------------------------------------------------------ times


def test_times_are_trimmed_and_counted() -> None:
    times = np.array([np.nan, 0.0, 100, 200, 300, 400, 99999])
    nan = np.nan
    for rule, kept in (
        (TimeRule(), [nan, 0, 100, 200, 300, 400, 99999]),
        (TimeRule(trim=(100, 400)), [nan, nan, 100, 200, 300, 400, nan]),
        (TimeRule(trim=(0.2, 0.8)), [nan, nan, 100, 200, 300, 400, nan]),
        (TimeRule(log=True), [nan, nan, *np.log([100, 200, 300, 400, 99999])]),
        (TimeRule(log=True, trim=(150, 350)), [nan, nan, nan, *np.log([200, 300]), nan, nan]),
    ):
        np.testing.assert_allclose(rule.apply(times), kept)
    own = subject()
    found = align([own], rule=TimeRule(trim=(0.1, 0.9)), resamples=2)
    (table,) = found.tables
    known = own.numbers["response_time"][~np.isnan(own.numbers["response_time"])]
    low, high = np.quantile(known, [0.1, 0.9])
    expected = int(((known < low) | (known > high)).sum())
    assert table.trimmed == (0, expected)
    assert table.matrix.dropped[0, 1] == 200 - len(known) + expected
    assert f"{expected} values of response_time were trimmed" in found.notes[0]
    assert found.record()["trim_times"] == (0.1, 0.9)


def test_logarithms_change_no_rank() -> None:
    plain, logs = (align([subject()], rule=TimeRule(log=x), resamples=20) for x in (False, True))
    np.testing.assert_allclose(plain.tables[0].matrix.r, logs.tables[0].matrix.r, atol=1e-12)


# ------------------------------------------------------------------ pairs


def test_a_pair_is_compared_on_shared_documents_by_key() -> None:
    base, instruct = subject(noise=3, name="base"), subject(noise=0.5, name="instruct")
    order = np.random.default_rng(0).permutation(200)[:150]
    there = replace(
        instruct,
        keys=tuple(instruct.keys[i] for i in order), docs=tuple(instruct.docs[i] for i in order),
        measures={name: x[order] for name, x in instruct.measures.items()},
    )  # fmt: skip
    found = align([base, there], [("base", "instruct")], resamples=200)
    (own,) = found.differences
    assert (own.n, own.targets) == (150, ("human_entropy", "response_time"))
    assert "near_norm" not in own.measures
    rows = sorted(order)
    human = base.numbers["human_entropy"][rows]
    i, j = own.measures.index("far"), 0
    r = [stats.spearmanr(s.measures["far"][rows], human)[0] for s in (instruct, base)]
    assert own.differences.difference[i, j] == pytest.approx(r[0] - r[1])
    assert own.differences.low[i, j] > 0
    noise = own.measures.index("noise")
    assert own.differences.low[noise, 0] < 0 < own.differences.high[noise, 0]
    r_all = [
        [stats.spearmanr(s.measures[m][rows], human)[0] for m in own.measures]
        for s in (instruct, base)
    ]
    test = own.signed_rank[0]
    assert test.p == pytest.approx(stats.wilcoxon(*r_all).pvalue)
    assert test.n == 11
    np.testing.assert_allclose(own.p_holm, alignment.holm([t.p for t in own.signed_rank]))
    # By path as well, and one that is not there.
    assert align([base, there], [("ro/base", "ro/instruct")], resamples=2).differences
    with pytest.raises(ValueError, match="no directory 'bse' to pair; there are base, instruct"):
        align([base, there], [("bse", "instruct")], resamples=2)


def test_a_pair_of_different_documents_is_refused() -> None:
    base, other = subject(name="base"), subject(seed=1, name="other")
    with pytest.raises(
        ValueError, match=r"Document 'q0' of mc has the human_entropy .* in base but"
    ):
        align([base, other], [("base", "other")], resamples=2)
    far = replace(base, name="far", keys=tuple(f"x{key}" for key in base.keys))
    with pytest.raises(ValueError, match="no document of mc in common"):
        align([base, far], [("base", "far")], resamples=2)
    task = replace(base, name="task", task="oe")
    with pytest.raises(ValueError, match="no task in common"):
        align([base, task], [("base", "task")], resamples=2)


def test_names_tell_directories_apart() -> None:
    own = subject()
    both = named([own, replace(own, directory="other/a"), replace(own, task="oe")])
    assert [s.name for s in both] == ["ro/a", "other/a", "ro/a"]
    assert [s.name for s in named([own, replace(own, task="oe")])] == ["a", "a"]


# ------------------------------------------------------------------ a directory


def write(folder: Path, n: int = 80, seed: int = 0, model: str = "test/model") -> Path:
    """Four options; the model knows what people know, more or less."""
    store = Store(folder, text_key(model).hex()[:16], K, {"model": model, "top_k": K})
    texts = [f" {letter}" for letter in "ABCD"] + [f" w{i}" for i in range(V - 4)]
    store.save_model(lambda: torch.zeros(V, 4), lambda: texts)
    people, own = np.random.default_rng(seed), np.random.default_rng([seed, len(model)])
    documents = []
    for i in range(n):
        easy = people.uniform(0, 3)
        shares = special.softmax(easy * np.eye(4)[0] + 0.3 * people.normal(size=4))
        logits = own.normal(size=V)
        logits[:4] += 3 + 1.5 * easy * np.eye(4)[0]
        row = special.log_softmax(logits)
        order = np.argsort(-row)[:K]
        key = text_key(f"{model} {i}")
        doc = {
            "id": f"q{i}", "question": f"{i}?", "options": list("wxyz"), "labels": [0],
            "human_shares": shares.tolist(), "human_entropy": stats.entropy(shares) / math.log(4),
            "response_time": 5000 - 1000 * easy if i % 7 else math.nan,
            "human_accuracy": shares[0],
        }  # fmt: skip
        store.add(
            key,
            Readout(
                topk_ids=order.astype(np.int32), topk_logprobs=row[order].astype(np.float32),
                label_logprobs=row[:4].astype(np.float32), label_greedy=np.zeros(4, dtype=bool),
                label_first=np.arange(4, dtype=np.int32),
                entropy=float(stats.entropy(np.exp(row))),
                nucleus_sizes=np.array([1, 2, 3, 4], dtype=np.int32),
                nucleus_entropies=np.array([0, 0.1, 0.2, own.random()], dtype=np.float32),
            ),
        )  # fmt: skip
        documents.append(
            StoredDocument(
                "quiz", i, key, json.dumps(doc), None, tuple("ABCD"), (key,), (0, 1, 2, 3)
            )
        )
    store.save_tasks({"quiz": {"why_identity": "option letters"}}, {})
    store.save_documents(documents)
    store.close()
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ro") / "base")


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ro") / "instruct", model="test/model-it")


def test_a_directory_is_read_with_its_people(base: Path) -> None:
    (own,) = subjects_of(base, resamples=50)
    assert (own.task, own.name, len(own.keys), len(own.measures)) == ("quiz", "base", 80, 31)
    assert set(own.numbers) == {"human_entropy", "response_time", "human_accuracy"}
    shares = np.array([doc["human_shares"] for doc in own.docs])
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == 0
    people = own.calibration
    assert people["human_ece"].value == pytest.approx(calibration.ece(confidence, right))
    sweep = calibration.ece_sweep(confidence, right).value
    assert people["human_ece_sweep"].value == pytest.approx(sweep)
    assert people["human_accuracy"].value == right.mean()
    assert 0 < people["ece"].stderr < 0.2
    found = align([own], resamples=100)
    got = cells(found)
    assert got["option_entropy", "human_entropy"]["low"] > 0.2
    assert got["option_entropy", "human_accuracy"]["high"] < -0.2
    assert got["nucleus50_entropy", "human_entropy"]["why"] == "the measure is constant"
    with pytest.raises(ValueError, match="holds the tasks quiz: 'quizz' is not among them"):
        subjects_of(base, "quizz")


def trace(entropies: list[float], ends: list[int]) -> Trace:
    """An answer whose tokens have these entropies."""
    t = len(ends)
    own = np.array(entropies, dtype=np.float32)
    return Trace(
        tokens=np.zeros(t, np.int32), logprobs=-own, top_logprobs=-own, entropy=own,
        topk_entropies=np.tile(own[:, None], (1, 5)), nucleus_sizes=np.ones((t, 4), np.int32),
        nucleus_entropies=np.zeros((t, 4), np.float32), ends=np.array(ends, np.int32),
        vocabulary=V,
    )  # fmt: skip


def spoken(folder: Path, n: int = 40) -> Path:
    """Two tokens an answer, of which the first is in brackets and doubts where people are slow."""
    store = Store(folder, "e" * 16, K, {"model": "test/model", "top_k": K})
    store.save_model(lambda: torch.zeros(V, 4), lambda: ["x"] * V)
    rng, documents = np.random.default_rng(0), []
    for i in range(n):
        key = text_key(str(i))
        doc = {"id": f"q{i}", "response_time": 1000.0 + i, "published_data": 0}
        own = trace([i / n, rng.random()], [1, 2]) if i else trace([], [])
        store.add_answer(key, Answer("a}" if i else "", own))
        documents.append(StoredDocument("oe", i, key, json.dumps(doc), None, (), (key,), ()))
    store.save_tasks({"oe": {"why_identity": None}}, {})
    store.save_documents(documents)
    store.close()
    return folder


def test_generated_answers_are_read(tmp_path: Path) -> None:
    (own,) = subjects_of(spoken(tmp_path / "spoken"))
    assert (own.task, own.name, own.calibration) == ("oe", "spoken", {})
    found = align([own], resamples=20)
    got = cells(found)
    for name in ("bfr_entropy", "first_entropy", "bfr_perplexity", "bfr_top5_entropy_norm"):
        cell = got[name, "response_time"]
        assert cell["r"] == 1
        assert (cell["n"], cell["dropped"]) == (39, 1)
    assert 0.3 < got["fr_entropy", "response_time"]["r"] < 1
    assert "small sample" in found.notes[0]
    done = run(tmp_path / "spoken", "--resamples", 5)
    assert done.exit_code == 0, done.output
    assert "ECE" not in done.output


def test_answers_are_read_where_the_readouts_of_labels_are_gone(tmp_path: Path) -> None:
    folder = spoken(tmp_path / "mixed")
    store, key = Store(folder, "e" * 16, K, {"model": "test/model", "top_k": K}), text_key("lost")
    doc = json.dumps({"id": "lost"})
    labelled = StoredDocument("mc", 0, key, doc, None, ("a", "b"), (key,), ())
    store.save_tasks({"mc": {"why_identity": None}}, {})
    store.save_documents([labelled])
    store.close()
    assert [own.task for own in subjects_of(folder)] == ["oe"]
    for part in folder.rglob("answers/*.parquet"):
        part.unlink()
    with pytest.raises(ValueError, match="holds no readouts of any task yet"):
        subjects_of(folder)


def test_calibration_needs_right_answers_and_people(base: Path) -> None:
    from lm_eval_semsoft.reports import readings

    own = readings.load(base)
    assert calibration_of(replace(own, target=None), 2, 0) == {}
    alone = replace(own, docs=tuple({**d, "human_shares": []} for d in own.docs))
    assert set(calibration_of(alone, 2, 0)) == {"accuracy", "ece", "ece_sweep"}


def run(*arguments: object) -> Any:
    return RUNNER.invoke(app, ["align", *map(str, arguments)], env={"COLUMNS": "150"})


def test_the_page(base: Path, instruct: Path, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    done = run(base, instruct, "--resamples", 30, "--png", picture)
    assert done.exit_code == 0, done.output
    for text in (
        "quiz", "people, as one classifier", "ECE-sweep", "option_entropy_variants", "human",
        "r of instruct − r of base, 80 shared documents", "Wilcoxon p", "Holm",
    ):  # fmt: skip
        assert text in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    narrow = RUNNER.invoke(app, ["align", str(base), "--resamples", "5"], env={"COLUMNS": "60"})
    assert max(map(len, narrow.stdout.splitlines())) <= 60


def test_json_and_markdown(base: Path, instruct: Path, tmp_path: Path) -> None:
    done = run(base, instruct, "--resamples", 5, "--json", "--task", "quiz")
    record = json.loads(done.stdout)
    assert [t["name"] for t in record["tables"]] == ["base", "instruct"]
    assert len(record["tables"][0]["cells"]) == 31 * 3
    cell = record["tables"][0]["cells"][0]
    assert set(cell) == {
        "measure", "target", "r", "low", "high", "p", "n", "dropped", "p_holm",
    }  # fmt: skip
    assert record["differences"][0]["wilcoxon"]["human_entropy"]["n"] >= 10
    assert run(base, instruct, "--resamples", 5, "--json").stdout == done.stdout
    assert run(base, "--resamples", 5, "-o", tmp_path / "x.md").exit_code == 0
    text = (tmp_path / "x.md").read_text()
    assert text.startswith("**quiz**")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:3]}) == 1
    assert not run(base, "--resamples", 5, "--json").stdout.count('differences": [\n    {')


def test_pairs_by_name(base: Path, instruct: Path, tmp_path: Path) -> None:
    third = write(tmp_path / "third", model="test/third")
    done = run(base, instruct, third, "--resamples", 5, "--json", "--pair", "third:instruct")
    pairs = [(d["base"], d["instruct"]) for d in json.loads(done.stdout)["differences"]]
    assert pairs == [("third", "instruct")]
    assert json.loads(run(base, instruct, third, "--resamples", 5, "--json").stdout)[
        "differences"
    ] == []  # fmt: skip


def test_nothing_found_is_exit_code_1(tmp_path: Path) -> None:
    few = write(tmp_path / "few", n=6)
    done = run(few, "--resamples", 5)
    assert done.exit_code == 1
    assert "6 pairs without NaN; it takes at least 10" in " ".join(done.output.split())
    assert run(few, "--resamples", 5, "--png", tmp_path / "x.png").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "base"], "--pair 'base': expected two names"),
        (["--pair", "x:y"], "There is no directory 'x'"),
        (["--trim-times", "5"], "--trim-times '5': expected two numbers"),
        (["--trim-times", "5,2"], "must be at least 0 and below"),
        (["--target", "human_entropie"], "in the field 'human_entropie'. Did you mean"),
        (["--json", "--markdown"], "exclude each other"),
        (["--task", "x"], "'x' is not among them"),
        (["--png", "/nowhere/at/all.png"], "--png /nowhere/at/all.png: there is no directory"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(
    base: Path, arguments: list[str], message: str
) -> None:
    done = run(base, "--resamples", 5, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_no_directory() -> None:
    done = run("/nowhere")
    assert done.exit_code == 2
    assert "/nowhere" in done.stderr


def test_help_has_examples() -> None:
    text = run("--help").output
    for word in ("--trim-times", "--pair", "semsoft align readouts/gemma", "Exit code 1"):
        assert word in text


# ------------------------------------------------------------------ the picture


def test_the_picture_shows_every_number() -> None:
    one, two = subject(), subject(name="bb", noise=2)
    other = replace(one, task="oe", measures={"fr_entropy": one.measures["far"]})
    found = align([one, two, other], resamples=2)
    figure = align_figure.heat_map(found)
    panels = align_figure.panels_of(found.tables)
    assert [p.columns for p in panels] == [4, 2]
    shown = [t.get_text().strip("()") for a in figure.axes for t in a.texts]
    for table in found.tables:
        for r in table.matrix.r[table.distinct].ravel():
            assert signed(r) in shown
    figure.canvas.draw()
    width = figure.get_figwidth() * figure.dpi
    for axes in figure.axes[:-1]:  # nothing is cut off
        for label in (*axes.get_yticklabels(), *axes.get_xticklabels(), *axes.texts):
            box = label.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= width
            assert box.y0 >= 0
            assert box.y1 <= figure.get_figheight() * figure.dpi


def test_rows_keep_their_order_when_models_have_other_twins() -> None:
    one = subject()
    other = replace(one, measures={**one.measures, "near_norm": one.measures["noise"] ** 2})
    tables = align([one, other], resamples=2).tables
    assert rows_of(tables[:1]) == tuple(n for n in one.measures if n != "near_norm")
    assert rows_of(tables) == tuple(one.measures)


def test_numbers_on_the_picture() -> None:
    assert [signed(x) for x in (0.324, -0.05, -0.001, 0.0, 1.0, np.nan)] == [
        "+.32", "−.05", ".00", ".00", "+1.00", "–",
    ]  # fmt: skip
