"""`semsoft compare`: values, intervals and probabilities against loops; what it refuses."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli import compare as pages
from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.semantic_softmax import Scoring
from lm_eval_semsoft.reports import readings as reading
from lm_eval_semsoft.reports import rescore
from lm_eval_semsoft.reports.compare import Pair, compare
from lm_eval_semsoft.reports.compare_data import MEASURES, Comparison, Row, Table, draws_of
from lm_eval_semsoft.reports.development import match_dev, texts_of, usable_dev
from lm_eval_semsoft.reports.methods import answer_all
from lm_eval_semsoft.reports.readings import Readings, take

LABELS = ("joy", "anger", "fear", "neutral")
K = 60  # stored tokens
RESAMPLES = 60


# Writes a readouts directory: the fixture `write_readouts`.
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(write_readouts: Write) -> Write:
    return functools.partial(write_readouts, n=50)


@pytest.fixture(scope="module")
def folder(write: Write, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("a") / "eval")


@pytest.fixture(scope="module")
def dev_folder(write: Write, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("a") / "dev", n=80, seed=1)


@pytest.fixture(scope="module")
def readings(folder: Path) -> Readings:
    return reading.load(folder)


@pytest.fixture(scope="module")
def dev(dev_folder: Path) -> Readings:
    return reading.load(dev_folder)


@pytest.fixture(scope="module")
def found(readings: Readings, dev: Readings) -> Comparison:
    return compare([Pair(readings, dev)], resamples=RESAMPLES)


def rows(table: Table) -> dict[str, Row]:
    return {row.method: row for row in table.rows}


def in_order(readings: Readings) -> Readings:
    """By key: the order in which documents are resampled."""
    return take(readings, sorted(range(readings.n), key=lambda i: readings.keys[i]))


def metrics_of(probs: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """All columns, from scikit-learn and loops, for rows that were repeated as drawn."""
    top, confidence = probs.argmax(axis=1), probs.max(axis=1)
    right = top == target
    present = np.unique(target)
    areas = [
        sklearn.metrics.roc_auc_score(target == c, probs[:, c])
        for c in present
        if 0 < (target == c).sum() < len(target)
    ]
    bins = np.minimum((confidence * 15).astype(int), 14)
    return {
        "accuracy": right.mean(),
        "macro_f1": sklearn.metrics.f1_score(target, top, average="macro", zero_division=0),
        "auroc": np.mean(areas) if areas else math.nan,
        "brier": ((probs - np.eye(probs.shape[1])[target]) ** 2).sum(axis=1).mean(),
        "nll": -np.log(probs[np.arange(len(target)), target]).mean(),
        "ece": sum(abs((right - confidence)[bins == b].sum()) for b in range(15)) / len(target),
        "ece_sweep": calibration.ece_sweep(confidence, right).value,
        "smooth_ece": calibration.smooth_ece(confidence, right),
        "mean_confidence": confidence.mean(),
    }


# ------------------------------------------------------------------ values


def test_columns_and_rows(found: Comparison) -> None:
    (table,) = found.tables
    assert [row.method for row in table.rows][:3] == [
        "uniform", "constrained", "constrained+temperature",
    ]  # fmt: skip
    assert len(table.rows) == 11
    for row in table.rows:
        assert list(row.figures) == [m.key for m in MEASURES]
        for figure in row.figures.values():
            assert figure.low <= figure.high
    assert table.n == 50
    assert table.n_dev == 80
    assert table.labels == len(LABELS)


def test_values_intervals_and_probabilities_equal_a_loop(
    found: Comparison, readings: Readings, dev: Readings
) -> None:
    """Repeat the documents as often as they were drawn, and compute everything from scratch."""
    ordered = in_order(readings)
    target = ordered.gold().argmax(axis=1)
    answers = {a.method.name: np.exp(a.log_probs) for a in answer_all(ordered, dev)}
    draws = [np.arange(50)]
    draws += [np.repeat(np.arange(50), c) for c in bootstrap.resamples(50, RESAMPLES, 0)]
    values = {
        name: [metrics_of(answers[name][own], target[own]) for own in draws]
        for name in ("constrained", "semantic+prior", "constrained+temperature")
    }
    for name, own in values.items():
        for measure in MEASURES:
            figure = rows(found.tables[0])[name].figures[measure.key]
            end = 1 + draws_of(measure, RESAMPLES)
            drawn = np.array([v[measure.key] for v in own])[:end]
            reference = np.array([v[measure.key] for v in values["constrained"]])[:end]
            assert figure.value == pytest.approx(drawn[0], abs=1e-9)
            assert (figure.low, figure.high) == pytest.approx(
                np.quantile(drawn[1:], [0.025, 0.975]), abs=1e-9
            )
            if name == "constrained" or measure.higher is None:
                assert figure.beats is None
                continue
            gains = np.round((drawn - reference)[1:] * (1 if measure.higher else -1), 12)
            expected = np.mean([1.0 if g > 0 else 0.5 if g == 0 else 0.0 for g in gains])
            assert figure.beats == pytest.approx(expected, abs=1e-9)


def test_probabilities_are_those_of_core(found: Comparison, readings: Readings) -> None:
    ordered = in_order(readings)
    answers = {a.method.name: np.exp(a.log_probs) for a in answer_all(ordered)}
    a, b = answers["semantic"], answers["constrained"]
    target = ordered.gold()
    for key, metric, higher in (
        ("brier", calibration.brier, False),
        ("auroc", classification.auroc, True),
    ):
        pair = bootstrap.paired(metric, (a, target), (b, target), RESAMPLES, 0, higher)
        figure = rows(found.tables[0])["semantic"].figures[key]
        assert figure.beats == pair.probability
        reference = rows(found.tables[0])["constrained"].figures[key]
        assert figure.value - reference.value == pytest.approx(pair.difference)


@pytest.mark.parametrize("against", ["constrained+prior", "semantic"])
def test_any_row_may_be_the_reference(
    against: str, found: Comparison, readings: Readings, dev: Readings
) -> None:
    ordered = in_order(readings)
    answers = {a.method.name: np.exp(a.log_probs) for a in answer_all(ordered, dev)}
    target = ordered.gold()
    other = compare([Pair(readings, dev)], resamples=RESAMPLES, against=against)
    assert other.record()["reference"] == other.reference == against
    metrics = (
        ("brier", calibration.brier, False),
        ("auroc", classification.auroc, True),
        ("macro_f1", classification.macro_f1, True),
    )
    for name, row in rows(other.tables[0]).items():
        if name in ("uniform", against):
            continue
        for key, metric, higher in metrics:
            a, b = answers[name], answers[against]
            pair = bootstrap.paired(metric, (a, target), (b, target), RESAMPLES, 0, higher)
            own = row.figures[key]
            assert own.beats == pair.probability
            assert (own.difference, own.difference_low, own.difference_high) == pytest.approx(
                (pair.difference, pair.low, pair.high), abs=1e-9
            )
            # Values and their intervals do not depend on what they are compared with.
            usual = rows(found.tables[0])[name].figures[key]
            assert (own.value, own.low, own.high) == (usual.value, usual.low, usual.high)
        assert row.figures["mean_confidence"].difference is not None
    for figure in rows(other.tables[0])[against].figures.values():
        assert figure.beats is figure.difference is figure.difference_low is None


def test_reference_that_is_not_there(readings: Readings) -> None:
    with pytest.raises(ValueError, match=r"against='constrain' is not known.* mean 'constrained'"):
        compare([Pair(readings)], against="constrain")
    with pytest.raises(ValueError, match=r"eval has no such row, only uniform, constrained,"):
        compare([Pair(readings)], against="semantic+temperature")


def test_same_values_as_the_table_of_the_task(found: Comparison, readings: Readings) -> None:
    results = rescore.rescore(readings).results
    for measure in MEASURES:
        if measure.key == "smooth_ece":  # not in that table
            continue
        by_row = rows(found.tables[0])
        assert by_row["semantic"].figures[measure.key].value == pytest.approx(
            results[measure.key], abs=1e-6
        )
        assert by_row["constrained"].figures[measure.key].value == pytest.approx(
            results[f"constrained_{measure.key}"], abs=1e-6
        )


def test_uniform_guess_has_known_values(found: Comparison) -> None:
    figures = rows(found.tables[0])["uniform"].figures
    size = len(LABELS)
    assert figures["brier"].value == pytest.approx(1 - 1 / size)
    assert figures["nll"].value == pytest.approx(math.log(size))
    assert figures["auroc"].value == 0.5
    assert figures["mean_confidence"].value == pytest.approx(1 / size)
    for key in ("ece", "ece_sweep", "smooth_ece"):
        gap = abs(figures["accuracy"].value - 1 / size)
        assert figures[key].value == pytest.approx(gap, abs=1e-6)


def test_uniform_guess_is_right_as_often_as_chance(write: Write, tmp_path: Path) -> None:
    many = reading.load(write(tmp_path / "many", n=4000))
    table = compare([Pair(many)], resamples=2).tables[0]
    assert rows(table)["uniform"].figures["accuracy"].value == pytest.approx(0.25, abs=0.025)


def test_order_of_documents_changes_nothing(readings: Readings, dev: Readings) -> None:
    shuffled = take(readings, np.random.default_rng(0).permutation(readings.n).tolist())
    a = compare([Pair(readings, dev)], resamples=5).tables[0]
    b = compare([Pair(shuffled, dev)], resamples=5).tables[0]
    for left, right in zip(a.rows, b.rows, strict=True):
        for key, figure in left.figures.items():
            assert vars(figure) == pytest.approx(vars(right.figures[key]), abs=1e-12)


def test_seed_and_resamples(readings: Readings) -> None:
    def brier(**given: Any) -> Any:
        return rows(compare([Pair(readings)], **given).tables[0])["semantic"].figures["brier"]

    assert brier(resamples=20) == brier(resamples=20)
    assert brier(resamples=20) != brier(resamples=20, seed=1)
    assert brier(resamples=20).value == brier(resamples=30, seed=1).value


def test_run_that_was_constrained_is_compared_all_the_same(readings: Readings) -> None:
    manifest = json.loads(json.dumps(readings.source.manifest))
    manifest["about"]["scoring"]["scoring"] = "constrained"
    plain = replace(readings, source=replace(readings.source, manifest=manifest))
    assert "semantic" in rows(compare([Pair(plain)], resamples=2).tables[0])


# ------------------------------------------------------------------ development documents


def test_temperature_comes_from_development_documents(
    found: Comparison, readings: Readings, dev: Readings
) -> None:
    """Wrong labels on the evaluated documents do not move T; on development documents they do."""
    fitted = {r.method: r.temperature for r in found.tables[0].rows if "temperature" in r.method}
    assert len(fitted) == 5
    wrong = replace(readings, target=np.roll(readings.gold(), 1, axis=1))
    again = compare([Pair(wrong, dev)], resamples=2).tables[0]
    assert {r.method: r.temperature for r in again.rows if r.temperature} == fitted
    astray = replace(dev, target=np.roll(dev.gold(), 1, axis=1))
    moved = compare([Pair(readings, astray)], resamples=2).tables[0]
    assert rows(moved)["constrained+temperature"].temperature != fitted["constrained+temperature"]


def test_hopeless_temperature_is_named(readings: Readings, dev: Readings) -> None:
    astray = replace(dev, target=np.roll(dev.gold(), 1, axis=1))
    table = compare([Pair(readings, astray)], resamples=2).tables[0]
    assert rows(table)["constrained+temperature"].temperature == 100
    assert any("no more than a uniform guess" in note for note in table.notes)


def test_evaluated_documents_are_refused_as_development_documents(
    write: Write, readings: Readings, dev: Readings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"50 of the 50 development documents .* are evaluated"):
        compare([Pair(readings, readings)])
    leaking = reading.load(write(tmp_path / "leak", n=55))
    with pytest.raises(ValueError, match=r"such as '0-0'"):
        compare([Pair(readings, leaking)])


def test_same_text_under_another_id_is_left_out(
    write: Write, readings: Readings, dev: Readings, tmp_path: Path
) -> None:
    """Spaces around a text do not make it another one, and the prior does not see it either."""

    def texts(i: int) -> dict[str, Any]:
        return {"text": f"  text 0 {i}\n"} if i < 3 else {}

    copied = reading.load(write(tmp_path / "copied", n=80, seed=1, docs=texts))
    kept, dropped = usable_dev(readings, copied)
    assert dropped == 3
    assert kept.keys == tuple(k for i, k in enumerate(copied.keys) if i not in (0, 1, 2))
    table = compare([Pair(readings, copied)], resamples=2).tables[0]
    assert (table.dropped, table.n_dev) == (3, 77)
    assert any("3 of 80 development documents were left out" in note for note in table.notes)
    clean = compare([Pair(readings, take(dev, range(3, 80)))], resamples=2).tables[0]
    assert [r.temperature for r in table.rows] == pytest.approx(
        [r.temperature for r in clean.rows], nan_ok=True
    )
    every = reading.load(
        write(tmp_path / "all", n=20, seed=1, docs=lambda i: {"text": f"text 0 {i}"})
    )
    with pytest.raises(ValueError, match="every development document"):
        usable_dev(readings, every)


def test_same_number_is_not_the_same_document(
    write: Write, readings: Readings, tmp_path: Path
) -> None:
    """Splits whose documents are numbered from 0 each."""
    other = reading.load(
        write(tmp_path / "numbered", n=30, seed=1, docs=lambda i: {"id": f"0-{i}"})
    )
    assert set(other.keys) <= set(readings.keys)
    assert usable_dev(readings, other)[1] == 0


def test_what_counts_as_text(readings: Readings) -> None:
    docs = ({"id": "a", "text": " x ", "labels": [1], "label": "joy", "source": "hub"},) * 50
    same = ({"id": "b", "text": "x", "labels": [2], "label": "fear", "source": "local"},) * 50
    assert texts_of(replace(readings, docs=docs)) == texts_of(replace(readings, docs=same))
    nested = ({"id": "a", "choices": {"text": ["x", "y"]}, "n": 3},) * 50
    other = ({"id": "a", "choices": {"text": ["x", "z"]}, "n": 3},) * 50
    assert texts_of(replace(readings, docs=nested)) != texts_of(replace(readings, docs=other))
    wordless = replace(readings, docs=({"id": "a", "n": 3},) * 50)
    assert texts_of(wordless) == list(readings.prompts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "other/model"}, "another model"),
        ({"task": "sentiment"}, "holds task sentiment"),
        ({"labels": (*LABELS[:3], "calm")}, "do not have the labels"),
    ],
)
def test_development_documents_of_something_else(
    write: Write, given: dict[str, Any], said: str, readings: Readings, tmp_path: Path
) -> None:
    other = reading.load(write(tmp_path / "other", n=30, seed=1, **given))
    with pytest.raises(ValueError, match=said):
        compare([Pair(readings, other)])


def test_matching_development_documents(
    write: Write, readings: Readings, dev: Readings, tmp_path: Path
) -> None:
    second = reading.load(write(tmp_path / "b", model="b"))
    second_dev = reading.load(write(tmp_path / "b-dev", seed=1, model="b"))
    assert match_dev([readings, second], []) == [None, None]
    assert match_dev([readings, second], [dev, second_dev]) == [dev, second_dev]
    assert match_dev([readings, second], [second_dev, dev]) == [dev, second_dev]
    assert match_dev([readings, second], [second_dev]) == [None, second_dev]
    assert match_dev([readings, readings], [dev, second_dev][:1] * 2) == [dev, dev]
    with pytest.raises(ValueError, match="one --dev per directory"):
        match_dev([readings, readings], [dev])
    with pytest.raises(ValueError, match="one --dev per directory"):
        match_dev([readings, second], [dev, dev])
    with pytest.raises(ValueError, match="another model"):
        match_dev([readings], [second_dev])


# ------------------------------------------------------------------ several directories


def test_differences_between_directories(write: Write, readings: Readings, tmp_path: Path) -> None:
    other = reading.load(write(tmp_path / "other", model="another/one"))
    found = compare([Pair(readings), Pair(other)], resamples=RESAMPLES)
    assert [d.method for d in found.differences] == ["constrained", "semantic"]
    for difference in found.differences:
        assert (difference.first, difference.second, difference.n) == ("eval", "other", 50)
        a, b = (rows(t)[difference.method].figures for t in found.tables)
        ordered = [in_order(readings), in_order(other)]
        answers = [
            {x.method.name: np.exp(x.log_probs) for x in answer_all(own)}[difference.method]
            for own in ordered
        ]
        target = ordered[0].gold()
        pair = bootstrap.paired(
            calibration.brier, (answers[1], target), (answers[0], target), RESAMPLES, 0, False
        )
        assert vars(difference.figures["brier"]) == pytest.approx(vars(pair), abs=1e-9)
        for key, figure in difference.figures.items():
            assert figure.difference == pytest.approx(b[key].value - a[key].value)
        assert math.isnan(difference.figures["mean_confidence"].probability)


def test_differences_on_the_documents_that_both_hold(
    write: Write, readings: Readings, tmp_path: Path
) -> None:
    few = take(reading.load(write(tmp_path / "other", model="b")), range(20, 50))
    found = compare([Pair(readings), Pair(few)], resamples=10)
    assert all(d.n == 30 for d in found.differences)
    assert any("that both hold" in note for note in found.notes)
    same = compare([Pair(take(readings, range(20, 50))), Pair(few)], resamples=10)
    for a, b in zip(found.differences, same.differences, strict=True):
        for key, figure in a.figures.items():
            assert vars(figure) == pytest.approx(vars(b.figures[key]), abs=1e-9, nan_ok=True)


def test_no_difference_between_other_documents(readings: Readings, dev: Readings) -> None:
    found = compare([Pair(readings), Pair(dev)], resamples=3)
    assert len(found.tables) == 2
    assert not found.differences


def test_directories_of_one_name_are_told_apart(write: Write, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    pairs = [Pair(reading.load(write(tmp_path / name / "run", n=8, model=name))) for name in "ab"]
    names = [table.name for table in compare(pairs, resamples=2).tables]
    assert names == [str(tmp_path / name / "run") for name in "ab"]


# ------------------------------------------------------------------ hard cases


def test_any_of_several_labels_counts(write: Write, tmp_path: Path) -> None:
    several = reading.load(write(tmp_path / "several", several=True))
    assert (several.gold().sum(axis=1) == 2).all()
    table = compare([Pair(several)], resamples=3).tables[0]
    answers = {a.method.name: np.exp(a.log_probs) for a in answer_all(several)}
    probs, target = answers["semantic"], several.gold()
    hit = target[np.arange(50), probs.argmax(axis=1)]
    figures = rows(table)["semantic"].figures
    assert figures["accuracy"].value == pytest.approx(hit.mean())
    assert figures["brier"].value == pytest.approx(calibration.brier(probs, target))
    assert figures["auroc"].value == pytest.approx(classification.auroc(probs, target))
    assert any("50 of 50 documents have several right labels" in note for note in table.notes)


def test_one_document(write: Write, tmp_path: Path) -> None:
    alone = reading.load(write(tmp_path / "alone", n=1))
    table = compare([Pair(alone)], resamples=10).tables[0]
    figures = rows(table)["semantic"].figures
    assert 0 <= figures["brier"].value <= 2
    assert math.isnan(figures["auroc"].value)
    assert math.isnan(figures["brier"].low)
    assert math.isnan(figures["brier"].beats or 0.0)
    assert any("one document" in note for note in table.notes)


def test_equal_methods_are_a_tie(write: Write, tmp_path: Path) -> None:
    """With a kernel in which nobody votes, Semantic Softmax is the constrained softmax."""
    lone = reading.load(write(tmp_path / "lone"))
    silent = Scoring(space="centered", tau=0.9999, top_k=K)
    table = compare([Pair(lone, scoring=silent)], resamples=20).tables[0]
    for measure in MEASURES:
        figure = rows(table)["semantic"].figures[measure.key]
        assert figure.value == rows(table)["constrained"].figures[measure.key].value
        assert figure.beats == (None if measure.higher is None else 0.5)


def test_tied_probabilities(readings: Readings) -> None:
    """The first of several best labels is the answer, as in the task's table."""
    tied = replace(readings, label_logprobs=np.full_like(readings.label_logprobs, -2.0))
    figures = rows(compare([Pair(tied, kernel="identity")], resamples=3).tables[0])
    assert "semantic" not in figures
    share = readings.gold()[:, 0].mean()
    assert figures["constrained"].figures["accuracy"].value == pytest.approx(share)
    assert figures["constrained"].figures["auroc"].value == 0.5


