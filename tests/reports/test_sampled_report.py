"""Reports of runs with free-text answers: against loops and scikit-learn, and as pages are read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli.report import report as command
from lm_eval_semsoft.cli.shared import plain
from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.reports import (
    figures,
    readings,
    report_statistics,
    sampled_section,
    samples,
)
from lm_eval_semsoft.reports import report as pages

DATE = "2026-01-02T03-04-05.678901"
N = 10

Row = dict[str, Any]


# --------------------------------------------------------------------------------------------
# files as the harness writes them
# --------------------------------------------------------------------------------------------


def sampled_rows(n: int = 60, seed: int = 0, **doc: Any) -> list[list[Row]]:
    """Questions of more or less doubt, with N answers each: [n][filters] payload pairs."""
    rng = np.random.default_rng(seed)
    return [one_question(rng, i) for i in range(n)]


def one_question(rng: np.random.Generator, i: int) -> list[Row]:
    known = rng.beta(0.8, 0.8)  # how much of the mass is on one meaning
    meaning = np.where(rng.random(N) < known, 0, 1 + rng.integers(0, 6, N))
    right_one = 0 if rng.random() < 0.35 + 0.6 * known else 9
    answers = [f"meaning {m} of {i}{' indeed' * int(rng.random() < 0.2)}" for m in meaning]
    logprobs = (-0.2 - rng.random(N)).tolist()
    greedy = {"answer": f"meaning 0 of {i}", "right": right_one == 0}
    return [
        [payload(answers[:k], meaning[:k].tolist(), right_one, logprobs[:k]), greedy]
        for k in (N, 5, 2)
    ]


def payload(
    answers: Sequence[str], meanings: Sequence[int], right: int | None, logprobs: Sequence[float]
) -> Row:
    order = list(dict.fromkeys(meanings))
    sizes = {m: meanings.count(m) for m in order}
    top = max(order, key=lambda m: sizes[m])
    return {
        "answers": list(answers),
        "clusters": [order.index(m) for m in meanings],
        "mean_logprobs": list(logprobs),
        "n_tokens": [3] * len(answers),
        "right": None if right is None else top == right,
        "prediction": answers[meanings.index(top)],
        "confidence": sizes[top] / len(answers),
    }


def doc_of(i: int, **more: Any) -> Row:
    own = {"id": f"q{i}", "question": f"What is {i}?", "answers": [f"meaning 0 of {i}", "alias"]}
    return {**own, "context": "", "published_data": 1, **more}


def write(
    folder: Path,
    rows: Sequence[Sequence[Any]],
    *,
    task: str = "triviaqa_se",
    model: str = "test/model",
    date: str = DATE,
    names: Sequence[str] = ("n10", "n5", "n2"),
    docs: Callable[[int], Row] = doc_of,
    dump: Callable[[Any], Any] = str,
    results: bool = True,
    **metadata: Any,
) -> Path:
    """A run's samples, as `lm_eval --log_samples` leaves them: filter by filter.

    Args:
        rows: [n][filters] what a document's filters returned.
        dump: what the harness makes of a dictionary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    lines = [
        json.dumps(
            {
                "doc_id": i,
                "doc": docs(i),
                "target": "x",
                "resps": [["…"]],
                "filtered_resps": [dump(part) for part in row[f]],
                "filter": name,
                "accuracy": 1.0,
            },
            ensure_ascii=False,
        )
        for f, name in enumerate(names)
        for i, row in enumerate(rows)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if results:
        table = {"alias": task, **{f"parse_rate,{name}": 0.75 for name in names}}
        record = {"results": {task: table}, "configs": {task: {"metadata": metadata}},
                  "model_name": model}  # fmt: skip
        (folder / f"results_{date}.json").write_text(json.dumps(record))
    return path


def told_rows(n: int = 120, seed: int = 0, levels: int = 10) -> list[list[list[Row]]]:
    """One answer each with a confidence, some of them unreadable: filters `zero`, `exclude`."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        confidence = rng.integers(0, levels + 1) / levels
        silent, right = bool(rng.random() < 0.1), bool(rng.random() < 0.2 + 0.6 * confidence)
        own = {"answer": "" if silent else f"answer {i}", "right": right and not silent}
        rows.append(
            [[{**own, "confidence": 0.0 if silent else confidence}],
             [{**own, "confidence": None, "right": None} if silent
              else {**own, "confidence": confidence}]]
        )  # fmt: skip
    return rows


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_statistics, "RESAMPLES", 20)


def section_of(path: Path, documents: int = 10) -> sampled_section.SampledSection:
    (run,) = samples.read(path)
    return sampled_section.build(run, documents)


def page_of(section: sampled_section.SampledSection) -> str:
    html = pages.render(pages.Report((), sampled=(section,)))
    for forbidden in ("<script", "<img", "http://", "https://", "<iframe", "javascript:"):
        assert forbidden not in html
    assert html.count("<table") == html.count("</table>") == html.count("<caption>")
    assert html.count("<bdi>") == html.count("</bdi>")
    return html


@pytest.fixture(scope="module")
def rows() -> list[list[Row]]:
    own = sampled_rows()
    for part in own[7]:  # nobody knows the answer to this one
        part[0]["right"] = part[1]["right"] = None
    return own


@pytest.fixture(scope="module")
def section(rows, tmp_path_factory) -> sampled_section.SampledSection:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_statistics, "RESAMPLES", 100)
        return section_of(write(tmp_path_factory.mktemp("run"), rows, judge="rules"))


def estimate(section: sampled_section.SampledSection, key: str, name: str) -> Any:
    (row,) = (row for row in section.metrics if row.metric.key == key)
    return row.values[section.filters.index(name)]


# --------------------------------------------------------------------------------------------
# numbers
# --------------------------------------------------------------------------------------------


def arrays(rows: Sequence[Sequence[Any]], f: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of the questions that have a gold answer."""
    own = [row[f][0] for row in rows if row[f][0]["right"] is not None]
    return np.array([p["confidence"] for p in own]), np.array([p["right"] for p in own])


def test_metrics_of_every_filter(rows, section):
    assert section.filters == ("n2", "n5", "n10")
    assert (section.main, section.n, section.no_gold, section.n_samples) == ("n10", 60, 1, N)
    for f, name in enumerate(("n10", "n5", "n2")):
        confidence, right = arrays(rows, f)
        expected = {
            "accuracy": right.mean(),
            "brier": np.mean((confidence - right) ** 2),
            "auroc": sklearn.metrics.roc_auc_score(right, confidence),
            "mean_confidence": np.mean([row[f][0]["confidence"] for row in rows]),
            "n_clusters": np.mean([len(set(row[f][0]["clusters"])) for row in rows]),
            "n_tokens": 3 * (N, 5, 2)[f],
            "semantic_entropy": np.mean(
                [
                    scipy.stats.entropy(np.unique(row[f][0]["clusters"], return_counts=True)[1])
                    for row in rows
                ]
            ),
            "greedy_accuracy": np.mean(
                [r[f][1]["right"] for r in rows if r[f][1]["right"] in (0, 1)]
            ),
        }
        for key, value in expected.items():
            assert estimate(section, key, name).value == pytest.approx(value), key
        area = estimate(section, "auarc", name).value
        assert estimate(section, "aurc", name).value == pytest.approx(1 - area)


def test_entropies_rank_as_scikit_learn_ranks_them(rows, section):
    known = [row[0][0] for row in rows if row[0][0]["right"] is not None]
    right = [p["right"] for p in known]
    rao = []
    for p in known:
        weight = np.exp(p["mean_logprobs"])
        rao.append(scipy.stats.entropy(np.bincount(p["clusters"], weight)))
    plain_entropy = [scipy.stats.entropy(np.bincount(p["clusters"])) for p in known]
    logprob = [np.mean(p["mean_logprobs"]) for p in known]
    for key, score in {
        "entropy_auroc": -np.array(plain_entropy),
        "rao_entropy_auroc": -np.array(rao),
        "logprob_auroc": np.array(logprob),
    }.items():
        expected = sklearn.metrics.roc_auc_score(right, np.round(score, 12))
        assert estimate(section, key, "n10").value == pytest.approx(expected, abs=1e-3), key


def test_intervals_are_those_of_the_bootstrap(rows, section):
    confidence, right = arrays(rows, 0)
    for key, metric in (
        ("ece", calibration.ece),
        ("ece_sweep", calibration.ece_sweep),
        ("auroc", classification.confidence_auroc),
        ("auarc", classification.auarc),
    ):
        expected = bootstrap.interval(metric, confidence, right, n=100)
        own = estimate(section, key, "n10")
        assert (own.low, own.high) == pytest.approx(tuple(expected)), key


def test_reliability_by_hand(rows, section):
    confidence, right = arrays(rows, 0)
    points = section.points
    assert points.exact
    values = sorted({round(c, 9) for c in confidence})
    assert points.confidence == pytest.approx(values)
    for i, value in enumerate(values):
        here = np.isclose(confidence, value)
        assert (points.count[i], points.right[i]) == (here.sum(), right[here].sum())
        z, n, k = scipy.stats.norm.ppf(0.975), here.sum(), right[here].sum()  # Wilson 1927
        middle = (k + z**2 / 2) / (n + z**2)
        half = z / (n + z**2) * math.sqrt(k * (n - k) / n + z**2 / 4)
        assert points.low[i] == pytest.approx(max(0, middle - half), abs=1e-9)
        assert points.high[i] == pytest.approx(min(1, middle + half), abs=1e-9)
    assert points.mean_accuracy == pytest.approx(right.mean())


def test_risk_coverage_by_hand(rows, section):
    confidence, right = arrays(rows, 0)
    curve = section.curves[0]
    assert [c.name for c in section.curves] == [
        "cluster share", "1 − H / ln N", "mean log-probability",
    ]  # fmt: skip
    for (coverage, risk), value in zip(
        curve.steps, sorted(set(confidence), reverse=True), strict=True
    ):
        kept = confidence >= value
        assert (coverage, risk) == pytest.approx((kept.mean(), 1 - right[kept].mean()))
        if coverage in curve.coverage:
            assert curve.risk[list(curve.coverage).index(coverage)] == pytest.approx(risk)
    assert curve.risk[-1] == pytest.approx(1 - right.mean())
    assert ((curve.low <= curve.risk) & (curve.risk <= curve.high)).all()
    assert curve.aurc.value == pytest.approx(estimate(section, "aurc", "n10").value)


def test_clusters_and_samples(rows, section):
    counts = section.cluster_counts
    for k in range(1, N + 1):
        own = [row[0][0]["right"] for row in rows if len(set(row[0][0]["clusters"])) == k]
        found = (counts.right[k - 1], counts.wrong[k - 1], counts.unknown[k - 1])
        assert found == (own.count(True), own.count(False), own.count(None))
    assert section.by_n.n == (2, 5, N)
    assert section.by_n.accuracy[2] == estimate(section, "accuracy", "n10")
    assert section.by_n.greedy == estimate(section, "greedy_accuracy", "n10")
    assert section.parse_rate == (0.75,) * 3


def test_the_most_confident_wrong_answers(rows, section):
    wrong = [(i, row[0][0]) for i, row in enumerate(rows) if row[0][0]["right"] is False]
    assert section.n_wrong == len(wrong)
    best = sorted(wrong, key=lambda own: (
        -own[1]["confidence"], scipy.stats.entropy(np.bincount(own[1]["clusters"])).round(9), own[0]
    ))  # fmt: skip
    assert [case.key for case in section.wrong] == [f"q{i}" for i, _ in best[:10]]
    case, given = section.wrong[0], best[0][1]
    assert case.prediction == given["prediction"]
    assert case.clusters[0].members[0][0] == case.prediction
    assert sum(cluster.count for cluster in case.clusters) == N
    sizes = [cluster.count for cluster in case.clusters]
    assert sizes == sorted(np.bincount(given["clusters"]), reverse=True)
    for cluster in case.clusters:
        assert cluster.count == sum(n for _, n in cluster.members) + cluster.more
    right = [row[0][0]["confidence"] for row in rows if row[0][0]["right"]]
    assert [case.confidence for case in section.doubtful] == sorted(right)[:10]


# --------------------------------------------------------------------------------------------
# what the harness writes
# --------------------------------------------------------------------------------------------


def as_python_text(part: Any) -> str:
    """As a task that keeps NaN writes it."""
    return str(part).replace("None", "nan").replace("True", "np.True_")


def as_numpy_text(part: Any) -> str:
    return re.sub(r"(?<![\w])(-?\d+\.\d+)", r"np.float64(\1)", str(part))


@pytest.mark.parametrize(
    "dump", [lambda part: part, json.dumps, str, as_python_text, as_numpy_text]
)
def test_every_form_of_a_row_reads_alike(tmp_path, rows, dump):
    (expected,) = samples.read(write(tmp_path / "a", rows[:9]))
    (found,) = samples.read(write(tmp_path / "b", rows[:9], dump=dump))
    assert repr(found.filters) == repr(expected.filters)  # NaN is not equal to itself
    assert found.docs == expected.docs


def test_unknown_log_probabilities(tmp_path, rows):
    """A model of the harness's own returns nothing but text."""
    bare = [
        [[{**part[0], "mean_logprobs": [None] * len(part[0]["answers"]), "n_tokens": None}, part[1]]
         for part in row]
        for row in rows
    ]  # fmt: skip
    section = section_of(write(tmp_path, bare))
    assert [curve.name for curve in section.curves] == ["cluster share", "1 − H / ln N"]
    assert math.isnan(estimate(section, "rao_entropy_auroc", "n10").value)
    html = page_of(section)
    assert "samples of unknown log-probability" in html
    assert "tokens cannot be computed: it is unknown for every question" in html


def test_another_confidence(tmp_path, rows):
    section = section_of(write(tmp_path, rows, confidence="entropy"))
    assert section.confidence_name == "1 − H / ln N"
    assert section.curves[0].name == "1 − H / ln N"
    assert section.curves[1].name == "cluster share"


def test_told_confidence(tmp_path):
    given = told_rows()
    section = section_of(
        write(tmp_path, given, task="triviaqa_verbal10", names=("zero", "exclude"))
    )
    assert section.filters == ("zero", "exclude")
    assert (section.kind, section.main) == ("told", "zero")
    heard = [row[1][0] for row in given if row[1][0]["confidence"] is not None]
    right = [p["right"] for p in heard]
    expected = sklearn.metrics.roc_auc_score(right, [p["confidence"] for p in heard])
    assert estimate(section, "auroc", "exclude").value == pytest.approx(expected)
    assert estimate(section, "auroc", "zero").value != pytest.approx(expected)
    assert section.no_gold == 0  # left out by one filter is not unknown
    assert section.cluster_counts is None
    assert section.points.exact
    assert len(section.points.count) == 11
    html = page_of(section)
    assert f"Filter exclude: {len(given) - len(heard)} of 120 answers came without" in html
    assert "semantic entropy" not in html.partition('id="answers-1"')[2]
    assert "P(True)" in html.partition('id="answers-1"')[0]


def test_continuous_confidence_is_binned(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.random(200)
    given = [
        [[{"answer": "x", "confidence": c, "right": bool(r)}]]
        for c, r in zip(p, rng.random(200) < p, strict=True)
    ]
    section = section_of(write(tmp_path, given, task="nq_open_ptrue", names=("none",)))
    assert section.confidence_name == "P(True)"
    assert not section.points.exact
    assert len(section.points.count) == 15
    right = np.array([row[0][0]["right"] for row in given])
    for b in range(15):
        here = (p >= b / 15) & (p < (b + 1) / 15)
        assert section.points.count[b] == here.sum()
        assert section.points.confidence[b] == pytest.approx(p[here].mean())
        assert section.points.accuracy[b] == pytest.approx(right[here].mean())
    assert len(section.curves[0].steps) == 0
    page_of(section)


# --------------------------------------------------------------------------------------------
# runs that lack something
# --------------------------------------------------------------------------------------------


def one_row(answers: Sequence[str], right: bool | None, **more: Any) -> list[list[Row]]:
    k = len(answers)
    own = {**payload(answers, [0] * k, 0, [-1.0] * k), "right": right, **more}
    return [[own, {"answer": answers[0], "right": right}]]


@pytest.mark.parametrize(
    "given",
    [
        [one_row(["a"] * 3, True)],  # one question
        [one_row(["a"] * 3, False)],
        [one_row(["a"] * 3, None)],  # nobody knows
        [one_row(["a"], bool(i % 2)) for i in range(9)],  # N = 1
        [one_row(["a"] * 4, True)] * 9,  # no wrong answer
        [one_row(["a"] * 4, False)] * 9,
        [one_row(["a"] * 4, None)] * 9,
        [one_row([""] * 4, False, prediction="")] * 9,  # the model said nothing
        [one_row(["a"] * 4, True, confidence=None)] * 9,
    ],
)
def test_extreme_runs_still_make_a_page(tmp_path, given):
    section = section_of(write(tmp_path, given, names=("n",)))
    html = page_of(section)
    right = [row[0][0]["right"] for row in given]
    assert section.no_gold == right.count(None)
    assert section.n_wrong == right.count(False)
    if right.count(None) == len(given):
        assert section.points is None
        assert section.curves == ()
        assert "nobody knows which answers are wrong" in html
    elif not section.n_wrong:
        assert "There is no wrong answer" in html
    json.dumps(plain(pages.numbers(pages.Report((), sampled=(section,)))), allow_nan=False)


HOSTILE = (
    "<script>alert(1)</script>", "</style><b>", "\u202eevil", "שלום עולם", "😀" * 5,
    "a\x00b\x85c\u2028d", "{{ 7*7 }}", "&lt;b&gt;", "$x^2$", "word " * 2000,
    '"><img src=x onerror=alert(1)>',
)  # fmt: skip


def test_what_models_and_data_say_is_only_text(tmp_path):
    given = [one_row([text, text + "!"], False) for text in HOSTILE]

    def docs(i: int) -> Row:
        return doc_of(i, id=HOSTILE[i], question=HOSTILE[i], answers=[HOSTILE[i]] * 9)

    path = write(tmp_path, given, names=("<b>",), docs=docs, model="<i>m</i>", judge="<u>")
    section = section_of(path, documents=99)
    html = page_of(section)
    assert "&lt;script&gt;alert(1)" in html
    assert "⟨U+202E⟩evil" in html
    assert "{{ 7*7 }}" in html
    for tag in ("<i>m", "<u>", "</style><b>", "<img"):
        assert tag not in html
    assert "word " * 150 not in html
    assert "and 4 more" in html
    assert "\x85" not in html


def test_many_clusters_are_cut_and_counted(tmp_path):
    answers = [f"a{i}" for i in range(30)]
    own = {**payload(answers, list(range(30)), 99, [-1.0] * 30), "prediction": "a0"}
    same = {**payload(answers, [0] * 30, 99, [-1.0] * 30), "prediction": "a0"}
    given = [[[p, {"answer": "g", "right": False}]] for p in (own, same)]
    section = section_of(write(tmp_path, given, names=("n30",)))
    first, second = section.wrong
    assert (first.confidence, len(first.clusters), first.more_clusters) == (1, 1, 0)
    assert (len(first.clusters[0].members), first.clusters[0].more) == (8, 22)
    assert (len(second.clusters), second.more_clusters) == (8, 22)
    assert "And 22 more clusters" in page_of(section)


def test_our_own_questions_are_a_loud_warning(tmp_path):
    given = [one_row(["a"] * 3, None)] * 2
    path = write(tmp_path, given, names=("n3",), docs=lambda i: doc_of(i, published_data=0))
    html = page_of(section_of(path))
    assert html.count("Do not publish these figures") == 1
    assert "not the published data" in html


def test_the_same_samples_give_the_same_bytes(tmp_path, rows):
    path = write(tmp_path, rows)
    assert page_of(section_of(path)) == page_of(section_of(path))


# --------------------------------------------------------------------------------------------
# which files
# --------------------------------------------------------------------------------------------


def test_the_newest_of_each_model_and_task(tmp_path, rows):
    old, new = "2026-01-01T00-00-00.1", "2026-01-02T00-00-00.1"
    write(tmp_path / "a", rows[:3], date=old)
    write(tmp_path / "a", rows[:4], date=new)
    write(tmp_path / "a", rows[:5], date="2025-01-01T00-00-00.1", model="other/model")
    write(tmp_path / "b", rows[:6], date=old, model="third")
    write(tmp_path / "b", rows[:7], date=new, model="third", task="hotpotqa_se")
    found = {(run.model, run.task): run.n for run in samples.read(tmp_path)}
    assert found == {
        ("test/model", "triviaqa_se"): 4, ("other/model", "triviaqa_se"): 5,
        ("third", "triviaqa_se"): 6, ("third", "hotpotqa_se"): 7,
    }  # fmt: skip
    (run,) = samples.read(tmp_path / "a" / f"samples_triviaqa_se_{old}.jsonl")
    assert (run.n, run.model, run.date) == (3, "test/model", old)
    (run,) = samples.read(tmp_path / "b" / f"results_{new}.json")
    assert run.task == "hotpotqa_se"
    assert len(samples.read(tmp_path, "triviaqa_se")) == 3
    with pytest.raises(ValueError, match="'nq_open_se' is not among them"):
        samples.read(tmp_path, "nq_open_se")


def test_without_results_the_folder_names_the_model(tmp_path, rows):
    section = section_of(write(tmp_path / "gemma", rows[:3], results=False))
    assert section.model == "gemma"
    assert "No results file lies beside the samples" in page_of(section)


def test_results_without_samples_say_how_to_get_them(tmp_path, rows):
    write(tmp_path / "model", rows[:3]).unlink()
    for path in (tmp_path, tmp_path / "model", tmp_path / "model" / f"results_{DATE}.json"):
        with pytest.raises(ValueError, match="--log_samples") as caught:
            samples.read(path)
        assert str(path) in str(caught.value)


def test_other_tasks_are_passed_over_or_named(tmp_path, rows):
    path = tmp_path / f"samples_goemotions_zs_{DATE}.jsonl"
    path.write_text(json.dumps({"doc_id": 0, "filtered_resps": [["-1.0", "True"]], "filter": "x"}))
    for given in (tmp_path, path):
        with pytest.raises(ValueError, match=r"only samples of goemotions_zs.*readouts=DIR"):
            samples.read(given)
    write(tmp_path, rows[:3])
    (run,) = samples.read(tmp_path)
    assert run.task == "triviaqa_se"


def broken(**change: Any) -> str:
    own = {**payload(["a", "b"], [0, 1], 0, [-1.0, -2.0]), **change}
    return json.dumps({"doc_id": 9, "doc": {}, "filter": "n2", "filtered_resps": [own, {}]})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"doc_id": 1', "no JSON"),
        ("[]", "expected a row"),
        ('{"doc_id": 1, "filtered_resps": ["x"]}', "expected a row"),
        ('{"doc_id": 1, "filtered_resps": ["{\'a\': __import__(\'os\')}"]}', "expected a row"),
        (broken(answers=[]), "answers must be"),
        (broken(clusters=[0]), "2 answers but 1 clusters"),
        (broken(clusters=[0, 0.5]), "clusters must be"),
        (broken(mean_logprobs=[1.0]), "mean_logprobs must be a list of 2"),
        (broken(confidence=1.5), "confidence is 1.5"),
        (broken(confidence="high"), "confidence is 'high'"),
        (broken(right=0.5), "right is 0.5"),
        (broken(prediction=3), "prediction is 3"),
        (broken(answers=["a"], clusters=[0], mean_logprobs=None, n_tokens=None), "has 1 sampled"),
        (broken().replace('"doc_id": 9', '"doc_id": "9"'), "doc_id is '9'"),
        (broken().replace('"doc_id": 9', '"doc_id": 0'), "document 0 comes twice"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path, rows, line, reason):
    path = write(tmp_path, [[row[2]] for row in rows[:2]], names=("n2",))
    with path.open("a") as opened:
        opened.write(f"{line}\n")
    with pytest.raises(ValueError, match="line 3") as caught:
        samples.read(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path, rows):
    path = write(tmp_path, [[row[2]] for row in rows[:2]], names=("n2",))
    with path.open("ab") as opened:
        opened.write(b'{"doc_id": "\xff"}\n')
    with pytest.raises(ValueError, match="line 3: this is no JSON"):
        samples.read(path)


def test_an_empty_file_is_named(tmp_path, rows):
    path = write(tmp_path, rows[:2])
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty: the harness could not write the samples"):
        samples.read(path)


def test_a_filter_with_fewer_questions(tmp_path, rows):
    path = write(tmp_path, rows[:4])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="1 of 4 questions have no row n2"):
        samples.read(path)


def test_only_a_line_feed_ends_a_line_of_samples(tmp_path):
    """Of other tasks too, whose right choices `--samples` reads."""
    path = tmp_path / "samples.jsonl"
    text = "".join(
        json.dumps({"doc_id": i, "target": 1, "doc": "a\u2028b\x85c"}, ensure_ascii=False) + "\n"
        for i in range(2)
    )
    path.write_text(text, encoding="utf-8")
    assert readings.read_samples(path) == {0: 1, 1: 1}


# --------------------------------------------------------------------------------------------
# the command
# --------------------------------------------------------------------------------------------


def semsoft_report(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})


