"""`semsoft tune` against the slow path, cell by cell, and its choices against hand computations."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli import tune as command
from lm_eval_semsoft.cli.shared import plain
from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.corrections import prior_correction
from lm_eval_semsoft.core.semantic_softmax import (
    LabelSet,
    Scoring,
    build_kernel,
    normalise,
    resolve_scoring,
    semantic_log_scores,
)
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.store import Store, StoredDocument
from lm_eval_semsoft.reports import readings as readings_module
from lm_eval_semsoft.reports import scores, tune, tune_grid, tune_scores
from lm_eval_semsoft.reports.readings import Readings, Source

V, D, K, N = 90, 8, 40, 60
NAMES = ("joy", "anger", "disgust", "disapproval", "fear")
LABELS = LabelSet(
    labels=NAMES,
    spelled=((3,), (7,), (11, 12), (11, 13, 14), (15,)),
    # 20 spells two labels; 7 is a variant of fear and what the prompt asks for as anger.
    variants=((3, 20), (7, 20, 21, 22), (), (23,), (7, 24)),
)
GRID = {
    "space": ["raw", "centered", "pc:2", "whitened"],
    "tau": [-0.2, 0.1, 0.4, "q0.5", "q0.9", "q0.99"],
    "top_k": [1, 7, 40],
}
SMALL = {"space": ["raw", "pc:2"], "tau": [0.1, "q0.9"], "top_k": [7, 40]}
METRICS = {
    "brier": (calibration.brier, min),
    "nll": (calibration.nll, min),
    "ece": (calibration.ece, min),
    "ece_sweep": (lambda c, y: calibration.ece_sweep(c, y).value, min),
    "smooth_ece": (calibration.smooth_ece, min),
    "auroc": (classification.auroc, max),
    "accuracy": (classification.accuracy, max),
    "macro_f1": (classification.macro_f1, max),
}


def embeddings() -> torch.Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(1)) + 0.4


@functools.cache
def synthetic(n: int = N) -> Readings:
    """Random readouts; every seventh document has two right labels."""
    rng = np.random.default_rng(5)
    logits = rng.normal(scale=2.0, size=(n, V))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-logprobs, axis=1)[:, :K]
    target = np.eye(len(NAMES), dtype=bool)[rng.integers(len(NAMES), size=n)]
    target[::7, 2] = True
    source = Source(Path("synthetic"), {"about": {"model": "random"}})
    vars(source)["_matrix"] = embeddings()
    own = rng.normal(-4, 1.5, (n, len(NAMES))) + 1.2 * target
    return Readings(
        source=source,
        task="feelings",
        labels=NAMES,
        label_set=LABELS,
        why_identity=None,
        keys=tuple(map(str, range(n))),
        docs=({},) * n,
        target=target,
        topk_ids=ids.astype(np.int32),
        topk_logprobs=np.take_along_axis(logprobs, ids, axis=1).astype(np.float32),
        label_logprobs=own.astype(np.float32),
        entropy=np.zeros(n),
        prompts=tuple(map(str, range(n))),
    )


def value(metric: str, log_s: np.ndarray, target: np.ndarray) -> float:
    probs = normalise(log_s)
    if metric in ("ece", "ece_sweep", "smooth_ece"):
        right = classification.correctness(probs, target)
        return METRICS[metric][0](probs.max(axis=1), right)
    return METRICS[metric][0](probs, target)


def run(objective: str = "brier", readings: Readings | None = None, **options) -> tune.Tuned:
    found = readings or synthetic()
    grid = tune.make_grid(found, **{**SMALL, **options.pop("grid", {})})
    return tune.tune(found, grid, tune.parse_objective(objective), **options)


# ------------------------------------------------------------------ scores


def exact(readings: Readings, scoring: Scoring) -> np.ndarray:
    """The scores of one cell alone, from votes in float64."""
    if scoring == tune_grid.CONSTRAINED:
        return readings.label_logprobs.astype(np.float64)
    (votes,) = scores.votes_at(readings, scores.kernel_of(readings, scoring), [scoring.top_k])
    log_s = semantic_log_scores(readings.label_logprobs, votes, scoring)
    # A run adds its votes in float32.
    np.testing.assert_allclose(scores.log_scores(readings, scoring), log_s, rtol=0, atol=1e-6)
    return log_s


def test_every_cell_is_what_the_slow_path_says():
    readings = synthetic()
    grid = tune.make_grid(readings, **GRID)
    assert len(grid) == 4 * 6 * 3 * 2 * 2
    found = dict(tune.many_log_scores(readings, grid))
    assert set(found) == set(grid)
    for scoring, log_s in found.items():
        np.testing.assert_allclose(log_s, exact(readings, scoring), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "scoring",
    [
        Scoring(space="pc:2", tau=0.1, top_k=7, rival_votes="on"),
        Scoring(space="whitened", tau="q0.9", top_k=40, anchors="spelled"),
        Scoring(space="raw", tau=-0.2, top_k=1),
    ],
)
def test_a_cell_is_the_formula(scoring):
    readings = synthetic()
    ((_, log_s),) = tune.many_log_scores(readings, [scoring])
    cosines = readings.source.cosines(LABELS, scoring.space, scoring.anchors)
    w = build_kernel(cosines, LABELS, scoring).weights
    for i in range(readings.n):
        for label in range(len(NAMES)):
            total = math.exp(readings.label_logprobs[i, label])
            for rank in range(scoring.top_k):
                p = math.exp(readings.topk_logprobs[i, rank])
                total += p * float(w[readings.topk_ids[i, rank], label])
            # exp of a float32 is rounded to float32 in the package.
            assert log_s[i, label] == pytest.approx(math.log(total), abs=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 2, 57, 1000, 50021])
def test_thresholds_are_those_of_the_kernel_to_the_bit(vocabulary):
    rng = np.random.default_rng(vocabulary)
    cosines = np.clip(rng.normal(0.2, 0.3, (vocabulary, 3)), -1, 1).astype(np.float32)
    labels = LabelSet(("a", "b", "c"), ((0,), (0,), (0,)), ((), (), ()))
    taus = [0.3, "q0.0", "q0.5", "q0.95", "q0.98", "q0.995", "q0.999"]
    for tau, found in tune_scores.thresholds(cosines, taus).items():
        assert (found == build_kernel(cosines, labels, Scoring(tau=tau)).tau).all()


def test_tokens_that_few_documents_hold_are_enough():
    """A label's own tokens need not be among the top K of any document."""
    readings = tune.subset(synthetic(), 2)
    scoring = Scoring(tau=0.0, top_k=2, rival_votes="on")
    ((_, log_s),) = tune.many_log_scores(readings, [scoring])
    np.testing.assert_allclose(log_s, exact(readings, scoring), rtol=0, atol=1e-9)