def test_nan_is_named(readings: Readings) -> None:
    broken = readings.label_logprobs.copy()
    broken[[4, 9]] = np.nan
    table = compare([Pair(replace(readings, label_logprobs=broken))], resamples=3).tables[0]
    assert any(
        "2 of 50 documents have NaN" in n and repr(readings.keys[4]) in n for n in table.notes
    )
    figures = rows(table)["constrained"].figures
    assert all(math.isnan(f.value) for f in figures.values())
    assert rows(table)["uniform"].figures["brier"].value == pytest.approx(0.75)
    assert rows(table)["uniform"].figures["brier"].beats is None


def test_tasks_without_neighbours(write: Write, tmp_path: Path) -> None:
    letters = reading.load(write(tmp_path / "letters", why_identity="option letters or numbers"))
    table = compare([Pair(letters)], resamples=2).tables[0]
    assert list(rows(table)) == ["uniform", "constrained", "constrained+prior"]
    assert any("option letters or numbers" in note for note in table.notes)
    forced = compare([Pair(letters, kernel="cosine")], resamples=2).tables[0]
    assert "semantic" in rows(forced)


def test_choices_of_their_own(readings: Readings) -> None:
    logprobs = readings.label_logprobs.copy()
    target = np.zeros_like(readings.gold())
    target[:, 0] = True
    logprobs[::2, 2:] = -np.inf
    ragged = replace(readings, label_logprobs=logprobs, target=target, label_set=None)
    table = compare([Pair(ragged)], resamples=3).tables[0]
    assert list(rows(table)) == ["uniform", "constrained"]
    figures = rows(table)["uniform"].figures
    assert figures["nll"].value == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert figures["brier"].value == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert math.isnan(figures["auroc"].value)
    assert figures["accuracy"].value == pytest.approx(3 / 8, abs=0.2)