def test_command(tmp_path, rows, write_readouts, monkeypatch):
    drawn: list[Path] = []
    monkeypatch.setattr(figures, "save", lambda _, stem: drawn.append(stem) or [stem])
    folder = tmp_path / "results"
    write(folder / "gemma", rows)
    write(folder / "smollm", told_rows(30), task="nq_open_verbal", names=("zero", "exclude"))
    readouts = write_readouts(tmp_path / "run", 20)
    out = tmp_path / "page.html"
    done = semsoft_report(
        readouts, folder, "-o", out, "--png", tmp_path / "png", "--json", "--documents", 3
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout, parse_constant=pytest.fail)
    assert len(record["sections"]) == 1
    first, second = record["sampled"]
    assert set(first["metrics"]["auroc"]) == {"n2", "n5", "n10"}
    assert set(first["metrics"]["auroc"]["n5"]) == {"value", "low", "high"}
    assert len(first["reliability"]["confidence"]) == len(first["reliability"]["low"])
    assert len(first["curves"]) == 3
    assert len(first["wrong"]) == 3
    assert second["task"] == "nq_open_verbal"
    html = out.read_text(encoding="utf-8")
    assert html.count('<section class="run"') == 3
    assert html.count("<svg") == 2 + 4 + 2
    assert 'href="#answers-2"' in html
    assert sorted(stem.name for stem in drawn) == [
        "01-run-emotions-reliability",
        *(f"02-gemma-triviaqa_se-{w}"
          for w in ("clusters", "reliability", "risk-coverage", "samples")),
        *(f"03-smollm-nq_open_verbal-{w}" for w in ("reliability", "risk-coverage")),
    ]  # fmt: skip


def test_command_errors(tmp_path, rows):
    path = write(tmp_path / "a", rows[:3])
    out = tmp_path / "page.html"
    bad = tmp_path / "b" / "notes.json"
    bad.parent.mkdir()
    bad.write_text("{")
    for arguments, says in (
        ([path.parent, "--tau", "0.3"], "--tau is for readouts"),
        ([path, "--task", "other"], "'other' is not among them"),
        ([bad], "is no results file"),
        ([tmp_path / "absent"], "no such file or directory"),
        ([bad.parent], "holds neither readouts"),
    ):
        done = semsoft_report(*arguments, "-o", out)
        assert done.exit_code == 2, done.output
        assert says in done.stderr
        assert "Traceback" not in done.output
        assert len(done.stderr.strip().splitlines()) == 1
    assert not out.exists()