# ------------------------------------------------------------------ the grid


def test_the_default_grid_holds_the_default():
    big = replace(synthetic(), topk_ids=np.zeros((N, 1000), np.int32))
    grid = tune.make_grid(big)
    assert Scoring() in grid
    assert len(grid) == len(set(grid)) == 4 * 8 * 3 * 2 * 2


def test_no_k_exceeds_what_is_stored():
    assert {s.top_k for s in tune.make_grid(synthetic())} == {K}
    with pytest.raises(ValueError, match=r"top_k=50.*at most 40"):
        tune.make_grid(synthetic(), top_k=[7, 50])


def test_any_k_will_do_where_all_tokens_are_stored():
    whole = replace(synthetic(), topk_ids=np.zeros((N, V), np.int32))
    assert {s.top_k for s in tune.make_grid(whole)} == {50, 200, 1000}


def test_values_that_mean_the_same_are_one():
    grid = tune.make_grid(
        synthetic(), space=["raw", "raw"], tau=["0.50", 0.5, "q.950", "q0.95"], top_k=[7],
        anchors=["spelled"], rival_votes=["on"],
    )  # fmt: skip
    assert [s.tau for s in grid] == [0.5, "q0.95"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"space": ["pc"]}, "space='pc'"),
        ({"tau": ["1.2"]}, "tau='1.2'"),
        ({"tau": ["q1"]}, "tau='q1'"),
        ({"top_k": [0]}, "top_k=0"),
        ({"anchors": ["spelt"]}, "did you mean 'spelled'"),
        ({"rival_votes": ["yes"]}, "rival_votes='yes'"),
    ],
)
def test_unknown_values_are_named(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        tune.make_grid(synthetic(), **values)


def test_the_pasted_line_is_read_back():
    parse = pytest.importorskip("lm_eval._cli.utils").key_val_to_dict
    grid = tune.make_grid(synthetic(), **GRID)
    for scoring in [*grid, Scoring(), tune_grid.CONSTRAINED, Scoring(tau=0.3)]:
        assert resolve_scoring(**parse(tune.model_args(scoring))) == scoring
    assert tune.model_args(Scoring()) == ""
    assert tune.model_args(Scoring(space="raw", tau=0.5)) == "space=raw,tau=0.5"


# ------------------------------------------------------------------ the choice


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("prior", [False, True])
def test_the_best_cell_is_the_best_of_all(metric, prior, monkeypatch):
    monkeypatch.setattr(tune, "RESAMPLES", 20)  # the choice does not depend on them
    monkeypatch.setattr(tune, "CELL_RESAMPLES", 5)
    readings = synthetic()
    tuned = run(metric, prior=prior, grid={"anchors": ["variants"]})
    correct = prior_correction if prior else lambda log_s: log_s
    every = {
        cell.scoring: value(metric, correct(exact(readings, cell.scoring)), readings.target)
        for cell in tuned.cells
    }
    for cell in (*tuned.cells, tuned.constrained, tuned.default):
        log_s = correct(exact(readings, cell.scoring))
        for name in METRICS:
            assert cell.metrics[name] == pytest.approx(
                value(name, log_s, readings.target), abs=1e-9
            )
    assert tuned.best.value == pytest.approx(METRICS[metric][1](every.values()), abs=1e-9)
    assert tuned.best.value == tuned.best.metrics[metric]
    best_first = [cell.value for cell in tuned.cells]
    assert sorted(np.round(best_first, 9), reverse=METRICS[metric][1] is max) == list(
        np.round(best_first, 9)
    )


def test_equal_cells_come_in_the_documented_order():
    """At tau = .9999 only anchors vote, and spelled ones are own votes: all cells are equal."""
    tuned = run(
        grid={
            "space": ["whitened", "pc:4", "pc:2", "centered", "raw", "pc:3"],
            "tau": [0.9999, 0.99995, "q0.95"],
            "top_k": [40, 7],
            "anchors": ["spelled"],
            "rival_votes": ["on"],
        }
    )
    silent = [c.scoring for c in tuned.cells if isinstance(c.scoring.tau, float)]
    assert len(silent) == 24
    # One argument more than the default is `space`; then fewer directions; then the smaller K.
    assert [s.space for s in silent[:4]] == ["pc:3"] * 4
    assert [s.space for s in silent[4::4]] == ["raw", "centered", "pc:2", "pc:4", "whitened"]
    assert [s.top_k for s in silent[:8]] == [7, 7, 40, 40] * 2


def test_as_good_as_constrained_is_no_reason_to_leave_it():
    tuned = run(
        grid={"tau": [0.9999], "space": ["raw"], "anchors": ["spelled"], "rival_votes": ["on"]}
    )
    assert tuned.best.value == pytest.approx(tuned.constrained.value)
    assert not tuned.beats_constrained
    assert tuned.recommended == tune_grid.CONSTRAINED
    assert tune.record(tuned)["model_args"] == "scoring=constrained"


def test_mean_rank_by_hand():
    objective = tune.parse_objective("rank:brier,auroc")
    table = np.array([[0.1, 0.7], [0.2, 0.9], [0.2, 0.8], [math.nan, 0.6]])
    # brier, lower is better: 1, 2.5, 2.5, 4. auroc, higher is better: 3, 1, 2, 4.
    assert objective.values(table).tolist() == [2.0, 1.75, 2.25, 4.0]
    assert not objective.higher


def test_mean_rank_ranks_references_along():
    tuned = run("rank:brier,auroc", grid={"space": ["pc:2"]})
    rows = [tuned.constrained, tuned.default, *tuned.cells]
    assert tuned.default.scoring not in [c.scoring for c in tuned.cells]
    for row in rows:
        below = [sum(r.metrics["brier"] < row.metrics["brier"] - 1e-9 for r in rows)]
        below.append(sum(r.metrics["auroc"] > row.metrics["auroc"] + 1e-9 for r in rows))
        same = [
            sum(abs(r.metrics[m] - row.metrics[m]) < 1e-9 for r in rows) for m in ("brier", "auroc")
        ]
        ranks = [b + (s + 1) / 2 for b, s in zip(below, same, strict=True)]
        assert row.value == pytest.approx(sum(ranks) / 2)
    assert tuned.best.value == min(c.value for c in tuned.cells)


@pytest.mark.parametrize("metric", ["brier", "auroc"])
def test_distances_are_those_of_the_bootstrap(metric):
    readings = synthetic()
    tuned = run(metric, grid={"space": ["pc:2"], "top_k": [7]})

    def replicates(scoring):
        probs = normalise(scores.log_scores(readings, scoring))
        return bootstrap.replicates(
            METRICS[metric][0], probs, readings.target, n=tune.CELL_RESAMPLES, seed=0
        )

    best = replicates(tuned.best.scoring)
    for cell in tuned.cells:
        assert cell.behind == pytest.approx(cell.value - tuned.best.value)
        spread = (replicates(cell.scoring) - best).std(ddof=1)
        assert cell.stderr == pytest.approx(spread, abs=1e-9)
        assert cell.alike == (abs(cell.behind) <= max(1.96 * cell.stderr, 1e-9))
    assert tuned.alike == sum(c.alike for c in tuned.cells) - 1


def test_intervals_and_pairs_are_those_of_the_bootstrap():
    readings = synthetic()
    tuned = run()
    best, constrained, default = (
        normalise(scores.log_scores(readings, s))
        for s in (tuned.best.scoring, tune_grid.CONSTRAINED, tune.default_of(readings))
    )
    brier = calibration.brier
    assert tuned.intervals["brier"] == pytest.approx(
        bootstrap.interval(brier, best, readings.target, n=1000)
    )
    for other, pair in ((constrained, tuned.over_constrained), (default, tuned.over_default)):
        truth = bootstrap.paired(
            brier, (best, readings.target), (other, readings.target), higher_is_better=False
        )
        assert vars(pair["brier"]) == pytest.approx(vars(truth))


def test_nothing_to_compare_with_where_the_default_is_best():
    tuned = run(
        grid={"space": ["pc:3"], "tau": ["q0.95"], "top_k": [K], "anchors": ["variants"],
              "rival_votes": ["off"]}
    )  # fmt: skip
    assert tuned.best.scoring == tune.default_of(synthetic())
    assert tuned.over_default == {}
    assert tuned.alike == 0


@pytest.mark.parametrize("seed", [0, 3])
def test_each_half_chooses_for_the_other(seed):
    readings = synthetic()
    tuned = run("auroc", seed=seed)
    scorings = [cell.scoring for cell in tuned.cells] + [tune_grid.CONSTRAINED]
    probs = {s: normalise(scores.log_scores(readings, s)) for s in scorings}
    order = np.random.default_rng(seed).permutation(N)
    halves = np.sort(order[: N // 2]), np.sort(order[N // 2 :])
    for half, choose, judge in zip(tuned.halves, halves, halves[::-1], strict=True):
        worth = [
            {s: classification.auroc(p[rows], readings.target[rows]) for s, p in probs.items()}
            for rows in (choose, judge)
        ]
        top = max(v for s, v in worth[0].items() if s != tune_grid.CONSTRAINED)
        assert half.there == pytest.approx(top)
        assert worth[0][half.chosen] == pytest.approx(top)
        assert half.here == pytest.approx(worth[1][half.chosen])
        assert half.constrained == pytest.approx(worth[1][tune_grid.CONSTRAINED])


def test_halves_that_are_too_small_are_left_out():
    readings = synthetic()
    rows = [int(np.flatnonzero(readings.target.argmax(1) == label)[0]) for label in (0, 1)]
    two = replace(
        readings,
        **{
            name: getattr(readings, name)[rows]
            for name in ("target", "topk_ids", "topk_logprobs", "label_logprobs", "entropy")
        },
        keys=("a", "b"), docs=({}, {}), prompts=("a", "b"),
    )  # fmt: skip
    tuned = run("auroc", two)
    assert tuned.halves is None
    json.dumps(plain(tune.record(tuned)), allow_nan=False)


def test_it_can_be_repeated():
    assert tune.record(run()) == tune.record(run())


def test_progress_counts_every_cell():
    seen = []
    tuned = run(progress=lambda done, cells: seen.append((done, cells)))
    cells = len(tuned.cells) + 2
    assert seen == [(i, cells) for i in range(1, cells + 1)]


def test_a_subset_is_some_of_the_documents():
    readings = synthetic()
    few = tune.subset(readings, 10, seed=1)
    assert few.n == 10
    assert list(few.keys) == sorted(few.keys, key=int)
    rows = [int(key) for key in few.keys]
    np.testing.assert_array_equal(few.topk_ids, readings.topk_ids[rows])
    np.testing.assert_array_equal(few.target, readings.target[rows])
    assert few.prompts == tuple(readings.prompts[i] for i in rows)
    assert tune.subset(readings, N) is readings
    assert tune.subset(readings, 10, seed=2).keys != few.keys


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("breir", "objective='breir'.*did you mean 'brier'"),
        ("rank:brier,foo", "objective='foo'"),
        ("rank:", "objective=''"),
        ("rank:brier,brier", "names a metric twice"),
        ("brier,auroc", "objective='brier,auroc'"),
    ],
)
def test_objectives_that_are_none(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        tune.parse_objective(text)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"why_identity": "yes/no answers"}, r"do not vote in task feelings \(yes/no answers\)"),
        ({"label_set": None}, "do not share one label set"),
        ({"target": None}, "--samples"),
        ({"keys": ("a",)}, "one document"),
        ({"target": np.eye(5, dtype=bool)[[0] * N]}, "auroc does not exist on these 60 documents"),
    ],
)
def test_what_cannot_be_tuned(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        run("auroc", replace(synthetic(), **change))


# ------------------------------------------------------------------ the command


@pytest.fixture
def directory(tmp_path) -> Path:
    """The synthetic readouts as a run would leave them."""
    readings = synthetic()
    about = {"model": "random", "top_k": K, "dtype": "float32"}
    store = Store(tmp_path / "dev", "fp", K, about)
    store.save_model(embeddings, lambda: [str(i) for i in range(V)])
    label_set = {
        "labels": list(NAMES),
        "spelled": [list(s) for s in LABELS.spelled],
        "variants": [list(v) for v in LABELS.variants],
    }
    store.save_tasks({"feelings": {"why_identity": None}}, {"set": label_set})
    documents = []
    for i in range(readings.n):
        key = i.to_bytes(16, "big")
        right = np.flatnonzero(readings.target[i]).tolist()
        doc = json.dumps({"id": str(i), "labels": right})
        documents.append(
            StoredDocument("feelings", i, key, doc, "set", NAMES, (key,), tuple(range(5)))
        )
        readout = Readout(
            topk_ids=readings.topk_ids[i],
            topk_logprobs=readings.topk_logprobs[i],
            label_logprobs=readings.label_logprobs[i],
            label_greedy=np.zeros(5, dtype=bool),
            label_first=np.zeros(5, dtype=np.int32),
            entropy=1.0,
            nucleus_sizes=np.zeros(4, dtype=np.int32),
            nucleus_entropies=np.zeros(4, dtype=np.float32),
        )
        store.add(key, readout)
    store.save_documents(documents)
    store.close()
    return tmp_path / "dev"


def semsoft(*arguments: object):
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command.tune)
    return CliRunner().invoke(app, [str(a) for a in arguments])