def test_embedded_sample_and_missing_readouts_are_named(write: Write, tmp_path: Path) -> None:
    sample = replace(
        reading.load(write(tmp_path / "sample", docs=lambda i: {"published_data": 0})), missing=7
    )
    notes = compare([Pair(sample)], resamples=2).tables[0].notes
    assert any("not the published data" in note for note in notes)
    assert any("7 of 57 documents have no readout yet" in note for note in notes)


def test_nothing_is_read_yet(write: Write, tmp_path: Path) -> None:
    done = semsoft(write(tmp_path / "unread", unread=50))
    assert done.exit_code == 2
    assert "holds no readouts of any task yet" in done.stderr


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="at least one"):
        compare([])


# ------------------------------------------------------------------ the command


def semsoft(*arguments: object, columns: int = 100) -> Any:
    app = typer.Typer()
    app.command()(pages.compare)
    given = [str(a) for a in (*arguments, "--resamples", 20)]
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, given)


def test_json_schema(folder: Path, dev_folder: Path, tmp_path: Path) -> None:
    done = semsoft(folder, "--dev", dev_folder, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert set(record) == {
        "level", "resamples", "seed", "alpha", "reference", "better", "tables", "differences",
        "notes",
    }  # fmt: skip
    assert record["better"]["brier"] == "lower"
    assert record["resamples"]["brier"] == 20
    assert record["resamples"]["smooth_ece"] == 8
    assert record["better"]["mean_confidence"] is None
    (table,) = record["tables"]
    assert set(table) == {
        "directory", "name", "model", "task", "n", "labels", "scoring", "dev", "n_dev", "dropped",
        "rows", "notes",
    }  # fmt: skip
    assert table["scoring"]["kernel"] == "auto"
    for row in table["rows"]:
        assert set(row) == {"method", "temperature", "figures"}
        assert list(row["figures"]) == [m.key for m in MEASURES]
        for figure in row["figures"].values():
            assert set(figure) == {
                "value", "low", "high", "beats", "difference", "difference_low",
                "difference_high",
            }  # fmt: skip
    assert semsoft(folder, "--dev", dev_folder, "-o", tmp_path / "x.json").exit_code == 0
    assert json.loads((tmp_path / "x.json").read_text()) == record


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_table_fits(columns: int, folder: Path, dev_folder: Path) -> None:
    done = semsoft(folder, "--dev", dev_folder, columns=columns)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    text = done.stdout
    assert "eval: test/model, emotions, 50 documents, 4 labels" in " ".join(text.split())
    assert "T, fitted on 80 documents" in text
    head = next(line for line in lines if line.startswith("semantic"))
    assert "…" not in text
    if columns == 200:
        assert head.count("[") == len(MEASURES)
    assert ("Intervals are left out" in text) == (columns < 100)


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_distances_are_shown_if_a_reference_is_named(columns: int, folder: Path) -> None:
    usual = semsoft(folder, columns=columns).stdout
    assert "minus " not in usual
    assert "worse than constrained in" in " ".join(usual.split())
    text = semsoft(folder, "--against", "constrained+prior", columns=columns).stdout
    assert max(map(len, text.splitlines())) <= columns
    assert "worse than constrained+prior in" in " ".join(text.split())
    shown = text[text.index("minus constrained+prior, on the same resamples") :]
    assert shown.count("…") >= 5 * len(MEASURES)  # an interval in every row but the reference's
    markdown = semsoft(folder, "--against", "constrained+prior", "--markdown").stdout
    assert markdown.count("…") == 5 * len(MEASURES)


def test_best_of_each_column_is_bold(found: Comparison) -> None:
    (table,) = found.tables
    lines = pages.as_markdown(found).splitlines()
    cells = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in lines
        if line.startswith("|")
    }
    for j, measure in enumerate(MEASURES):
        bold = {name for name, own in cells.items() if j < len(own) and own[j].startswith("**")}
        values = {r.method: r.figures[measure.key].value for r in table.rows[1:]}
        if measure.higher is None:
            assert not bold
            continue
        best = max(values.values()) if measure.higher else min(values.values())
        assert bold == {name for name, value in values.items() if value == best}