QUICK = ("--space", "raw,pc:2", "--tau", "0.1,q0.9", "--top-k", "7,40")


def test_command_says_what_it_found(directory, tmp_path):
    done = semsoft(directory, *QUICK, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    tuned = run()
    assert "Best of 32 cells" in done.stdout
    assert f"--model_args …,{tune.model_args(tuned.best.scoring)}" in done.stdout
    assert f"{tuned.best.value:.4f}" in done.stdout
    assert "optimistic" in done.stdout
    assert "32 cells in" in done.stdout
    written = json.loads((tmp_path / "out" / "tune.json").read_text())
    expected = plain(tune.record(tuned)) | {"directory": str(directory)}
    assert written == expected
    assert (tmp_path / "out" / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_command_prints_json(directory):
    done = semsoft(directory, *QUICK, "--objective", "rank:nll,accuracy", "--json", "--prior")
    record = json.loads(done.stdout)
    assert {"objective", "directory", "task", "n", "best", "cells"} <= set(record)
    assert (record["objective"], record["task"], record["n"]) == (
        "rank:nll,accuracy", "feelings", N,
    )  # fmt: skip
    assert record["better"] == "lower"
    assert record["prior"] is True
    assert len(record["cells"]) == 32
    for cell in record["cells"]:
        assert {*tune_grid.AXES, "value", *METRICS} <= set(cell)
    assert set(record["best"]["intervals"]) == {"nll", "accuracy"}


def test_command_draws_where_it_is_told(directory, tmp_path):
    done = semsoft(
        directory, *QUICK, "--objective", "auroc", "--limit", 30, "--rival-votes", "off",
        "--png", tmp_path / "a" / "map.png",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a" / "map.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "tune.json").exists()
    assert "30 documents" in done.stdout


def test_the_report_reads_what_is_written(directory, tmp_path):
    read_surface = pytest.importorskip("lm_eval_semsoft.reports.report").read_surface
    semsoft(directory, *QUICK, "-o", tmp_path)
    surface = read_surface(tmp_path / "tune.json", synthetic())
    record = json.loads((tmp_path / "tune.json").read_text())
    panel, row, column = surface.best
    assert surface.panels[panel].values[row, column] == record["best"]["value"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--objective", "breir"), "did you mean 'brier'"),
        (("--space", "raw,,pc:3"), "--space 'raw,,pc:3' has an empty value"),
        (("--top-k", "7,x"), "--top-k 'x' is not a whole number"),
        (("--top-k", "7,400"), "at most 40"),
        (("--tau", "2"), "tau='2'"),
        (("--task", "other"), "'other' is not among them"),
        (("--samples", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_command_refuses_with_one_sentence(directory, arguments, sentence):
    done = semsoft(directory, *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_command_refuses_directories_that_hold_nothing(tmp_path):
    done = semsoft(tmp_path)
    assert done.exit_code == 2
    assert "holds no readouts" in done.stderr


def test_command_refuses_what_cannot_be_tuned(directory, monkeypatch):
    one = replace(synthetic(), keys=("a",))
    monkeypatch.setattr(readings_module, "load", lambda *_: one)
    done = semsoft(directory)
    assert done.exit_code == 2
    assert "one document" in done.stderr


def test_command_names_a_place_that_cannot_be_written(directory, tmp_path):
    (tmp_path / "file").write_text("")
    done = semsoft(directory, *QUICK, "--limit", 20, "-o", tmp_path / "file" / "out")
    assert done.exit_code == 2
    assert "Cannot write to" in done.stderr


# ------------------------------------------------------------------ the picture


@pytest.mark.parametrize("objective", ["brier", "auroc", "rank:brier,auroc"])
def test_the_map_shows_every_cell_at_the_best_k_and_anchors(objective):
    from lm_eval_semsoft.reports.surface import draw_tuned

    record = plain(tune.record(run(objective)))
    figure = draw_tuned(record)
    best = record["best"]
    place = f"anchors {best['anchors']}, K = {best['top_k']}, rival votes"
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"{place} off", f"{place} on"]
    last = figure.axes[-1]
    assert [t.get_text() for t in last.get_xticklabels()] == list(map(str, SMALL["tau"]))
    assert [t.get_text() for t in last.get_yticklabels()] == SMALL["space"]
    cells = [
        c for c in record["cells"] if (c["top_k"], c["anchors"]) == (best["top_k"], best["anchors"])
    ]
    texts = [t for axes in figure.axes for t in axes.texts]
    shown = sorted(float(t.get_text()) for t in texts)
    assert shown == pytest.approx(sorted(c["value"] for c in cells), abs=6e-4)
    assert sum(t.get_weight() == "bold" for t in texts) == sum(c["alike"] for c in cells)
    ((index, frame),) = [
        (i, p) for i, axes in enumerate(figure.axes) for p in axes.patches if p.get_zorder() == 4
    ]
    column, row = (math.floor(x) for x in frame.get_xy())
    framed = SMALL["space"][row], SMALL["tau"][column], ("off", "on")[index]
    assert framed == (best["space"], best["tau"], best["rival_votes"])
    constrained = f"Constrained softmax: {record['constrained']['value']:.3f}"
    assert constrained in figure.get_supxlabel()
    figure.canvas.draw()


def test_the_map_marks_the_default_too():
    from lm_eval_semsoft.reports.surface import draw_tuned

    record = plain(tune.record(run()))
    other = next(c for c in record["cells"] if c["top_k"] != record["best"]["top_k"])
    figure = draw_tuned({**record, "default": other})
    frames = [p for axes in figure.axes for p in axes.patches if p.get_zorder() == 4]
    assert {p.get_linestyle() for p in frames} == {"-", ":"}
    assert len(figure.axes) == 3
    assert "dotted: the package's default" in figure.get_supxlabel()


def test_the_map_of_one_cell():
    from lm_eval_semsoft.reports.surface import draw_tuned

    record = plain(tune.record(run(grid={"space": ["raw"], "tau": [0.1], "top_k": [7]})))
    record["cells"] = record["cells"][:1]
    record["cells"][0]["value"] = None
    draw_tuned(record).canvas.draw()