def test_markdown(folder: Path, tmp_path: Path) -> None:
    done = semsoft(folder, "--markdown")
    assert done.exit_code == 0
    assert "| method | accuracy ↑ | macro-F1 ↑ | AUROC ↑ | Brier ↓ |" in done.stdout
    assert semsoft(folder, "-o", tmp_path / "table.md").exit_code == 0
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == done.stdout


def test_text_file(folder: Path, tmp_path: Path) -> None:
    done = semsoft(folder, "-o", tmp_path / "table.txt")
    assert done.exit_code == 0
    text = (tmp_path / "table.txt").read_text(encoding="utf-8")
    assert "semantic+prior" in text
    assert "\x1b" not in text


def test_several_directories(write: Write, folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", model="b")
    for option in ((), ("--markdown",)):
        done = semsoft(folder, other, *option)
        assert done.exit_code == 0
        assert "other − eval, semantic, 50 shared documents" in " ".join(done.stdout.split())


def test_scoring_options(folder: Path) -> None:
    done = semsoft(folder, "--json", "--space", "raw", "--tau", "0.3", "--top-k", 5, "--alpha", 0)
    record = json.loads(done.stdout)
    scoring = record["tables"][0]["scoring"]
    assert (scoring["space"], scoring["tau"], scoring["top_k"]) == ("raw", 0.3, 5)
    assert record["alpha"] == 0
    plain = json.loads(semsoft(folder, "--json", "--scoring", "constrained").stdout)
    assert all(not r["method"].startswith("sem") for r in plain["tables"][0]["rows"])


def test_right_labels_from_samples(write: Write, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", n=12, docs=lambda i: {"labels": None})
    done = semsoft(bare)
    assert done.exit_code == 2
    assert "--samples" in done.stderr
    lines = [json.dumps({"doc_id": i, "target": i % 4}) for i in range(12)]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines))
    done = semsoft(bare, "--samples", tmp_path / "samples.jsonl", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["tables"][0]["n"] == 12


def test_command_refuses_in_one_sentence(
    write: Write, folder: Path, dev_folder: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", n=20, seed=2, model="b")
    for arguments, said in (
        ((folder, "--dev", folder), "are evaluated in"),
        ((folder, "--dev", other), "another model"),
        ((folder, "--top-k", 61), "top_k=61 is more than is stored"),
        ((folder, "--kernel", "cosin"), "did you mean 'cosine'"),
        ((folder, "--task", "nothing"), "not among them"),
        ((folder, "--json", "--markdown"), "exclude each other"),
        ((folder, "-o", tmp_path), "is a directory"),
        ((tmp_path / "none",), "holds no readouts"),
        ((folder, "--samples", "a", "--samples", "b"), "2 times for 1 directories"),
    ):
        done = semsoft(*arguments)
        assert done.exit_code == 2, arguments
        assert said in done.stderr
        assert "Traceback" not in done.output
